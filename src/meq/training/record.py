"""What a run leaves behind: how far it came, and the record of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.standardise import Standardisation
from meq.files import write_bytes
from meq.models.base import FusionModel
from meq.objectives import Objective
from meq.training.config import TrainConfig
from meq.training.environment import Session
from meq.training.plain import FormatError, dumps, loads, plain, typed
from meq.training.request import RunRequest

RECORD = "record.json"
SCHEMA = 1
FINISHED, STOPPED, FAILED, INTERRUPTED = "finished", "stopped by an alarm", "failed", "interrupted"
LATER = ("solver", "backward")
"""Options of models that records of older versions do not name."""
STATUSES = ("running", INTERRUPTED, FINISHED, STOPPED, FAILED)


SHARING = ("batch_size", "accumulate")
"""How an update is shared out, with the number of processes."""


@dataclass
class Progress:
    """How far a run has come: all of it goes into every checkpoint."""

    epoch: int = 0
    position: int = 0
    """Updates done in this epoch."""
    step: int = 0
    """Updates done in all."""
    loss_sum: float = 0.0
    seconds: float = 0.0
    curves: list[dict[str, Any]] = field(default_factory=list)
    vitals: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Which encoder made the features of a modality."""

    name: str
    revision: str
    sha256: str
    """Of all that decides the features: weights, preprocessing, tokeniser, options."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the features and the run come from, as far as whoever starts it knows."""

    study: str | None = None
    arm: str | None = None
    source_fingerprint: str | None = None
    """Of the data set before it was encoded; None where it came as features."""
    standardisation: Standardisation | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    """By modality that is encoded: image, regions, text or audio."""
    request: RunRequest | None = None
    """What to read to have the same data again; None where it was not asked for by name or path."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The data a run saw."""

    name: str
    fingerprint: str
    """Of the features that were trained on, with ids and targets."""
    source_fingerprint: str | None
    encoders: Mapping[str, EncoderFacts]
    splits: Mapping[str, int]
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ObjectiveFacts:
    task: str
    penalties: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Selected:
    """Which weights were kept; no epoch while there is none."""

    by: str
    split: str
    metric: str
    epoch: int | None
    value: float | None


@dataclass(frozen=True, kw_only=True)
class HashedFile:
    """A file of the run's folder."""

    file: str
    """Relative to the folder, so that the folder can be moved."""
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RunError:
    """Why a run failed, or what interrupted it: a full disk, a device without memory."""

    kind: str
    message: str
    batch_ids: tuple[str, ...]
    """The examples it happened on, where that is known."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything that made a run, and everything that came out. Every field is required."""

    schema: int
    status: str
    study: str | None
    arm: str | None
    config: Mapping[str, Any]
    """The whole TrainConfig, the seed included."""
    model: Mapping[str, Any]
    """Class, version of meq, and all options."""
    parameters: int
    block_parameters: int
    """All but injections, readout and head."""
    objective: ObjectiveFacts
    data: DataFacts
    metric: str
    """What weights are selected by."""
    processes: int
    sessions: tuple[Session, ...]
    selected: Selected
    curves: tuple[Mapping[str, Any], ...]
    vitals: tuple[Mapping[str, Any], ...]
    alarms: tuple[Mapping[str, Any], ...]
    metrics: Mapping[str, Mapping[str, float]]
    """By split and name: the selected weights' scores, and "loss", the mean loss of the task."""
    predictions: Mapping[str, HashedFile]
    """By split: what those scores are computed from."""
    checkpoint: HashedFile | None
    """The selected weights; None before the end."""
    steps: int
    wall_seconds: float
    error: RunError | None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"a run's status cannot be {self.status!r}: {nearest(self.status, STATUSES)}")

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def scored(self) -> bool:
        """It came to its end, and has scores."""
        return self.status in (FINISHED, STOPPED)

    @property
    def over(self) -> bool:
        """There is nothing to resume."""
        return self.scored or self.status == FAILED


def write_record(folder: Path, record: RunRecord) -> None:
    write_bytes(folder / RECORD, dumps(record).encode())


def read_record(folder: Path) -> RunRecord:
    """The record of a run's folder; what is missing, unknown or of another type in it is an error that names it."""
    path = folder / RECORD
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise FormatError(f"{folder} has no {RECORD}: it is not the folder of a run") from error
    value = loads(content, str(path))
    schema = value.get("schema") if isinstance(value, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise FormatError(f"{path}: written in format {schema}, this version of meq reads up to {SCHEMA}; upgrade meq")
    if schema is None:
        raise FormatError(f"{path}: the field 'schema' is missing: not a run record, or one from before version 1")
    return typed(RunRecord, value, str(path))


def differences(began: RunRecord, now: RunRecord) -> dict[str, list[str]]:
    """In what the beginning of a run and its continuation are not the same run: by part, the fields that differ.

    How an update is shared out among processes and micro-batches may change, as when the memory was too small: the
    update sees the same samples. How many it sees may not.
    """
    found: dict[str, list[str]] = {}
    for part in ("study", "arm", "config", "model", "objective", "data"):
        old, new = plain(getattr(began, part)), plain(getattr(now, part))
        if part == "model":
            old = _with_later_options(old, new)
        names = [name for name in new if old.get(name) != new[name]] if isinstance(new, dict) else [part]
        if part == "config" and _per_update(began) == _per_update(now):
            names = [name for name in names if name not in SHARING]
        if old != new and names:
            found[part] = names
    if "config" not in found and _per_update(began) != _per_update(now):
        found["processes"] = ["processes"]
    return found


def _with_later_options(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Options that older records do not name: their runs took them from the same study as now."""
    added = {name: new["options"][name] for name in LATER if name in new["options"] and name not in old["options"]}
    return {**old, "options": {**old["options"], **added}}


def _per_update(record: RunRecord) -> int:
    sizes = [int(record.config[name]) for name in SHARING]
    return sizes[0] * sizes[1] * record.processes


def holds_scores(folder: Path) -> bool:
    """Whether a run in this folder came to its end: what it wrote is not to be written over."""
    return (folder / RECORD).is_file() and read_record(folder).scored


def data_facts(data: DataSet, fingerprint: str, provenance: Provenance) -> DataFacts:
    return DataFacts(
        name=data.name,
        fingerprint=fingerprint,
        source_fingerprint=provenance.source_fingerprint,
        encoders=encoders_of(data),
        splits={name: len(split) for name, split in data.splits.items()},
        facts=dict(data.facts),
    )


def encoders_of(data: DataSet) -> dict[str, EncoderFacts]:
    """By modality, as encoding has left it in the facts; none for a set that came as features."""
    names, made = data.facts.get("encoders", {}), data.facts.get("features", {})
    return {
        name: EncoderFacts(name=encoder, revision=made[name]["revision"], sha256=made[name]["weight_hash"])
        for name, encoder in names.items()
    }


def blank_record(
    model: FusionModel,
    objective: Objective,
    data: DataFacts,
    config: TrainConfig,
    provenance: Provenance,
    *,
    metric: str,
    processes: int,
) -> RunRecord:
    """A run that has not done anything yet."""
    penalties = tuple(repr(penalty) for penalty in objective.penalties)
    return RunRecord(
        schema=SCHEMA,
        status="running",
        study=provenance.study,
        arm=provenance.arm,
        config=config.to_json(),
        model=model.to_config(),
        parameters=model.count_parameters(),
        block_parameters=model.count_parameters("block"),
        objective=ObjectiveFacts(task=objective.task, penalties=penalties),
        data=data,
        metric=metric,
        processes=processes,
        sessions=(),
        selected=selected(Progress(), config.select, metric),
        curves=(),
        vitals=(),
        alarms=(),
        metrics={},
        predictions={},
        checkpoint=None,
        steps=0,
        wall_seconds=0.0,
        error=None,
    )


def selected(progress: Progress, select: str, metric: str) -> Selected:
    chosen = progress.best if select == "best" else None
    if progress.curves and (select == "last" or chosen is None):  # no epoch had a number: the last weights are kept
        chosen = {"epoch": progress.curves[-1]["epoch"], "value": progress.curves[-1][metric]}
    chosen = chosen or {"epoch": None, "value": None}
    return Selected(by=select, split="dev", metric=metric, epoch=chosen["epoch"], value=chosen["value"])
