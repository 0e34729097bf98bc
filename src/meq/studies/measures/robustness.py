"""How the answers stand noise, blur and typos: worse inputs, encoded again, read by the kept weights."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor

from meq.data.contract import DataSet, Example, Rows, Split
from meq.data.transforms import DRAWS, READS, STUDY, Corruption, corrupt
from meq.options import checked_options
from meq.studies.build import PreparedData
from meq.studies.compare import paired_difference
from meq.studies.measures.contract import (
    SPREADS,
    Measure,
    Results,
    TrainedModel,
    by_arm,
    encode_alike,
    encoder_size,
    mean_and_spread,
    names_in,
    only,
    raw_of,
)
from meq.studies.study import Study, StudyError
from meq.tables import Cell, Table

SEED = 0
"""Of all corruptions, whatever the run's own: every arm and every seed of a study sees the same worse inputs."""
KEPT_BYTES = 1 << 30
"""Encoded worse inputs up to this size are kept for the other runs of a study."""
CLEAN = "none"
INPUTS = {"noise": "image", "blur": "image", "typos": "text"}


@dataclass(frozen=True, kw_only=True)
class RobustnessResult:
    """Scores by corruption, one for each draw."""

    split: str
    metric: str
    samples: int
    seed: int
    encoder_size: Mapping[str, int]
    """By modality of pictures: pixels of the shorter side that its encoder reads."""
    clean: float
    inputs: Mapping[str, str]
    """By corruption: what it makes worse."""
    scores: Mapping[str, tuple[float, ...]]

    def score(self, corruption: str) -> float | None:
        """The mean over draws; None if this corruption was not read."""
        if corruption == CLEAN:
            return self.clean
        return statistics.fmean(self.scores[corruption]) if corruption in self.scores else None


@checked_options
@dataclass(frozen=True, kw_only=True)
class Robustness(Measure[RobustnessResult]):
    """The score on clean inputs, and under each corruption of the paper that the data has something for."""

    name: ClassVar[str] = "robustness"
    result: ClassVar[type] = RobustnessResult

    draws: int = DRAWS
    """Of corruptions that are random; blur is the same every time, and is read once."""
    split: str | None = None
    """The test split where it is labelled, else dev."""
    limit: int | None = None
    """Only the first so many examples."""

    def __post_init__(self) -> None:
        for what, count in (("draws", self.draws), ("limit", self.limit)):
            if count is not None and count < 1:
                raise StudyError(f"robustness: {what} must be at least 1, got {count}")

    def check(self, study: Study, prepared: PreparedData) -> None:
        super().check(study, prepared)
        raw = raw_of(prepared, self.name)
        if not any(_touched(raw, corruption) for corruption in STUDY):
            kinds = ", ".join(f"{name!r} ({modality.kind})" for name, modality in raw.modalities.items())
            raise StudyError(f"{raw.name} has neither pictures nor texts that robustness could corrupt: {kinds}")
        if raw.answering:
            raise StudyError(f"{raw.name} has an answer per token, and typos change how many tokens a text has")

    def take(self, trained: TrainedModel) -> RobustnessResult:
        prepared, split = trained.prepared, self.split or trained.reported_split
        raw = raw_of(prepared, self.name)
        applied = [corruption for corruption in STUDY if _touched(raw, corruption)]
        clean = prepared.data.splits[split][: self.limit]
        pictures = {name: encoder for name, encoder in prepared.encoders.items() if encoder.kind in READS["blur"]}
        return RobustnessResult(
            split=split,
            metric=trained.data.metric.name,
            samples=len(clean),
            seed=SEED,
            encoder_size={name: encoder_size(encoder) for name, encoder in pictures.items()},
            clean=trained.score(trained.as_seen(clean)),
            inputs={str(corruption): INPUTS[corruption.kind] for corruption in applied},
            scores={str(corruption): self._scores(trained, corruption, split) for corruption in applied},
        )

    def _scores(self, trained: TrainedModel, corruption: Corruption, split: str) -> tuple[float, ...]:
        """One per draw."""
        drawn = range(self.draws if corruption.is_random else 1)
        worse = (worse_split(trained.prepared, corruption, split=split, draw=draw, limit=self.limit) for draw in drawn)
        return tuple(trained.score(trained.as_seen(examples)) for examples in worse)

    def tables(self, study: Study, results: Results[RobustnessResult]) -> dict[str, Table]:
        return {"robustness": _table(study, results)} if results else {}


def worse_split(
    prepared: PreparedData, corruption: Corruption, *, split: str, draw: int = 0, limit: int | None = None
) -> Split:
    """A split with worse inputs, encoded again; what was encoded for one run is kept for the others, if it is small."""
    raw, clean = raw_of(prepared, Robustness.name), prepared.data.splits[split][:limit]
    kept, key = _KEPT.setdefault(prepared, {}), (corruption, split, draw, limit)
    worse: dict[str, Split] = dict(kept.get(key, {}))
    if not worse:
        originals = list(raw.splits[split][:limit])
        for name in _touched(raw, corruption):  # one by one: pictures of different encoders have different sizes
            size = encoder_size(prepared.encoders[name])
            part = corrupt(only(raw, [name], originals), corruption, draw=draw, seed=SEED, encoder_size=size)
            worse[name] = encode_alike(part, prepared).splits["read"]
        # runs read in the same order, so the oldest stay; what a store has need not be held
        if prepared.places.store or sum(map(_bytes, (*kept.values(), worse))) <= KEPT_BYTES:
            kept[key] = worse

    def make(place: int) -> Example:
        example = clean[place]
        changed = {name: x for each in worse.values() for name, x in each[place].content.items()}
        return replace(example, content={**example.content, **changed})

    return Rows(range(len(clean)), make)


Worse = Mapping[str, Split]
"""By modality: the examples with that modality only."""
Key = tuple[Corruption, str, int, int | None]


_KEPT: WeakKeyDictionary[PreparedData, dict[Key, Worse]] = WeakKeyDictionary()


def _touched(raw: DataSet, corruption: Corruption) -> list[str]:
    return [name for name, modality in raw.modalities.items() if modality.kind in READS[corruption.kind]]


def _bytes(worse: Worse) -> int:
    contents = (x for examples in worse.values() for each in examples for x in each.content.values())
    tensors = (y for x in contents for y in (x if isinstance(x, tuple) else (x,)) if isinstance(y, Tensor))
    return sum(tensor.nbytes for tensor in tensors)


# -- the table ---------------------------------------------------------------------------------------------------------


def _table(study: Study, results: Results[RobustnessResult]) -> Table:
    first, arms = next(iter(results.values())), by_arm(study, results)
    others = [arm for arm in arms if arm != study.reference] if study.reference in arms else []
    inputs = {name: kind for each in results.values() for name, kind in each.inputs.items()}
    rows = []
    for corruption in (CLEAN, *names_in(each.scores for found in arms.values() for each in found)):
        row: dict[str, Cell] = {"input": inputs.get(corruption), "corruption": corruption}
        for arm, taken in arms.items():
            scores = (each.score(corruption) for each in taken)
            row[f"{arm} mean"], row[f"{arm} spread"] = mean_and_spread(scores)
        scored = {run: x for run, each in results.items() if (x := each.score(corruption)) is not None}
        by_seed = {arm: {seed: x for (name, seed), x in scored.items() if name == arm} for arm in arms}
        for arm in others:
            found = paired_difference(study.seeds, by_seed[arm], by_seed[study.reference])
            keys = (f"{arm} difference", f"{arm} difference spread", f"{arm} verdict")
            row |= dict(zip(keys, found, strict=True))
        rows.append(row)
    titles = {f"{arm} mean": arm for arm in arms} | {f"{arm} spread": "spread" for arm in arms}
    for arm in others:
        titles |= {f"{arm} difference": f"{arm} minus {study.reference}", f"{arm} verdict": "verdict"}
        titles |= {f"{arm} difference spread": "its spread"}
    draws = max(len(scores) for each in results.values() for scores in each.scores.values())
    return Table.of(
        f"{study.name}: under corruption ({first.metric} on {first.split}, {first.samples} examples)",
        rows,
        titles=titles,
        signed={f"{arm} difference" for arm in others},
        notes=(
            _meaning(first, draws),
            f"{SPREADS} Difference: mean over paired seeds; called: its absolute value "
            "exceeds twice the sample standard deviation of the paired differences.",
        ),
    )


def _meaning(found: RobustnessResult, draws: int) -> str:
    sizes = ", ".join(f"{size} pixels ({name})" for name, size in found.encoder_size.items())
    return (
        "Noise: its standard deviation, on pixels from 0 to 1; blur: its radius in pixels; both on pictures whose "
        f"shorter side is that of what the encoder looks at, {sizes or 'none'}. Typos: per character. Of noise and "
        f"typos {draws} draws, whose mean is one seed's score; every run read the same worse inputs."
    )
