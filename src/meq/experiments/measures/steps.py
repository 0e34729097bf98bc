"""The answer read at every step, for all examples and by their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from meq.analysis import follow
from meq.analysis.trajectory import Trajectory
from meq.core.options import checked_options, nearest
from meq.data.contract import DataSet, Example
from meq.experiments.build import Prepared
from meq.experiments.measures.contract import Found, Measure, Trained, Values, batched, check_split
from meq.experiments.measures.summary import SPREADS, arms_in, by_seed, mean_and_spread, names_in, over_seeds
from meq.experiments.render import Cell, Column, Table
from meq.experiments.study import Study, StudyError
from meq.models.iterated import Iterated

ALL = "all"
CLOSE = 0.01
"""How near a score must be to that at the read step for the answer to count as there."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class Steps(Measure):
    """Score, confidence and residual at k = 0 .. horizon."""

    name: ClassVar[str] = "steps"

    split: str | None = None
    """The test split where it is labelled, else dev."""
    horizon: int | None = None
    """Twice the read depth unless given."""
    by: str | None = None
    """A fact of the examples, such as their kind, by which they are told apart."""
    limit: int | None = None

    def check(self, study: Study, prepared: Prepared) -> None:
        check_split(prepared.data, self.split)
        some = next((split[0] for split in prepared.data.splits.values() if len(split)), None)
        if self.by is not None and some is not None and self.by not in some.facts:
            raise StudyError(
                f"the examples of {prepared.data.name} have no {self.by!r}: {nearest(self.by, some.facts)}"
            )

    def take(self, trained: Trained) -> Found:
        split = self.split or reported_split(trained)
        examples = list(trained.data.splits[split][: self.limit])
        groups: dict[str, list[Example]] = {ALL: examples}
        for example in examples if self.by is not None else ():
            groups.setdefault(str(example.facts[str(self.by)]), []).append(example)
        found: dict[str, Any] = {
            "split": split,
            "metric": trained.data.metric.name,
            "count": {name: len(group) for name, group in groups.items()},
            "answer": {name: score_examples(trained, group) for name, group in groups.items()},
        }
        if trained.iterated is None:
            return found
        walked = {name: self._walk(trained.iterated, trained.data, group) for name, group in groups.items()}
        every = walked[ALL]
        return {
            **found,
            "read": every.read,
            "steps": list(every.steps),
            "score": {name: _numbers(each.metric) for name, each in walked.items()},
            "confidence": [float(row.nanmean()) for row in every.confidence],
            "residual": {name: _numbers(rows.nanmedian(1).values) for name, rows in every.residuals.items()},
            "diverged": every.diverged,
        }

    def _walk(self, model: Iterated, data: DataSet, examples: list[Example]) -> Trajectory:
        horizon = self.horizon or 2 * model.steps
        return follow(model, batched(examples, data), steps=range(horizon + 1), horizon=horizon, metric=data.metric)

    def tables(self, study: Study, values: Values) -> dict[str, Table]:
        made = {"answers-by-kind": _answers(study, values)} if values else {}
        for arm in arms_in(study, values):
            found = by_seed(study, values, arm)
            if "steps" in found[0]:
                made[f"steps-{arm}"] = _along(study, arm, found)
        return made


def reported_split(trained: Trained) -> str:
    """Where scores are reported: test where it is labelled, else dev, which weights were also chosen on."""
    return "test" if "test" in trained.record.metrics else "dev"


def score_examples(trained: Trained, examples: Sequence[Example]) -> float:
    """The set's metric on the model's answers to these examples, as the arm sees them."""
    logits, targets = [], []
    for batch in batched(list(examples), trained.data):
        with torch.no_grad():
            logits.append(trained.model(batch.features, batch.masks).logits.float())
        assert batch.target is not None
        targets.append(batch.target)
    return float(trained.data.metric(torch.cat(logits), torch.cat(targets)))


def _numbers(values: torch.Tensor | None) -> list[float]:
    return [] if values is None else [float(value) for value in values]


def _along(study: Study, arm: str, found: list[Found]) -> Table:
    first = found[0]
    groups, residuals = list(first["score"]), list(first["residual"])
    columns = [Column(key="k", title="k")]
    for name in groups:
        columns += [Column(key=name, title=name), Column(key=f"{name} spread", title="spread")]
    columns += [Column(key=f"residual {name}", title=f"residual, {name}", digits=5) for name in residuals]
    rows: list[tuple[Cell, ...]] = []
    for place, k in enumerate(first["steps"]):
        cells: list[Cell] = [f"{k} = K" if k == first["read"] else str(k)]
        for name in groups:
            cells += over_seeds(found, "score", name, place)
        for name in residuals:
            cells.append(over_seeds(found, "residual", name, place)[0])
        rows.append(tuple(cells))
    return Table(
        title=f"{study.name}: {arm} read at step k ({first['metric']} on {first['split']})",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(f"{SPREADS} Residual: |z - T(z)| / |z| of the undamped map, median over samples, mean over seeds.",),
    )


def _answers(study: Study, values: Values) -> Table:
    groups = names_in(study, values, "answer")
    columns = [Column(key="arm", title="arm")]
    for name in groups:
        columns += [Column(key=name, title=name), Column(key=f"{name} spread", title="spread")]
    columns += [Column(key=f"{name} k", title=f"{name}: there at k", digits=1) for name in groups]
    rows = []
    for arm in arms_in(study, values):
        found = by_seed(study, values, arm)
        cells: list[Cell] = [arm]
        for name in groups:
            cells += over_seeds(found, "answer", name)
        cells += [mean_and_spread([there_at(each, name) for each in found])[0] for name in groups]
        rows.append(tuple(cells))
    first = next(iter(values.values()))
    close = f"There at k: the step from which on the score stays within {CLOSE:.2f} of that at K, mean over seeds."
    return Table(
        title=f"{study.name}: answers at the read depth ({first['metric']} on {first['split']})",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(SPREADS, close),
    )


def there_at(found: Found, group: str) -> int | None:
    """The first step from which on, up to K, the score stays near that at K; None for a model without steps."""
    if "steps" not in found or group not in found["score"]:
        return None
    scores = dict(zip(found["steps"], found["score"][group], strict=True))
    read = found["read"]
    far = [k for k in range(read) if abs(scores[k] - scores[read]) > CLOSE]
    return max(far, default=-1) + 1
