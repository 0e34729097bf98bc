"""A study: a data set, arms and seeds. All of it is plain values, kept in the study's folder as `study.json`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meq.options import checked_options, nearest
from meq.records import SCHEMA, SINCE, dumps, plain, read_dataclass
from meq.studies.paper import figures
from meq.tables import Cell, Table
from meq.training.config import TrainConfig
from meq.training.record import RECORD, read_record

STUDY, RUNS, TABLES = "study.json", "runs", "tables"
PAPER, PAPER_FILE = "paper", "paper.json"
"""What all studies of the paper together are called on the command line."""
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
MATCHES = ("model", "block", "flops")
OWN = ("seed", "trackers")
"""Fields of TrainConfig that an arm cannot set: the first is the study's, the second is nobody's result."""


Run = tuple[str, int]
"""An arm and a seed."""


class StudyError(ValueError):
    """A study that cannot be run, or a folder that holds none; the message says what to do."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data, with which options; where its folder lies is told when the study is run."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    encoders: Mapping[str, str] = field(default_factory=dict)
    """By modality; what is not named here is encoded by the built-in encoders."""
    standardise: bool = False
    limit: int | None = field(default=None, metadata=SINCE)
    """Only the first so many examples of each split."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class MatchedSize:
    """A size that is chosen so that an arm costs what another one does."""

    to: str
    """The other arm."""
    size: str = "hidden"
    """The option that is chosen: mostly the inner width. `dim` is the width of the states, and with it that of all that
    feeds and reads them; being a multiple of the heads, it is chosen first, and the inner width makes up for the
    rest."""
    part: str = "model"
    """What is to be equal: the parameters of the whole `model` or of its `block`, or the `flops` of a sample."""

    def __post_init__(self) -> None:
        if self.part not in MATCHES:
            raise StudyError(f"an arm cannot be matched in {self.part!r}: {nearest(self.part, MATCHES)}")


@checked_options
@dataclass(frozen=True, kw_only=True)
class ArmConfig:
    """One of the things compared: a model, its objective, and where its training differs from the others'."""

    name: str
    model: str
    """A name of `meq.training.arms.ARMS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the model; one that it does not have is an error."""
    penalties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, see `meq.objectives.PENALTIES`, with their options."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainConfig in which this arm differs."""
    match: MatchedSize | None = field(default=None, metadata=SINCE)
    blank: tuple[str, ...] = field(default=(), metadata=SINCE)
    """Modalities that are zero for this arm, in training and in every evaluation."""
    solver: str | None = field(default=None, metadata=SINCE)
    """A name of `meq.core.SOLVERS` in small letters; the model's own damped iteration unless given."""
    backward: str | None = field(default=None, metadata=SINCE)
    """A name of `meq.core.BACKWARDS` in small letters; unrolled unless given."""
    floor_from: str | None = field(default=None, metadata=SINCE)
    """The arm whose measured cross-modal blocks, seed by seed, become the floors of this one's cross-floor penalty."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        known = [each.name for each in dataclasses.fields(TrainConfig) if each.name not in OWN]
        for name in self.train:
            if name not in known:
                raise StudyError(f"the arm {self.name!r} cannot set {name!r} for training: {nearest(name, known)}")


@checked_options
@dataclass(frozen=True, kw_only=True)
class Study:
    """Every arm with every seed on one data set."""

    name: str
    question: str
    """What it asks, in one line: the title of its tables."""
    data: DataConfig
    arms: tuple[ArmConfig, ...]
    seeds: tuple[int, ...]
    reference: str
    """The arm that the others are compared with."""
    train: TrainConfig = field(default_factory=TrainConfig)
    paper: str | None = None
    """Which published figures can be shown beside it, see `meq.studies.paper.PAPER`."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=SINCE)
    """Arms of which the best one, by its mean on dev, is shown as one line more: {"best attention": (...)}."""
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata=SINCE)
    """What is read off every trained run, with its options: see `meq.studies.measures`."""
    notes: tuple[str, ...] = field(default=(), metadata=SINCE)
    """Sentences beside its tables: which arms there cannot be on this data set, or are there in another form."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        names = [arm.name for arm in self.arms]
        for words, values in (("arm", names), ("seed", list(self.seeds))):
            if not values or len(set(values)) < len(values):
                raise StudyError(f"the study {self.name!r} needs at least one {words}, and each once; got {values}")
        figures(self.paper)
        if self.reference not in names:
            raise StudyError(
                f"{self.name!r} has no arm {self.reference!r} to refer to: {nearest(self.reference, names)}"
            )
        mentioned = [name for group in self.groups.values() for name in group]
        mentioned += [arm.match.to for arm in self.arms if arm.match] + [
            x for arm in self.arms if (x := arm.floor_from)
        ]
        for name in mentioned:
            if name not in names:
                raise StudyError(f"{self.name!r} mentions an arm that it does not have: {nearest(name, names)}")

    def arm(self, name: str) -> ArmConfig:
        return next(arm for arm in self.arms if arm.name == name)

    def config(self, arm: str, seed: int) -> TrainConfig:
        """The whole training recipe of one run."""
        return dataclasses.replace(self.train, **{**self.arm(arm).train, "seed": seed})

    def runs(self) -> Iterator[Run]:
        """All runs in the order they are made: seed by seed, so that pairs are complete early."""
        return ((arm.name, seed) for seed in self.seeds for arm in self.arms)

    def needs(self, arm: str, seed: int) -> Run | None:
        """The run that must be over before this one can begin."""
        source = self.arm(arm).floor_from
        return None if source is None else (source, seed)


def run_place(arm: str, seed: int) -> str:
    """Where a run lies in the study's folder."""
    return f"{RUNS}/{arm}/seed-{seed}"


def study_text(study: Study) -> str:
    return dumps({"schema": SCHEMA, **plain(study)})


def is_paper(folder: Path) -> bool:
    """Whether the folder holds all studies of the paper together; known without reading any."""
    return (folder / PAPER_FILE).is_file()


def read_study(folder: Path) -> Study:
    """The study of a folder."""
    path = folder / STUDY
    if not path.is_file():
        what = "does not exist" if not folder.exists() else f"has no {STUDY}"
        raise StudyError(
            f"{folder} is not the folder of a study: it {what}. Expected {STUDY}, manifest.json, {RUNS}/ and "
            f"{TABLES}/, as `meq study run NAME --out FOLDER` writes them"
        )
    return read_dataclass(Study, path)


def status_table(folder: Path, study: Study) -> Table:
    """How far a study has come: one line per planned run, in the order they are made."""
    rows: list[dict[str, Cell]] = []
    over = 0
    for arm, seed in study.runs():
        place = folder / run_place(arm, seed)
        row: dict[str, Cell] = {"arm": arm, "seed": str(seed), "status": "not begun"}
        if (place / RECORD).is_file():
            record = read_record(place)
            over += record.over
            # a process that was killed had no time to say so
            row["status"] = "running, or killed" if record.status == "running" else record.status
            row["epochs"] = f"{len(record.curves)} of {record.config['epochs']}"
            row |= {"best": record.selected.value, "wall_seconds": record.wall_seconds, "alarms": len(record.alarms)}
        rows.append(row)
    return Table.of(
        f"{study.name}: {over} of {len(rows)} runs are over",
        rows,
        keys=("arm", "seed", "status", "epochs", "best", "wall_seconds", "alarms"),
        titles={"best": "best on dev", "wall_seconds": "seconds"},
        digits={"wall_seconds": 1},
    )


def differences(old: Study, new: Study) -> list[str]:
    """The fields in which two studies differ; notes are words alone."""
    before, after = plain(old), plain(new)
    return [name for name in after if name != "notes" and before[name] != after[name]]


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise StudyError(
            f"{name!r} cannot name a study or an arm: it becomes a folder, so use a-z, 0-9 and single hyphens"
        )
