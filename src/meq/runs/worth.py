"""What each modality is worth to a model: shuffled, missing, and what a linear model makes of it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from meq.analysis.answers import FEWEST, Estimate, Scorer
from meq.analysis.importance import measure_importance
from meq.analysis.tables import number
from meq.data.contract import DataSet, Split, collate
from meq.encoders.contract import Progress
from meq.models.base import FusionModel
from meq.runs.pooled import Baseline, PooledError, constant, linear, pool
from meq.showing import Tabular
from meq.tables import Cell, Table, as_text
from meq.training.predictions import batched

SAMPLES = 512
"""Examples that are looked at, spread over the split."""
REPEATS = 3
"""Shufflings of each modality."""
TRAINED_ON = 2000
"""Examples of train that the linear models are fitted to, spread over it: more would take longer than the rest."""
BATCH = 64


@dataclass(frozen=True, kw_only=True)
class ModalityWorth:
    """One modality."""

    modality: str
    samples: int
    """How many have it."""
    shuffled: Estimate
    """What the score loses when it is shuffled across the split."""
    changed: float
    """The share of answers that this changes."""
    missing: Estimate | None
    """What the score loses when it is missing; None where nothing else is there."""
    alone: float | None
    """The score of a linear model of this modality alone; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Worth(Tabular):
    """All modalities, on the same examples of one split."""

    split: str
    samples: int
    score_name: str
    score: Estimate
    modalities: tuple[ModalityWorth, ...]
    linear: float | None
    """The score of a linear model of all modalities, each pooled to its mean."""
    majority: float | None
    """The score of the most frequent answer, or of the mean."""
    notes: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "modality": each.modality,
                "rows": each.samples,
                "shuffled": each.shuffled.value,
                "low": each.shuffled.low,
                "high": each.shuffled.high,
                "changed": each.changed,
                "without": None if each.missing is None else self.score.value - each.missing.value,
                "alone": each.alone,
            }
            for each in self.modalities
        ]

    def table(self) -> Table:
        """A row per modality, and one for all of them."""
        shown: list[dict[str, Cell]] = [
            {
                "modality": each.modality,
                "loss": f"{number(each.shuffled.value)} [{number(each.shuffled.low)}, {number(each.shuffled.high)}]",
                "changed": each.changed,
                "without": None if each.missing is None else self.score.value - each.missing.value,
                "alone": each.alone,
            }
            for each in self.modalities
        ]
        shown.append({"modality": "all of them", "without": None, "alone": self.linear})
        return Table.of(
            f"What each modality is worth on {self.split}: {self.score_name} {self.score} on {self.samples:,} examples",
            shown,
            keys=("modality", "loss", "changed", "without", "alone"),
            titles={
                "loss": f"{self.score_name} lost, shuffled",
                "changed": "answers changed",
                "without": f"{self.score_name}, missing",
                "alone": "linear model of it alone",
            },
            notes=self.remarks(),
        )

    def remarks(self) -> list[str]:
        return [*self._verdicts(), *self.notes]

    def _verdicts(self) -> list[str]:
        """What users must be told: modalities that do not count, and cheap models that are as good."""
        said = [
            f"{each.modality} hardly counts: shuffling it costs nothing that these examples could show"
            for each in self.modalities
            if each.shuffled.low <= 0 and len(self.modalities) > 1
        ]
        alone = {each.modality: each.alone for each in self.modalities if each.alone is not None}
        enough = [f"of {name} alone" for name, score in alone.items() if score >= self.score.value]
        if self.linear is not None and self.linear >= self.score.value and len(self.modalities) > 1:
            enough.append("of all modalities")
        if enough:
            said.append(f"as good as this model here: a linear one {' and one '.join(enough)}")
        if self.majority is not None and self.majority >= self.score.value:
            said.append(f"always the same answer is as good: {number(self.majority)}")
        return said

    def __str__(self) -> str:
        return as_text(self.table()).rstrip()


def measure_worth(
    model: FusionModel, data: DataSet, split: str, *, seed: int = 0, progress: Progress | None = None
) -> Worth | None:
    """Shuffle and remove each modality on a labelled split; None where it has too few examples to say anything.

    Takes (REPEATS + 1) answers per modality for up to SAMPLES examples, and a linear model per modality where the data
    has its train and dev splits.
    """
    examples = spread(data.splits[split], SAMPLES)
    if len(examples) < FEWEST:
        return None
    parts = batched(examples, BATCH)
    batches = [collate(part, data.widths, data.answering) for part in parts]
    found = measure_importance(model, batches, repeats=REPEATS, seed=seed, progress=progress)
    cheap = _baselines(data, split, [example.id for example in examples])
    return Worth(
        split=split,
        samples=found.samples,
        score_name=found.score_name,
        score=found.score,
        modalities=tuple(
            ModalityWorth(
                modality=each.modality,
                samples=each.samples,
                shuffled=each.shuffled,
                changed=each.changed,
                missing=each.removed,
                alone=cheap.scores.get(each.modality),
            )
            for each in found.parts
        ),
        linear=cheap.scores.get(ALL_OF_THEM),
        majority=cheap.scores.get(MAJORITY),
        notes=cheap.notes,
    )


def spread(examples: Split, count: int) -> Split:
    """So many of the examples, evenly spread: neighbours often share a picture."""
    if len(examples) <= count:
        return examples
    return [examples[row] for row in torch.linspace(0, len(examples) - 1, count).round().long().tolist()]


ALL_OF_THEM, MAJORITY = "all of them", "always the same"


@dataclass(frozen=True, kw_only=True)
class _Cheap:
    scores: dict[str, float]
    notes: tuple[str, ...]


def _baselines(data: DataSet, split: str, ids: Sequence[str]) -> _Cheap:
    """The scores of cheap models on these examples; none, and why, where they cannot be had."""
    if not all(name in data.splits for name in ("train", "dev")):
        return _Cheap(scores={}, notes=("linear models need the train and dev splits, which are not here",))
    few = {**data.splits, "train": spread(data.splits["train"], TRAINED_ON)}
    try:
        pooled = pool(replace(data, splits=few))
    except PooledError as error:
        return _Cheap(scores={}, notes=(str(error),))
    made: dict[str, Baseline] = {MAJORITY: constant(pooled)}
    if len(data.modalities) > 1:
        made |= {name: linear(pooled, [name]) for name in data.modalities}
    made[ALL_OF_THEM] = linear(pooled)
    cut = len(few["train"]) < len(data.splits["train"])
    note = f"linear models were fitted to {len(few['train']):,} of {len(data.splits['train']):,} examples of train"
    return _Cheap(
        scores={name: _scored(each, split, ids, data.head) for name, each in made.items()}, notes=(note,) if cut else ()
    )


def _scored(baseline: Baseline, split: str, ids: Sequence[str], head: str) -> float:
    """The same score that the model has, on the same examples."""
    found, wanted = baseline.predict(split), set(ids)
    rows = torch.tensor([row for row, id_ in enumerate(found.ids) if id_ in wanted])
    return float(Scorer.of(found.logits[rows], found.target[rows], head).points.mean())
