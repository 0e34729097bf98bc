"""What a run leaves behind: the record of it, the request for its data, and where it was trained."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meq.data.context import Context, tiny_split
from meq.data.request import DataRequest
from meq.data.transforms import Standardisation
from meq.options import nearest
from meq.records import (
    SCHEMA,
    SINCE,
    FormatError,
    dumps,
    plain,
    read_dataclass,
    read_sealed,
    write_bytes,
    write_sealed,
)
from meq.training.config import TrainConfig
from meq.version import __version__

if TYPE_CHECKING:
    import torch

    from meq.data.contract import DataSet
    from meq.models.base import FusionModel
    from meq.objectives import Objective
    from meq.training.profile import Profile

RECORD, REQUEST = "record.json", "request.json"
FINISHED, STOPPED, FAILED, INTERRUPTED = "finished", "stopped by an alarm", "failed", "interrupted"
STATUSES = ("running", INTERRUPTED, FINISHED, STOPPED, FAILED)
LATER = ("solver", "backward", "answering")
"""Options of models that records of older versions do not name."""
SHARING = ("batch_size", "accumulate")
"""How an update is shared out, with the number of processes."""
SAME_SCORE = 1e-6
"""Relative: the same sums, on another processor, end in other last digits."""
PERFECT = 1.0
"""What no score can be better than, of metrics that have such a bound."""
PACKAGE = Path(__file__).resolve().parents[1]
RECORDED = ("torch", "numpy", "accelerate", "safetensors", "pyarrow")
"""Packages whose versions a record states."""


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
    ended: str | None = None
    """Why training stopped before its last epoch, in words; None while it goes on, and where an alarm stopped it."""
    since: int = 0
    """The epoch that patience counts from: where a finished run was trained further, the first one of those."""


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Which encoder made the features of a modality."""

    name: str
    revision: str
    sha256: str
    """Of all that decides the features: weights, preprocessing, tokeniser, options."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the features and the run come from, as far as the caller of `fit` knows."""

    study: str | None = None
    arm: str | None = None
    source_fingerprint: str | None = None
    """Of the data set before it was encoded; None where it came as features."""
    standardisation: Standardisation | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    """By modality that is encoded: image, regions, text or audio."""
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By modality that is encoded: how to make its encoder again."""
    request: RunRequest | None = None
    """What to read to have the same data again; None where it was not asked for by name or path."""
    profile: Profile | None = None
    """How the data looked, for comparison with new data."""


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
    class_weights: tuple[float, ...] = field(default=(), metadata=SINCE)
    """One per label; none where all count alike."""
    label_smoothing: float = field(default=0.0, metadata=SINCE)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which epoch's weights were kept, and by which score; None before the first epoch."""

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
    """Everything that made a run, and everything that came out. Fields of later versions have defaults."""

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
    selected: Selection
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
    ending: str | None = field(default=None, metadata=SINCE)
    """Where and why training stopped before its last epoch; None where it did not."""
    context: Mapping[str, Context] = field(default_factory=dict, metadata=SINCE)
    """By split: what to hold its scores against."""
    notes: tuple[str, ...] = field(default=(), metadata=SINCE)
    """What to know before the scores are relied on, in sentences."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"a run's status cannot be {self.status!r}: {nearest(self.status, STATUSES)}")

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def scored(self) -> bool:
        """The run ended, by itself or by an alarm, and has scores."""
        return self.status in (FINISHED, STOPPED)

    @property
    def over(self) -> bool:
        """The run ended or failed: there is nothing to resume."""
        return self.scored or self.status == FAILED


def write_record(folder: Path, record: RunRecord) -> None:
    write_bytes(folder / RECORD, record_text(record).encode())


def record_text(record: RunRecord) -> str:
    """A record as it is written: fields of later versions only where they say something, as old ones have none."""
    return dumps(_lean(record))


def _lean(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _lean(getattr(value, each.name)) for each in fields(value) if not _unset(value, each)}
    if isinstance(value, Mapping):
        return {name: _lean(each) for name, each in value.items()}
    return [_lean(each) for each in value] if isinstance(value, tuple | list) else value


def _unset(value: Any, later: Field[Any]) -> bool:
    default = later.default if later.default_factory is MISSING else later.default_factory()
    return bool(later.metadata) and getattr(value, later.name) == default


def read_record(folder: Path) -> RunRecord:
    """The record of a run's folder; what is missing, unknown or of another type in it is an error that names it."""
    try:
        return read_dataclass(RunRecord, folder / RECORD)
    except FileNotFoundError as error:
        raise FormatError(f"{folder} has no {RECORD}: it is not the folder of a run") from error


def differences(began: RunRecord, now: RunRecord) -> dict[str, list[str]]:
    """The fields, by part of the record, in which a resumed run differs from what was begun.

    How an update is shared out among processes and micro-batches may change, as when the memory was too small: the
    update sees the same samples. How many it sees may not.
    """
    found: dict[str, list[str]] = {}
    for part in ("study", "arm", "config", "model", "objective", "data"):
        old, new = plain(getattr(began, part)), plain(getattr(now, part))
        if part == "model":  # options that older records do not name: their runs took them from the same study as now
            later = {name: new["options"][name] for name in LATER if name in new["options"]}
            old = {**old, "options": {**later, **old["options"]}}
        names = [name for name in new if old.get(name) != new[name]] if isinstance(new, dict) else [part]
        if part == "config" and _per_update(began) == _per_update(now):
            names = [name for name in names if name not in SHARING]
        if old != new and names:
            found[part] = names
    if "config" not in found and _per_update(began) != _per_update(now):
        found["processes"] = ["processes"]
    return found


def _per_update(record: RunRecord) -> int:
    sizes = [int(record.config[name]) for name in SHARING]
    return sizes[0] * sizes[1] * record.processes


def same_score(ours: float, theirs: float) -> bool:
    """Whether a score that was computed again is the recorded one."""
    both_nan = math.isnan(ours) and math.isnan(theirs)
    return both_nan or math.isclose(ours, theirs, rel_tol=SAME_SCORE, abs_tol=SAME_SCORE)


def holds_scores(folder: Path) -> bool:
    """Whether a finished run lies in this folder, which must not be overwritten."""
    return (folder / RECORD).is_file() and read_record(folder).scored


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
    data: DataSet,
    config: TrainConfig,
    provenance: Provenance,
    *,
    processes: int,
) -> RunRecord:
    """The record of a run before its first step."""
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
        objective=ObjectiveFacts(
            task=objective.task,
            penalties=penalties,
            class_weights=objective.class_weights,
            label_smoothing=objective.label_smoothing,
        ),
        data=DataFacts(
            name=data.name,
            fingerprint=data.fingerprint(),
            source_fingerprint=provenance.source_fingerprint,
            encoders=encoders_of(data),
            splits={name: len(split) for name, split in data.splits.items()},
            facts=dict(data.facts),
        ),
        metric=data.metric.name,
        processes=processes,
        sessions=(),
        selected=selected(Progress(), config.select, data.metric.name),
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


def notes_on(record: RunRecord, dev: int) -> tuple[str, ...]:
    """What to know of a scored run before its scores are relied on: a tiny dev split, and training without progress."""
    found = [tiny_split("dev", dev)]
    best, context, curve = record.selected.value, record.context.get("dev"), record.curves
    scores = [entry[record.metric] for entry in curve]
    if best is not None and context is not None and context.constant is not None and best <= context.constant:
        found.append(
            f"no progress: {record.metric} on dev was never above {context.constant:.4f}, what always answering "
            f"{context.majority!r} gives. Give it more epochs, another learning rate or more data; or the inputs do "
            "not tell the label"
        )
    elif len(scores) > 1 and scores[0] < PERFECT and not any(score > scores[0] for score in scores[1:]):
        found.append(
            f"no progress after the first epoch: {record.metric} on dev was never better than at epoch 0, "
            f"{scores[0]:.4f}. A lower learning rate, or weight decay and dropout, may help"
        )
    return tuple(each for each in found if each is not None)


def selected(progress: Progress, select: str, metric: str) -> Selection:
    chosen = progress.best if select == "best" else None
    if progress.curves and (select == "last" or chosen is None):  # no epoch had a number: the last weights are kept
        chosen = {"epoch": progress.curves[-1]["epoch"], "value": progress.curves[-1][metric]}
    chosen = chosen or {"epoch": None, "value": None}
    return Selection(by=select, split="dev", metric=metric, epoch=chosen["epoch"], value=chosen["value"])


# -- the request for data ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunRequest(DataRequest):
    """The data that a run was asked to train on, and what else decides its features. Paths are as they were given."""

    schema: int = SCHEMA
    encoders: Mapping[str, str] = field(default_factory=dict)
    """By kind of content, as `meq.encoders.catalogue.make_encoder` takes them: a name, or a folder."""
    store: Path | None = None
    """The feature store."""
    skip_bad: bool = False


def write_request(folder: Path, request: RunRequest) -> None:
    write_sealed(folder / REQUEST, request)


def read_request(folder: Path) -> RunRequest | None:
    """The request of a run's folder; None where it has none, as with runs of a study or of an older version."""
    path = folder / REQUEST
    return read_sealed(RunRequest, path) if path.is_file() else None


# -- versions, the working copy's commit, the machine ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The working copy that the code came from."""

    sha: str
    dirty: bool
    """The package's folder differs from that commit, so the commit alone does not give the code."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The machine, as far as it can decide a result or its cost."""

    device: str
    """cpu, cuda, mps, ..."""
    name: str
    processors: int
    threads: int
    system: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """One start of a run: its beginning, or a later time it was resumed."""

    step: int
    """Updates that were done before."""
    started: str
    """UTC, ISO 8601."""
    versions: Mapping[str, str]
    commit: Commit | None
    """None where the code is an installed package, not a working copy."""
    hardware: Hardware
    epochs: int | None = field(default=None, metadata=SINCE)
    """How many epochs, in all, the run was to have; a later session may ask for more than the one before."""


def session(step: int, device: torch.device, epochs: int | None = None) -> Session:
    """What is true here and now."""
    return Session(
        step=step,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        commit=commit_of(PACKAGE),
        hardware=hardware(device),
        epochs=epochs,
    )


def versions() -> dict[str, str]:
    found = {"meq": __version__, "python": platform.python_version()}
    for name in RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit_of(folder: Path) -> Commit | None:
    """The commit that a folder of code is checked out from; None if git does not track it.

    A package installed into an environment that lies inside some repository is not that repository's code.
    """
    if not _git(folder, "ls-files", "--", "."):
        return None
    sha = _git(folder, "rev-parse", "--verify", "HEAD")
    return None if not sha else Commit(sha=sha, dirty=bool(_git(folder, "status", "--porcelain", "--", ".")))


def _git(folder: Path, *arguments: str) -> str:
    """What git says, or nothing: no git and no repository are the same to a record."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def hardware(device: torch.device) -> Hardware:
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = named[0] if named else platform.processor() or platform.machine()
    return Hardware(
        device=device.type,
        name=torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        processors=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
    )
