"""A measure: plain numbers read off a trained run, kept beside its record, and the tables made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from meq.data.contract import Batch, DataSet, Example, collate
from meq.experiments.build import Prepared
from meq.experiments.render import Table
from meq.experiments.study import ArmConfig, Study, StudyError
from meq.files import write_bytes
from meq.models.base import FusionModel
from meq.models.iterated import Iterated
from meq.training.plain import FormatError, dumps, loads, typed
from meq.training.record import RunRecord

FOLDER = "measures"
SCHEMA = 1
BATCH = 100

Found = Mapping[str, Any]
Values = Mapping[tuple[str, int], Found]
"""By arm and seed: what one measure found."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one measure found on one run."""

    schema: int
    measure: str
    options: Mapping[str, Any]
    weights_sha256: str
    """Of the checkpoint that was looked at."""
    found: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained run and the data it was trained on."""

    model: FusionModel
    """The kept weights, in eval mode, with the arm's solver."""
    data: DataSet
    """As the arm sees it."""
    arm: ArmConfig
    record: RunRecord
    prepared: Prepared

    def batches(self, split: str, *, limit: int | None = None) -> Iterator[Batch]:
        """A split, or its first examples, in batches."""
        check_split(self.data, split)
        return batched(list(self.data.splits[split][:limit]), self.data)

    @property
    def iterated(self) -> Iterated | None:
        """The model, if it iterates."""
        return self.model if isinstance(self.model, Iterated) else None


class Measure(ABC):
    """Its options are its fields."""

    name: ClassVar[str]

    def check(self, study: Study, prepared: Prepared) -> None:
        """An error, before anything is trained, where this data cannot be measured; nothing is checked by default."""
        return

    @abstractmethod
    def take(self, trained: Trained) -> Found | None:
        """Plain numbers; None where the measure makes no sense, such as steps of a model that has none."""

    @abstractmethod
    def tables(self, study: Study, values: Values) -> dict[str, Table]:
        """Tables by name, from what was found on the runs there are; of runs that have nothing, nothing."""


def check_split(data: DataSet, split: str | None) -> None:
    """None is any split that there is."""
    if split is not None and split not in data.splits:
        raise StudyError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}")


def batched(examples: list[Example], data: DataSet, size: int = BATCH) -> Iterator[Batch]:
    return (collate(examples[start : start + size], data.widths) for start in range(0, len(examples), size))


def write_measured(place: Path, measured: Measured) -> None:
    (place / FOLDER).mkdir(exist_ok=True)
    write_bytes(place / FOLDER / f"{measured.measure}.json", dumps(measured).encode())


def read_measured(place: Path, name: str) -> Measured | None:
    """None if it was not taken yet."""
    path = place / FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    measured = typed(Measured, loads(path.read_bytes(), str(path)), str(path))
    if measured.schema != SCHEMA:
        raise FormatError(f"{path}: the field 'schema' is {measured.schema}, this version of meq reads {SCHEMA}")
    return measured
