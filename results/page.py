"""docs/results.md and the results in README.md, made from the records in this folder: python results/page.py

Every sentence with a number in it is made here, from records; what came out against the equilibrium is made by the same
functions as what came out for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meq.studies import Study, compare, make_tables, read_study, records_of
from meq.studies.compare import ArmLine, Interval, answers_of, compare_groups, intervals
from meq.studies.measures import measured_of
from meq.studies.measures.contract import Values
from meq.studies.measures.steps import Steps
from meq.tables import as_markdown

RESULTS = Path(__file__).resolve().parent
DOCS = RESULTS.parent / "docs" / "results.md"
README = RESULTS.parent / "README.md"
BEGIN, END = "<!-- results: made by results/page.py -->", "<!-- end of results -->"
SPLIT, METRIC = "test", "accuracy"
TABLE, INTERVALS = "test-accuracy", "test-accuracy-bootstrap"
CHANCE = 1 / 3
INTRODUCTION = """# Results

Studies of the embedded set `scenes` in their quick form: small models, three seeds, hours on two cores. They say what
these models do on this set, and nothing about other benchmarks. Every table is made from the records in `results/`,
which `meq study verify` checks and the tests verify; weights are not kept, their hashes are.

A difference is *called* when its absolute value exceeds twice the sample standard deviation of the paired per-seed
differences. Beside it stands a paired bootstrap over examples: the middle 95 % of the difference over draws of the test
examples, which says how far it depends on them, as the first rule says how far it depends on the seeds. Scores are of
the test split, with weights chosen on dev. This page is made by `results/page.py`.
"""


@dataclass(frozen=True)
class Published:
    """A study of this folder."""

    folder: Path
    study: Study

    @classmethod
    def named(cls, name: str) -> Published:
        return cls(RESULTS / name, read_study(RESULTS / name))

    @property
    def records(self) -> Any:
        return records_of(self.folder, self.study)

    @property
    def measured(self) -> dict[str, Values]:
        return measured_of(self.folder, self.study)

    def lines(self) -> dict[str, ArmLine]:
        """By arm, and by group."""
        asked = {"split": SPLIT, "metric": METRIC}
        found = [*compare(self.study, self.records, **asked), *compare_groups(self.study, self.records, **asked)]
        return {line.arm.split(" (")[0]: line for line in found}

    def interval(self, arm: str) -> Interval:
        """Of the difference to the reference, over examples."""
        asked: dict[str, Any] = {"split": SPLIT, "metrics": [METRIC]}
        found = intervals(self.study, self.records, answers_of(self.folder), **asked)[METRIC]
        return next(each for each in found if each.arm == arm)

    def tables(self, *names: str) -> Iterator[str]:
        made = make_tables(self.study, self.records, self.measured, answers=answers_of(self.folder))
        return (as_markdown(made[name]) for name in names)


def percent(value: float | None) -> str:
    return "no score" if value is None else f"{100 * value:.1f} %"


def points(value: float) -> str:
    return f"{100 * abs(value):.1f} points"


def against(found: Published, line: ArmLine, words: str) -> str:
    """How the equilibrium compares with an arm, whichever way it came out: over seeds, and over examples."""
    assert line.difference is not None
    assert line.difference_spread is not None
    side = "ahead of" if line.difference < 0 else "behind"
    spread = f"twice the paired spread is {points(2 * line.difference_spread)}"
    interval = found.interval(line.arm.partition("(")[2].rstrip(")") or line.arm)
    assert interval.low is not None
    assert interval.high is not None
    ends = (interval.low, interval.high) if line.difference >= 0 else (-interval.high, -interval.low)
    over = f"over examples {100 * ends[0] + 0:.1f} to {100 * ends[1] + 0:.1f} points"
    return f"{points(line.difference)} {side} {words} ({line.verdict}: {spread}; {over})"


# -- what each study says ----------------------------------------------------------------------------------------------


def say_main(found: Published) -> list[str]:
    lines = found.lines()
    best = lines["best attention"]
    name = best.arm.partition("(")[2].rstrip(")")
    compute = lines["self-attention-compute-matched"]
    return [
        f"The equilibrium answers {percent(lines['meq'].mean)} of the test statements. At as many parameters it is "
        f"{against(found, lines['concat'], 'concatenation')}, and "
        f"{against(found, best, f'the better attention arm, {name}')}.",
        f"Given as many FLOPs as the iteration takes, and so {compute.parameters / lines['meq'].parameters:.1f} times "  # type: ignore[operator]
        f"the parameters, self-attention reaches {percent(compute.mean)}: the equilibrium is "
        f"{against(found, compute, 'that arm')}.",
    ]


def say_ablation(found: Published) -> list[str]:
    lines = found.lines()
    words = {
        "no-gate": "without the gate",
        "no-cross": "without the cross-modal path",
        "no-self": "without the path of its own",
        "one-step": "with a single step",
    }
    return [
        f"The whole model answers {percent(lines['meq'].mean)}. "
        + " ".join(f"It is {against(found, lines[arm], f'the model {text}')}." for arm, text in words.items())
    ]


def say_modality(found: Published) -> list[str]:
    lines = found.lines()
    alone = {name: line for name, line in lines.items() if name.endswith("-only")}
    worst = max(alone.values(), key=lambda line: abs((line.mean or 0) - CHANCE))
    return [
        f"Chance is {percent(CHANCE)}. With one modality zeroed and everything else unchanged, "
        + ", ".join(f"`{name}` answers {percent(line.mean)}" for name, line in alone.items())
        + f": at most {points((worst.mean or 0) - CHANCE)} from chance, so the set needs both."
    ]


def say_steps(found: Published) -> list[str]:
    values = list(found.measured["steps"].values())
    read = values[0]["read"]

    def at(k: int) -> float:
        return statistics.fmean(each["score"]["all"][each["steps"].index(k)] for each in values)

    curve = ", ".join(f"{100 * at(k):.1f}" for k in range(read + 1))
    return [
        f"Read at k = 0 to {read}, the same trained models answer {curve} % of all statements; read at twice the "
        f"depth, k = {2 * read}, they answer {percent(at(2 * read))}."
    ]


def say_fixed_point(found: Published) -> list[str]:
    values = list(found.measured["fixed-point"].values())
    radii = [statistics.fmean(each["radius"]) for each in values]
    read, far = (statistics.fmean(each["score"][at] for each in values) for at in (0, 1))
    residuals = [
        statistics.fmean(max(pair[at] for pair in each["residual"].values()) for each in values) for at in (0, 1)
    ]
    horizon = values[0]["horizon"]
    words = (
        "contractive in none" if min(radii) >= 1 else "contractive in all" if max(radii) < 1 else "contractive in some"
    )
    return [
        f"The undamped map at the read state has a spectral radius of {min(radii):.3f} to {max(radii):.3f} (mean of a "
        f"seed's samples): it is {words} of the seeds. From the read depth to k = {horizon} the residual goes from "
        f"{residuals[0]:.1e} to {residuals[1]:.1e}, and the score from {percent(read)} to {percent(far)}."
    ]


def say_hops(found: Published) -> list[str]:
    values = Steps().typed(found.measured["steps"])
    kinds = [kind for kind in next(iter(values.values())).answer if kind != "all"]

    def mean(arm: str, pick: Callable[[Any], Any]) -> float:
        return statistics.fmean(pick(each) for (name, _), each in values.items() if name == arm)

    def scores(arm: str) -> str:
        return ", ".join(f"{kind} {percent(mean(arm, lambda each, kind=kind: each.answer[kind]))}" for kind in kinds)

    there = ", ".join(f"{kind} {mean('meq', lambda each, kind=kind: each.there_at(kind)):.1f}" for kind in kinds)
    return [
        f"The equilibrium answers: {scores('meq')}. The same model with one step: {scores('one-step')}. "
        f"Self-attention of the same size: {scores('self-attention')}.",
        f"The step from which on the equilibrium's score stays near that at K, mean over seeds: {there}.",
    ]


SECTIONS: dict[str, tuple[str, Callable[[Published], list[str]], tuple[str, ...]]] = {
    "main-scenes-quick": ("Against single-pass fusion", say_main, (TABLE, INTERVALS, "coupling")),
    "ablation-scenes-quick": ("What each part contributes", say_ablation, (TABLE, INTERVALS, "coupling")),
    "modality-scenes-quick": ("Both modalities are needed", say_modality, (TABLE, INTERVALS)),
    "steps-scenes-quick": ("Along the iteration", say_steps, ("steps-meq",)),
    "fixed-point-scenes-quick": ("Is what is read a fixed point?", say_fixed_point, ("fixed-point",)),
    "hops-scenes-quick": ("When iteration helps", say_hops, ("answers-by-kind", "steps-meq")),
}


def page() -> str:
    """docs/results.md."""
    parts = [INTRODUCTION]
    for name, (title, say, tables) in SECTIONS.items():
        found = Published.named(name)
        command = " ".join(["meq study run", *name.removesuffix("-quick").rsplit("-", 1), "--quick"])
        parts.append(f"## {title}\n\n`{command}` ({found.study.question})\n")
        parts.append("\n\n".join(say(found)) + "\n")
        parts += found.tables(*tables)
    return "\n".join(parts)


def readme_part() -> str:
    """The main table and what it says, for README.md."""
    main, steps = Published.named("main-scenes-quick"), Published.named("steps-scenes-quick")
    said = "\n\n".join([*say_main(main), *say_steps(steps)])
    table = "".join(main.tables(TABLE))
    return f"{BEGIN}\n\n{said}\n\n{table}\n{END}"


def with_results(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + readme_part() + after


if __name__ == "__main__":
    DOCS.write_text(page())
    README.write_text(with_results(README.read_text()))
    print(DOCS, README)
