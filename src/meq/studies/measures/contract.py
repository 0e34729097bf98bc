"""A measure: what is read off a trained run, kept beside its record, and the tables made of it.

A new one is a file with two classes: a frozen dataclass of what is found, and a `Measure` that takes it and shows it;
and one line in `MEASURES`, or `@MEASURES.register("my-measure")` above one of your own.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from meq.data.contract import Batch, DataSet, Example, Modality, Split
from meq.data.transforms import Standardisation, blank
from meq.devices import device_of
from meq.encoders import Encoder
from meq.encoders.builtin import Patches
from meq.encoders.descriptors import SIDE
from meq.encoders.image import PictureRegions
from meq.models.base import FusionModel
from meq.models.iterated import IteratedModel
from meq.records import SCHEMA, SINCE, plain, read_dataclass, typed, write_dataclass
from meq.registry import Registry
from meq.studies.build import PreparedData
from meq.studies.compare import mean, spread
from meq.studies.study import ArmConfig, Run, Study, StudyError, run_place
from meq.tables import Cell, Table
from meq.training.predictions import answer_batch, answer_logits, batched, predict_split
from meq.training.prepare import prepare
from meq.training.record import RunRecord

FOLDER = "measures"
BATCH = 100

Found = Mapping[str, Any]
"""What a measure found, as its file has it."""
Values = Mapping[Run, Found]
"""By arm and seed."""
Result = TypeVar("Result")
Results = Mapping[Run, Result]


@dataclass(frozen=True, kw_only=True)
class MeasureFile:
    """What one measure found on one run."""

    schema: int
    measure: str
    options: Mapping[str, Any]
    weights_sha256: str
    """Of the checkpoint that was looked at."""
    found: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A trained run and the data it was trained on."""

    model: FusionModel
    """The kept weights, in eval mode, with the arm's solver."""
    data: DataSet
    """As the arm sees it."""
    arm: ArmConfig
    record: RunRecord
    prepared: PreparedData

    def batches(self, split: str, *, limit: int | None = None) -> Iterator[Batch]:
        """A split, or its first examples, in batches."""
        check_split(self.data, split)
        return self.collated(self.data.splits[split][:limit])

    def collated(self, examples: Split) -> Iterator[Batch]:
        """Examples in batches, where the model is."""
        return (self.collate(part) for part in batched(examples, BATCH))

    def collate(self, examples: Sequence[Example]) -> Batch:
        return self.data.collate(examples).to(device_of(self.model))

    @property
    def iterated(self) -> IteratedModel | None:
        """The model, if it iterates."""
        return self.model if isinstance(self.model, IteratedModel) else None

    @property
    def reported_split(self) -> str:
        """Where scores are reported: test where it is labelled, else dev, which weights were also chosen on."""
        return "test" if "test" in self.record.metrics else "dev"

    def as_seen(self, examples: Sequence[Example]) -> list[Example]:
        """Encoded examples as the arm sees them: with zeros in the modalities that it does not read."""
        if not self.arm.blank:
            return list(examples)
        return list(blank(replace(self.prepared.data, splits={"read": list(examples)}), self.arm.blank).splits["read"])

    def score(self, examples: Sequence[Example]) -> float:
        """The set's metric on the model's answers to these examples, as the arm sees them."""
        metric = self.data.metric
        if not len(examples):
            raise StudyError(f"{self.data.name}: there are no examples to score")
        if metric.by_sample and not self.data.answering:
            # batch by batch: of thousands of classes, the logits of a split would fill the memory
            total = 0.0
            for part in batched(examples, BATCH):
                batch, output = answer_batch(self.model, part, self.data.widths)
                total += len(part) * metric(answer_logits(output).cpu(), batch.target.cpu())
            return total / len(examples)
        data = replace(self.data, splits={"read": examples})
        found = predict_split(self.model, data, "read", batch_size=BATCH)
        return float(metric(found.logits, found.target))


class Measure(ABC, Generic[Result]):
    """Something to read off trained runs; its options are its fields."""

    name: ClassVar[str]
    result: ClassVar[type]
    """A frozen dataclass, whose fields are the keys of the file. One marked SINCE is left out where it has nothing."""

    split: str | None = None
    """Which examples are read; None where the measure chooses."""

    def check(self, study: Study, prepared: PreparedData) -> None:
        """An error, before anything is trained, where this data cannot be measured."""
        check_split(prepared.data, self.split)

    @abstractmethod
    def take(self, trained: TrainedModel) -> Result | None:
        """None where the measure makes no sense, such as steps of a model that has none."""

    @abstractmethod
    def tables(self, study: Study, results: Results[Result]) -> dict[str, Table]:
        """Tables by name, from what was found on the runs there are; of runs that have nothing, nothing."""

    def typed(self, values: Values) -> dict[Run, Result]:
        """What the files of several runs say."""
        return {
            run: typed(self.result, found, f"{self.name} of {run[0]}, seed {run[1]}") for run, found in values.items()
        }


def as_found(result: Any) -> Any:
    """A result as its file has it: what it has nothing for is left out."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {field: getattr(result, field.name) for field in dataclasses.fields(result)}
        return {
            field.name: as_found(value)
            for field, value in fields.items()
            if not (field.metadata == SINCE and (value is None or value == {}))
        }
    if isinstance(result, Mapping):
        return {key: as_found(value) for key, value in result.items()}
    return [as_found(value) for value in result] if isinstance(result, list | tuple) else result


def check_split(data: DataSet, split: str | None) -> None:
    """An error if there is no such split; None leaves the choice to the measure."""
    if split is not None and split not in data.splits:
        raise StudyError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}")


MEASURES: Registry[type[Measure[Any]]] = Registry(
    "measure",
    {
        "steps": "meq.studies.measures.steps:Steps",
        "fixed-point": "meq.studies.measures.fixed_point:FixedPoint",
        "coupling": "meq.studies.measures.coupling:Coupling",
        "robustness": "meq.studies.measures.robustness:Robustness",
        "grounding": "meq.studies.measures.grounding:Grounding",
        "staircase": "meq.studies.measures.staircase:Staircase",
        "stopping": "meq.studies.measures.stopping:Stopping",
    },
    error=StudyError,
)


def make_measure(name: str, options: Mapping[str, Any]) -> Measure[Any]:
    return MEASURES.get(name)(**options)


def take_measure(name: str, study: Study, trained: TrainedModel) -> MeasureFile:
    """One measure of one run."""
    options, checkpoint = study.measures[name], trained.record.checkpoint
    assert checkpoint is not None
    return MeasureFile(
        schema=SCHEMA,
        measure=name,
        options=plain(dict(options)),
        weights_sha256=checkpoint.sha256,
        # made plain when it is written, and only once: there may be NaN
        found=as_found(make_measure(name, options).take(trained)) or {},
    )


def write_measured(place: Path, measured: MeasureFile) -> None:
    (place / FOLDER).mkdir(exist_ok=True)
    write_dataclass(place / FOLDER / f"{measured.measure}.json", measured)


def is_measured(place: Path, name: str) -> bool:
    return (place / FOLDER / f"{name}.json").is_file()


def read_measured(place: Path, name: str) -> MeasureFile | None:
    """None if it was not taken yet."""
    path = place / FOLDER / f"{name}.json"
    return read_dataclass(MeasureFile, path) if path.is_file() else None


def measured_of(folder: Path, study: Study) -> dict[str, Values]:
    """By measure: what was found on the runs that have it."""
    found: dict[str, Values] = {}
    for name in study.measures:
        taken = {run: read_measured(folder / run_place(*run), name) for run in study.runs()}
        found[name] = {run: each.found for run, each in taken.items() if each is not None and each.found}
    return found


# -- means and spreads over seeds, for tables --------------------------------------------------------------------------


SPREADS = "Mean and spread (sample standard deviation) over seeds."


def by_arm(study: Study, values: Mapping[Run, Result]) -> dict[str, list[Result]]:
    """What was found on the runs of every arm that has any, in the order of the study's arms and seeds."""
    runs = ((arm.name, [(arm.name, seed) for seed in study.seeds]) for arm in study.arms)
    found = {arm: [values[run] for run in planned if run in values] for arm, planned in runs}
    return {arm: taken for arm, taken in found.items() if taken}


def names_in(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """All names that occur, in order of appearance."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def mean_and_spread(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Of the values that are there."""
    numbers = [float(value) for value in values if value is not None]
    return mean(numbers), spread(numbers)


class SeedRow(dict[str, Cell]):
    """A row of a table to which means over seeds are added, each with its spread beside it."""

    def add(self, key: str, values: Iterable[float | None]) -> None:
        self[key], self[f"{key} spread"] = mean_and_spread(values)


def spread_titles(rows: Iterable[Mapping[str, Cell]]) -> dict[str, str]:
    return {key: "spread" for row in rows for key in row if key.endswith(" spread")}


# -- other inputs, made ready as the study's own data was --------------------------------------------------------------


USUAL_SIZE = 224
"""Pixels of a side that picture encoders read, where one does not tell."""


def raw_of(prepared: PreparedData, measure: str) -> DataSet:
    """The set before it was encoded."""
    if prepared.raw is None:
        raise StudyError(
            f"{prepared.data.name} came as features: the measure {measure!r} changes pictures and texts, and there are "
            "none; run it on a set that is encoded"
        )
    return prepared.raw


def encode_alike(data: DataSet, prepared: PreparedData) -> DataSet:
    """Pictures and texts as features, in the scale of the study's own; the set may have some of its modalities only."""
    encoders = {name: encoder for name, encoder in prepared.encoders.items() if name in data.modalities}
    known = prepared.provenance.standardisation
    if known is not None:
        mean = {name: row for name, row in known.mean.items() if name in data.modalities}
        known = Standardisation(mean=mean, std={name: known.std[name] for name in mean})
    return prepare(data, encoders, standardised=known, store=prepared.places.store)[0]


def only(data: DataSet, modalities: Sequence[str], examples: Sequence[Example]) -> DataSet:
    """These examples, and of what they hold these modalities."""
    kept = [
        replace(each, content={name: each.content[name] for name in modalities if name in each.content})
        for each in examples
    ]
    some: dict[str, Modality] = {name: data.modalities[name] for name in modalities}
    return replace(data, splits={"read": kept}, modalities=some)


def encoder_size(encoder: Encoder) -> int:
    """The shorter side, in pixels, of the pictures that an encoder looks at."""
    if isinstance(encoder, Patches):
        return encoder.grid * SIDE
    window = getattr(encoder.encoder if isinstance(encoder, PictureRegions) else encoder, "window", None)
    return USUAL_SIZE if window is None else min(window)
