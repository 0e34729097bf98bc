"""How the answers stand noise, blur and typos: worse inputs, encoded again, read by the kept weights."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor

from meq.core.options import checked_options
from meq.data.contract import DataSet, Example, Rows, Split
from meq.data.corruptions import DRAWS, READS, STUDY, Corruption, corrupt
from meq.experiments.build import Prepared
from meq.experiments.compare import INCOMPLETE, verdict
from meq.experiments.measures.contract import Found, Measure, Trained, Values, check_split
from meq.experiments.measures.encoding import encode_alike, encoder_size, only, raw_of, seen_by_arm
from meq.experiments.measures.steps import reported_split, score_examples
from meq.experiments.measures.summary import SPREADS, arms_in, by_seed, mean_and_spread, names_in, spread
from meq.experiments.render import Cell, Column, Table
from meq.experiments.study import Study, StudyError

SEED = 0
"""Of all corruptions, whatever the run's own: every arm and every seed of a study sees the same worse inputs."""
KEPT_BYTES = 1 << 30
"""Encoded worse inputs up to this size are kept for the other runs of a study."""
CLEAN = "none"
INPUTS = {"noise": "image", "blur": "image", "typos": "text"}


@checked_options
@dataclass(frozen=True, kw_only=True)
class Robustness(Measure):
    """The score on clean inputs, and under each corruption of the paper that the data has something for."""

    name: ClassVar[str] = "robustness"

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

    def check(self, study: Study, prepared: Prepared) -> None:
        check_split(prepared.data, self.split)
        raw = raw_of(prepared, self.name)
        if not any(_touched(raw, corruption) for corruption in STUDY):
            kinds = ", ".join(f"{name!r} ({modality.kind})" for name, modality in raw.modalities.items())
            raise StudyError(f"{raw.name} has neither pictures nor texts that robustness could corrupt: {kinds}")

    def take(self, trained: Trained) -> Found:
        prepared, split = trained.prepared, self.split or reported_split(trained)
        raw = raw_of(prepared, self.name)
        applied = [corruption for corruption in STUDY if _touched(raw, corruption)]
        clean = prepared.data.splits[split][: self.limit]
        return {
            "split": split,
            "metric": trained.data.metric.name,
            "samples": len(clean),
            "seed": SEED,
            "encoder_size": {name: encoder_size(x) for name, x in prepared.encoders.items() if x.kind in READS["blur"]},
            "clean": score_examples(trained, seen_by_arm(clean, trained)),
            "inputs": {str(corruption): INPUTS[corruption.kind] for corruption in applied},
            "scores": {str(corruption): self._scores(trained, corruption, split) for corruption in applied},
        }

    def _scores(self, trained: Trained, corruption: Corruption, split: str) -> list[float]:
        """One per draw."""
        drawn = range(self.draws if corruption.is_random else 1)
        worse = (worse_split(trained.prepared, corruption, split=split, draw=draw, limit=self.limit) for draw in drawn)
        return [score_examples(trained, seen_by_arm(examples, trained)) for examples in worse]

    def tables(self, study: Study, values: Values) -> dict[str, Table]:
        return {"robustness": _table(study, values)} if values else {}


def worse_split(
    prepared: Prepared, corruption: Corruption, *, split: str, draw: int = 0, limit: int | None = None
) -> Split:
    """A split with worse inputs, encoded again; what was encoded for one run is kept for the others, if it is small."""
    raw, clean = raw_of(prepared, Robustness.name), prepared.data.splits[split][:limit]
    shelf, key = _SHELVES.setdefault(prepared, _Shelf()), (corruption, split, draw, limit)
    made = shelf.kept.get(key)
    if made is None:
        originals = list(raw.splits[split][:limit])
        parts = {name: only(raw, [name], originals) for name in _touched(raw, corruption)}
        made = {name: _encoded_worse(prepared, part, corruption, draw=draw) for name, part in parts.items()}
        shelf.keep(key, made, size=0 if prepared.places.store else _bytes(made))
    worse = made

    def make(place: int) -> Example:
        example = clean[place]
        changed = {name: x for each in worse.values() for name, x in each[place].content.items()}
        return replace(example, content={**example.content, **changed})

    return Rows(range(len(clean)), make)


Worse = Mapping[str, Split]
"""By modality: the examples with that modality only."""
Key = tuple[Corruption, str, int, int | None]


@dataclass(eq=False)
class _Shelf:
    """What was encoded for one prepared set, until it is full: runs read in the same order, so the oldest stay."""

    kept: dict[Key, Worse] = field(default_factory=dict)
    size: int = 0

    def keep(self, key: Key, worse: Worse, *, size: int) -> None:
        if self.size + size <= KEPT_BYTES:
            self.kept[key] = worse
            self.size += size


_SHELVES: WeakKeyDictionary[Prepared, _Shelf] = WeakKeyDictionary()


def _encoded_worse(prepared: Prepared, data: DataSet, corruption: Corruption, *, draw: int) -> Split:
    """One modality: pictures of different encoders are corrupted in different sizes."""
    (name,) = data.modalities
    worse = corrupt(data, corruption, draw=draw, seed=SEED, encoder_size=encoder_size(prepared.encoders[name]))
    return encode_alike(worse, prepared).splits["read"]


def _touched(raw: DataSet, corruption: Corruption) -> list[str]:
    return [name for name, modality in raw.modalities.items() if modality.kind in READS[corruption.kind]]


def _bytes(worse: Worse) -> int:
    contents = (x for examples in worse.values() for each in examples for x in each.content.values())
    tensors = (y for x in contents for y in (x if isinstance(x, tuple) else (x,)) if isinstance(y, Tensor))
    return sum(tensor.nbytes for tensor in tensors)


# -- the table ---------------------------------------------------------------------------------------------------------


def _table(study: Study, values: Values) -> Table:
    first = next(iter(values.values()))
    arms = arms_in(study, values)
    columns = [Column(key="input", title="input"), Column(key="corruption", title="corruption")]
    for arm in arms:
        columns += [Column(key=f"{arm} mean", title=arm), Column(key=f"{arm} spread", title="spread")]
    for arm in arms if study.reference in arms else ():
        if arm != study.reference:
            columns += [
                Column(key=f"{arm} difference", title=f"{arm} minus {study.reference}", signed=True),
                Column(key=f"{arm} difference spread", title="its spread"),
                Column(key=f"{arm} verdict", title="verdict"),
            ]
    rows = [_row(study, values, CLEAN)]
    rows += [_row(study, values, corruption) for corruption in names_in(study, values, "scores")]
    draws = max(len(scores) for each in values.values() for scores in each["scores"].values())
    return Table(
        title=f"{study.name}: under corruption ({first['metric']} on {first['split']}, {first['samples']} examples)",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(
            _meaning(first, draws),
            f"{SPREADS} Difference: mean over paired seeds; called: its absolute value "
            "exceeds twice the sample standard deviation of the paired differences.",
        ),
    )


def _meaning(found: Found, draws: int) -> str:
    sizes = ", ".join(f"{size} pixels ({name})" for name, size in found["encoder_size"].items())
    return (
        "Noise: its standard deviation, on pixels from 0 to 1; blur: its radius in pixels; both on pictures whose "
        f"shorter side is that of what the encoder looks at, {sizes or 'none'}. Typos: per character. Of noise and "
        f"typos {draws} draws, whose mean is one seed's score; every run read the same worse inputs."
    )


def _row(study: Study, values: Values, corruption: str) -> tuple[Cell, ...]:
    arms = arms_in(study, values)
    inputs = {name: kind for each in values.values() for name, kind in each["inputs"].items()}
    cells: list[Cell] = [inputs.get(corruption), corruption]
    for arm in arms:
        cells += mean_and_spread([_mean_of_draws(each, corruption) for each in by_seed(study, values, arm)])
    for arm in arms if study.reference in arms else ():
        if arm != study.reference:
            cells += _difference(study, values, arm, corruption)
    return tuple(cells)


def _difference(study: Study, values: Values, arm: str, corruption: str) -> tuple[Cell, Cell, Cell]:
    """Arm minus reference: mean and spread over paired seeds, and whether it is called."""
    both = [
        (values[arm, seed], values[study.reference, seed])
        for seed in study.seeds
        if (arm, seed) in values and (study.reference, seed) in values
    ]
    found = [(_mean_of_draws(mine, corruption), _mean_of_draws(theirs, corruption)) for mine, theirs in both]
    pairs = [mine - theirs for mine, theirs in found if mine is not None and theirs is not None]
    if len(pairs) < len(study.seeds):
        return (statistics.fmean(pairs) if pairs else None), spread(pairs), INCOMPLETE
    return statistics.fmean(pairs), spread(pairs), verdict(pairs)


def _mean_of_draws(found: Found, corruption: str) -> float | None:
    if corruption == CLEAN:
        return float(found["clean"])
    scores = found["scores"].get(corruption)
    return None if scores is None else statistics.fmean(scores)
