"""The staircase: which answers are right, by how deep they lie and by the step at which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.walk import open_case
from meq.core.operator import held_still
from meq.data.contract import Batch, Example
from meq.options import checked_options
from meq.records import SINCE
from meq.studies.build import PreparedData
from meq.studies.compare import verdict
from meq.studies.measures.contract import (
    SPREADS,
    Measure,
    Results,
    SeedRow,
    TrainedModel,
    by_arm,
    check_split,
    mean_and_spread,
    spread_titles,
)
from meq.studies.study import Study, StudyError
from meq.tables import Cell, Table

TOKENS, WHOLE = "tokens", "whole"
FACT = "token_depths"
"""By modality, how many exchanges each token of an example needs."""
FAR = (32, 48, 100, 300)
DEEPER = 3
"""Times the model's own K: where problems deeper than those of training are read, fixed before anybody looked."""


@dataclass(frozen=True, kw_only=True)
class FollowedExample:
    """What every token of one example says at every step: the one whose answers arrive latest, and all arrive."""

    split: str
    id: str
    steps: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    """A row per step, the tokens of all modalities that answer one after the other."""


@dataclass(frozen=True, kw_only=True)
class StaircaseResult:
    """By split, and by group: all tokens, whole examples, and the tokens of each depth. Shares of right answers."""

    count: Mapping[str, Mapping[str, int]]
    answer: Mapping[str, Mapping[str, float]]
    """At the step that is read: K, and DEEPER x K on splits that are deeper than training."""
    read: Mapping[str, int] | None = field(default=None, metadata=SINCE)
    """By split; a model that does not iterate has no steps."""
    steps: tuple[int, ...] | None = field(default=None, metadata=SINCE)
    score: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict, metadata=SINCE)
    """At each of the steps."""
    arrived: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=SINCE)
    """By depth: the step from which on, up to the one that is read, an answer is right; the mean over those that are
    right there."""
    example: FollowedExample | None = field(default=None, metadata=SINCE)


@checked_options
@dataclass(frozen=True, kw_only=True)
class Staircase(Measure[StaircaseResult]):
    """Accuracy by depth at k = 0, 1, 2, ... and far beyond K, on splits within and beyond the depth of training."""

    name: ClassVar[str] = "staircase"
    result: ClassVar[type] = StaircaseResult

    splits: Sequence[str] = ("test", "deep")
    deeper: Sequence[str] = ("deep",)
    """Splits with problems deeper than those of training."""
    limit: int | None = None

    def check(self, study: Study, prepared: PreparedData) -> None:
        for split in self.splits:
            check_split(prepared.data, split)
        some = prepared.data.splits[self.splits[0]][0]
        if prepared.data.head != "tokens" or FACT not in some.facts:
            raise StudyError(
                f"a staircase needs answers per token and their depths, as duels and relay have; {prepared.data.name} "
                "has not"
            )

    def take(self, trained: TrainedModel) -> StaircaseResult:
        count: dict[str, dict[str, int]] = {}
        score: dict[str, dict[str, tuple[float, ...]]] = {}
        arrived: dict[str, dict[str, float]] = {}
        own = None if trained.iterated is None else trained.iterated.steps
        steps = (0,) if own is None else tuple(sorted({*range(DEEPER * own + 1), *(k for k in FAR if k > own)}))
        read = {split: (own or 0) * (DEEPER if split in self.deeper else 1) for split in self.splits}
        for split in self.splits:
            examples = list(trained.data.splits[split][: self.limit])
            looks = [self._look(trained, batch, deep, steps) for batch, deep in _parts(trained, examples)]
            right, depths = torch.cat([each for each, _ in looks], 1), torch.cat([each for _, each in looks])
            count[split], score[split] = shares(right, depths)
            arrived[split] = arrivals(right[: read[split] + 1], depths)
            latest = examples[int(lateness(right[: DEEPER * (own or 0) + 1], depths).argmax())]
        if own is None:
            return StaircaseResult(count=count, answer=_at(score, read))
        places = {split: steps.index(k) for split, k in read.items()}
        return StaircaseResult(
            count=count,
            answer=_at(score, places),
            read=read,
            steps=steps,
            score=score,
            arrived=arrived,
            example=_follow(trained, self.splits[-1], latest, steps[: DEEPER * own + 1]),
        )

    @staticmethod
    def _look(
        trained: TrainedModel, batch: Batch, depths: Int[Tensor, "B N"], steps: Sequence[int]
    ) -> tuple[Bool[Tensor, "S B N"], Int[Tensor, "B N"]]:
        with torch.no_grad(), held_still(trained.model):
            if trained.iterated is None:
                logits = trained.model(batch.features, batch.masks).logits
                assert logits is not None
                along = logits[None].cpu()
            else:
                along = open_case(trained.iterated, batch.features, batch.masks).read_along(steps).logits
        return along.argmax(-1) == batch.target.cpu(), depths.where(batch.target >= 0, -1).cpu()

    def tables(self, study: Study, results: Results[StaircaseResult]) -> dict[str, Table]:
        if not results:
            return {}
        made = {"depths": _answers(study, results)}
        made |= {f"by-depth-{split}": _by_depth(study, results, split) for split in next(iter(results.values())).answer}
        for arm, found in by_arm(study, results).items():
            if found[0].steps is not None:
                made |= {f"staircase-{arm}-{split}": _along(study, arm, found, split) for split in found[0].score}
        return made


def shares(
    right: Bool[Tensor, "S B N"], depths: Int[Tensor, "B N"]
) -> tuple[dict[str, int], dict[str, tuple[float, ...]]]:
    """How many there are of each group, and which share of them is right at every step; a depth of -1 is not asked."""
    asked = depths >= 0
    count = {TOKENS: int(asked.sum()), WHOLE: int(asked.any(1).sum())}
    whole = (right | ~asked).all(2)[:, asked.any(1)]
    score = {TOKENS: _means(right[:, asked]), WHOLE: _means(whole)}
    for depth in sorted(set(depths[asked].tolist())):
        these = depths == depth
        count[str(depth)], score[str(depth)] = int(these.sum()), _means(right[:, these])
    return count, score


def _since(right: Bool[Tensor, "S B N"]) -> Int[Tensor, "B N"]:
    """The step from which on answers are right up to the last of the steps, which are 0, 1, 2, ..."""
    wrong = ~right.flip(0)
    return len(right) - (wrong.long().cumsum(0) == 0).sum(0)  # how many steps before the last stretch of right ones


def lateness(right: Bool[Tensor, "S B N"], depths: Int[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """By example: the mean step from which on its answers are right; -1 where some are not right at the end."""
    asked = depths >= 0
    steps = _since(right).where(asked, 0).double().sum(-1) / asked.sum(-1).clamp(min=1)
    return torch.where((right[-1] | ~asked).all(-1), steps, -1.0)


def _follow(trained: TrainedModel, split: str, example: Example, steps: Sequence[int]) -> FollowedExample:
    assert trained.iterated is not None
    batch = trained.collate([example])
    with torch.no_grad(), held_still(trained.model):
        logits = open_case(trained.iterated, batch.features, batch.masks).read_along(steps).logits
    answers = tuple(tuple(row) for row in logits[:, 0].argmax(-1).tolist())
    return FollowedExample(split=split, id=example.id, steps=tuple(steps), answers=answers)


def arrivals(right: Bool[Tensor, "S B N"], depths: Int[Tensor, "B N"]) -> dict[str, float]:
    """By depth: the mean step from which on answers are right up to the last of the steps, which are 0, 1, 2, ..."""
    since, found = _since(right), {}
    for depth in sorted(set(depths[depths >= 0].tolist())):
        steps = since[(depths == depth) & right[-1]]
        if len(steps):
            found[str(depth)] = float(steps.double().mean())
    return found


def _means(right: Bool[Tensor, "S M"]) -> tuple[float, ...]:
    return tuple(right.double().mean(1).tolist())


def _at(score: Mapping[str, Mapping[str, tuple[float, ...]]], places: Mapping[str, int]) -> dict[str, dict[str, float]]:
    return {split: {name: rows[places[split]] for name, rows in found.items()} for split, found in score.items()}


def _parts(trained: TrainedModel, examples: list[Example]) -> Iterator[tuple[Batch, Int[Tensor, "B N"]]]:
    """Batches, and the depths of their tokens, which are padded as the answers are."""
    answering = trained.data.answering
    depths = [
        replace(each, target=torch.tensor([depth for name in answering for depth in each.facts[FACT][name]]))
        for each in examples
    ]
    pairs = zip(trained.collated(examples), trained.collated(depths), strict=True)
    return ((batch, deep.target) for batch, deep in pairs)


def _answers(study: Study, results: Results[StaircaseResult]) -> Table:
    """Every arm at the step that is read, with the difference to the reference on whole examples."""
    first = next(iter(results.values()))
    rows: list[dict[str, Cell]] = []
    for arm, found in by_arm(study, results).items():
        row = SeedRow(arm=arm)
        for split in first.answer:
            read = found[0].read
            row[f"{split} k"] = None if read is None else read[split]
            for group in (TOKENS, WHOLE):
                row.add(f"{split} {group}", (each.answer[split][group] for each in found))
            pairs = [
                results[arm, seed].answer[split][TOKENS] - results[study.reference, seed].answer[split][TOKENS]
                for seed in study.seeds
                if (arm, seed) in results and (study.reference, seed) in results
            ]
            mine = arm == study.reference
            row[f"{split} difference"] = None if mine else mean_and_spread(pairs)[0]
            row[f"{split} verdict"] = "reference" if mine else verdict(pairs)
        rows.append(row)
    return Table.of(
        f"{study.name}: right answers, within and beyond the depth of training",
        rows,
        titles=spread_titles(rows),
        signed=[f"{split} difference" for split in first.answer],
        notes=(
            "k: the step that is read, K, and three times K on problems deeper than those of training; none for arms "
            "that do not iterate. Whole: examples all of whose tokens are right.",
            f"Difference: of tokens, arm minus {study.reference}, mean over paired seeds; called: its absolute value "
            "exceeds twice the sample standard deviation of the paired differences.",
            SPREADS,
        ),
    )


def _by_depth(study: Study, results: Results[StaircaseResult], split: str) -> Table:
    """A row per depth: the share of right answers of every arm, and when the reference has them."""
    arms = by_arm(study, results)
    depths = [name for name in next(iter(results.values())).answer[split] if name not in (TOKENS, WHOLE)]
    rows = []
    for depth in depths:
        row: dict[str, Cell] = {"depth": depth}
        for arm, found in arms.items():
            row[arm] = mean_and_spread(each.answer[split].get(depth) for each in found)[0]
        reference = arms.get(study.reference, [])
        row["there at k"] = mean_and_spread(each.arrived.get(split, {}).get(depth) for each in reference)[0]
        rows.append(row)
    return Table.of(
        f"{study.name}: right answers on {split}, by depth",
        rows,
        digits={**dict.fromkeys(arms, 3), "there at k": 1},
        notes=(
            f"Shares of right tokens, means over seeds. There at k: the step from which on the answers of "
            f"{study.reference} are right, mean over those that are right where it is read.",
        ),
    )


def _along(study: Study, arm: str, found: Sequence[StaircaseResult], split: str) -> Table:
    rows = []
    first = found[0]
    assert first.read is not None
    for place, k in enumerate(first.steps or ()):
        row: dict[str, Cell] = {"k": f"{k} (read)" if k == first.read[split] else str(k)}
        for name in first.score[split]:
            row[name] = mean_and_spread(each.score[split][name][place] for each in found)[0]
        rows.append(row)
    return Table.of(
        f"{study.name}: {arm} on {split}, by the step that is read and the depth of the answer",
        rows,
        titles={name: f"depth {name}" for name in first.score[split] if name not in (TOKENS, WHOLE)},
        digits=dict.fromkeys(first.score[split], 3),
        notes=("Shares of right answers, means over seeds. Depth: how many exchanges an answer needs.",),
    )
