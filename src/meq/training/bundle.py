"""What a model needs besides its weights to answer new questions; it lies beside them, as `task.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meq.data.contract import DataSet
from meq.data.standardise import Standardisation
from meq.training.files import sha256, write_bytes
from meq.training.plain import FormatError, dumps, loads, typed
from meq.training.record import EncoderFacts, Provenance

TASK = "task.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the model was trained for, and what is done to an example before the model sees it."""

    schema: int
    data: str
    data_fingerprint: str
    source_fingerprint: str | None
    labels: tuple[str, ...]
    head: str
    metric: str
    widths: Mapping[str, int]
    encoders: Mapping[str, EncoderFacts]
    standardisation: Standardisation | None
    weights_sha256: str


def make_task(data: DataSet, fingerprint: str, provenance: Provenance, *, weights: Path) -> Task:
    return Task(
        schema=SCHEMA,
        data=data.name,
        data_fingerprint=fingerprint,
        source_fingerprint=provenance.source_fingerprint,
        labels=tuple(data.labels),
        head=data.head,
        metric=data.metric.name,
        widths=data.widths,
        encoders=dict(provenance.encoders),
        standardisation=provenance.standardisation,
        weights_sha256=sha256(weights),
    )


def write_task(folder: Path, task: Task) -> None:
    write_bytes(folder / TASK, dumps(task).encode())


def read_task(path: Path) -> Task:
    """A `task.json`; a field that is missing, unknown or of another type is an error that names it."""
    value = loads(path.read_bytes(), str(path))
    schema = value.get("schema") if isinstance(value, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise FormatError(f"{path}: written in format {schema}, this version of meq reads up to {SCHEMA}; upgrade meq")
    return typed(Task, value, str(path))


def check_weights(task: Task, weights: Path) -> None:
    if sha256(weights) != task.weights_sha256:
        raise FormatError(f"{weights} is not the file that was saved with {TASK}: its SHA-256 differs")
