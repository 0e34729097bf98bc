"""A study of the paper that was run: its records, and what its tables say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from meq.studies import paper as published
from meq.studies.compare import CALLED, ArmLine, Records, compare, compare_groups
from meq.studies.measures import measured_of
from meq.studies.measures.contract import Values
from meq.studies.study import Study, read_study, run_place
from meq.studies.tables import records_of
from meq.tables import Cell
from meq.training.bundle import TASK, Task, read_task
from meq.training.record import RunRecord

NAMES = {
    "hateful-memes": "Hateful Memes",
    "vcr": "VCR",
    "vqa-v2": "VQA v2",
    "snli-ve": "SNLI-VE",
    "mosei": "CMU-MOSEI",
    "cod10k": "COD10K",
}
"""As the paper writes its data sets; ours go by their names."""
METRICS = {"accuracy": "Acc", "soft accuracy": "Acc", "auroc": "AUROC", "token accuracy": "Tokens"}
QUICK = "Quick form: small models, few steps and epochs, encoders whose weights come with pip, a part of the data."
SMOKE = "smoke"
NONE = "--"
PUBLISHED = "paper"


@dataclass(frozen=True, kw_only=True)
class PaperPart:
    """One study of the paper on one data set, in a folder of the whole."""

    study: str
    data: str
    folder: str
    smoke: bool = False


@dataclass(frozen=True)
class Found:
    """A study that was run."""

    part: PaperPart
    place: Path

    @cached_property
    def study(self) -> Study:
        return read_study(self.place)

    @cached_property
    def records(self) -> Records:
        return records_of(self.place, self.study)

    @cached_property
    def measured(self) -> dict[str, Values]:
        return measured_of(self.place, self.study)

    @property
    def metric(self) -> str:
        """What weights are chosen by, and tables show."""
        return next(iter(self.records.values())).metric

    @property
    def split(self) -> str:
        """The paper reports dev; sets that it does not have report test where that is labelled."""
        tested = any("test" in record.metrics for record in self.records.values())
        return "test" if tested and self.part.data not in NAMES else "dev"

    @cached_property
    def lines(self) -> dict[str, ArmLine]:
        """By arm, and by group."""
        asked = {"split": self.split, "metric": self.metric}
        found = [*compare(self.study, self.records, **asked), *compare_groups(self.study, self.records, **asked)]
        return {line.arm.split(" (")[0]: line for line in found}

    @property
    def name(self) -> str:
        return NAMES.get(self.part.data, self.part.data) + (f" ({SMOKE})" if self.part.smoke else "")

    @property
    def head(self) -> dict[str, Cell]:
        return {"dataset": self.name, "metric": METRICS.get(self.metric, self.metric)}

    @property
    def record(self) -> RunRecord:
        """One of them, of a run that came to its end where there is one."""
        records = list(self.records.values())
        return next((record for record in records if record.scored), records[0])

    @property
    def task(self) -> Task | None:
        """What its runs are trained for; None where all of them failed before there was a model."""
        files = (self.place / run_place(*run) / "model" / TASK for run in self.records)
        return next((read_task(file) for file in files if file.is_file()), None)

    def score(self, value: float | None) -> str:
        """Percent; AUROC as a fraction."""
        return NONE if value is None else f"{value:.4f}" if self.metric == "auroc" else percent(value)

    def mean(self, arm: str) -> str:
        return self.score(self.lines[arm].mean) if arm in self.lines else NONE

    def against(self, arm: str, *, sign: int = 1) -> tuple[str, str]:
        """The difference of an arm to the study's reference in points, and whether it is called."""
        line = self.lines.get(arm)
        if line is None or line.difference is None:
            return NONE, ""
        # + 0.0: or a difference of nought that changed its sign would be shown as -0.00
        return f"{100 * sign * line.difference + 0.0:+.2f}", "yes" if line.verdict == CALLED else no_or(line.verdict)

    def figures(self, name: str) -> Mapping[str, float]:
        """What the paper publishes, by arm, of a table on this data set; nothing beside a smoke test."""
        known = published.PAPER.get(f"{name}/{self.part.data}")
        return {} if known is None or self.part.smoke else known.values

    def differences(self, name: str) -> Mapping[str, tuple[str, str]]:
        """What the paper publishes of differences in that table, likewise."""
        return {} if self.part.smoke else published.DIFFERENCES.get(f"{name}/{self.part.data}", {})

    def beside(self, name: str, column: Callable[[Mapping[str, float]], dict[str, Cell]]) -> dict[str, Cell] | None:
        """The paper's row for this data set."""
        values = self.figures(name)
        return {"dataset": f"{NAMES[self.part.data]} ({PUBLISHED})", **column(values)} if values else None


def no_or(verdict: str) -> str:
    return "no" if verdict == "not called" else verdict


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}"


def said_of(name: str, found: Sequence[Found]) -> list[str]:
    """Figures that the paper has in its text only; none beside a smoke test."""
    real = [each for each in found if not each.part.smoke]
    texts = ((each.name, text) for each in real for text in published.SAID.get(f"{name}/{each.part.data}", ()))
    return [f"In the paper's text, {data}: {text}" for data, text in texts]


def one_each(found: Sequence[Found]) -> dict[str, Found]:
    """The first study of every data set."""
    made: dict[str, Found] = {}
    for each in found:
        made.setdefault(each.part.data, each)
    return made
