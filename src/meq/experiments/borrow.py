"""Runs that another study has already made are taken over, with a note of where they come from."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from meq.experiments.measures.contract import FOLDER
from meq.experiments.study import Study, StudyError, read_study, run_place
from meq.files import sha256, write_bytes
from meq.training.plain import dumps, loads, typed
from meq.training.record import RECORD, read_record

BORROWED = "borrowed.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Borrowed:
    """Where a run was made."""

    schema: int
    study: str
    arm: str
    record_sha256: str


def borrow_runs(study: Study, folder: Path, sources: Iterable[Path], console: Console) -> None:
    """Take over every run that is still to be begun here and is over there."""
    for source in sources:
        if source.resolve() == folder.resolve():
            raise StudyError(f"{source} is the study's own folder: its runs are resumed without being asked for")
        other = read_study(source)
        if other.data != study.data:
            raise StudyError(
                f"{source} ran on {other.data}, this study runs on {study.data}: its runs cannot be reused"
            )
        for arm, seed in study.runs():
            place = folder / run_place(arm, seed)
            match = _same_arm(other, study, arm, seed)
            if match is not None and not place.exists() and _is_over(source / run_place(match, seed)):
                _copy(source / run_place(match, seed), place, other.name, match)
                console.print(f"{arm}, seed {seed}: taken from {other.name}", highlight=False)


def read_borrowed(place: Path) -> Borrowed | None:
    path = place / BORROWED
    return typed(Borrowed, loads(path.read_bytes(), str(path)), str(path)) if path.is_file() else None


def _same_arm(other: Study, study: Study, arm: str, seed: int) -> str | None:
    """The other study's arm that is trained in just the same way, whatever its name; floors would be its own."""
    wanted = study.arm(arm)
    if wanted.floor_from or (wanted.match and not _same_target(other, study, wanted.match.to)):
        return None
    for each in other.arms:
        same = replace(each, name=arm) == wanted and seed in other.seeds
        if same and other.config(each.name, seed) == study.config(arm, seed):
            return each.name
    return None


def _same_target(other: Study, study: Study, name: str) -> bool:
    """Matched sizes agree only if what they are matched to does."""
    return any(each == study.arm(name) for each in other.arms)


def _is_over(place: Path) -> bool:
    return (place / RECORD).is_file() and read_record(place).scored


def _copy(source: Path, place: Path, study: str, arm: str) -> None:
    """Whole or not at all; measures belong to the study that asked for them."""
    writing = place.parent / f".{place.name}.writing"
    shutil.rmtree(writing, ignore_errors=True)
    shutil.copytree(source, writing, ignore=shutil.ignore_patterns(FOLDER, "checkpoints", BORROWED))
    note = Borrowed(schema=SCHEMA, study=study, arm=arm, record_sha256=sha256(writing / RECORD))
    write_bytes(writing / BORROWED, dumps(note).encode())
    writing.rename(place)
