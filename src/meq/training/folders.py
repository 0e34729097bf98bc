"""Where a run goes that nobody has given a place: `runs/NAME`, numbered where that is taken."""

from __future__ import annotations

import re
from pathlib import Path

from meq.training.record import RECORD, read_record

RUNS = Path("runs")


def new_folder(data: str, *, runs: Path = RUNS) -> Path:
    """A folder for a run on that data that is not there yet: runs/photos, then runs/photos-2 and so on."""
    taken = _numbered(data, runs)
    return _folder(data, runs, max(taken, default=0) + 1)


def latest_folder(data: str, *, runs: Path = RUNS) -> Path | None:
    """The folder that `new_folder` gave out last; None if there is none."""
    taken = _numbered(data, runs)
    return _folder(data, runs, max(taken)) if taken else None


def is_open(folder: Path) -> bool:
    """A run was begun here and is not over, so that it can be resumed."""
    return (folder / RECORD).is_file() and not read_record(folder).over


def _folder(data: str, runs: Path, number: int) -> Path:
    return runs / (_name(data) if number == 1 else f"{_name(data)}-{number}")


def _numbered(data: str, runs: Path) -> list[int]:
    found = [re.fullmatch(re.escape(_name(data)) + r"(?:-(\d+))?", each.name) for each in _inside(runs)]
    return [int(match[1] or 1) for match in found if match is not None]


def _inside(runs: Path) -> list[Path]:
    return list(runs.iterdir()) if runs.is_dir() else []


def _name(data: str) -> str:
    """The data set's name, or the table's without folder and suffix."""
    return re.sub(r"[^\w.-]+", "-", Path(data).stem).strip("-.") or "run"
