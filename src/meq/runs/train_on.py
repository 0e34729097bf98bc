"""From a table, or a data set by name, to a trained run: what `meq train` does, in one call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from meq.data.request import DataRequest
from meq.options import checked_options
from meq.runs.load import TrainedRun, load_run
from meq.training.arms import SHAPE, check_recipe, fitted_to, train_arm
from meq.training.config import SMALL, TrainConfig, check_splits
from meq.training.prepare import prepare_request
from meq.training.record import RECORD, read_record

RUNS = Path("runs")
ONE_BY_ONE = replace(SMALL, batch_size=1)
"""The smallest batch that `fitted_to` may come to: what it does not fit, nothing does."""


@checked_options
def train_on(
    request: DataRequest,
    folder: Path | str,
    *,
    encoders: Mapping[str, str | None] | None = None,
    arm: str = "meq",
    shape: Mapping[str, Any] | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
) -> TrainedRun:
    """Read, encode and train; the run, ready to answer, and kept in its folder.

    `encoders` maps kinds of content ("image", "text", "audio") to names or folders of encoders. `shape` are options of
    the model: dim, heads, steps, dropout. After an interruption the same call with `resume=True` goes on.
    """
    sized = {**SHAPE, **(shape or {})}
    check_recipe(arm, sized)
    data, provenance = prepare_request(
        request, encoders or {}, check=partial(check_splits, config=config or ONE_BY_ONE)
    )
    train_arm(data, arm, Path(folder), config or fitted_to(SMALL, data), sized, resume=resume, provenance=provenance)
    return load_run(folder)


# -- where a run goes that was given no folder: runs/NAME, numbered where that is taken --------------------------------


def new_folder(data: str, *, runs: Path = RUNS) -> Path:
    """A folder for a run on that data that is not there yet: runs/photos, then runs/photos-2 and so on."""
    number = max(_numbered(data, runs), default=0) + 1
    return runs / (_name(data) if number == 1 else f"{_name(data)}-{number}")


def latest_folder(data: str, *, runs: Path = RUNS) -> Path | None:
    """The folder that `new_folder` gave out last; None if there is none."""
    taken = _numbered(data, runs)
    return taken[max(taken)] if taken else None


def is_open(folder: Path) -> bool:
    """A run was begun here and is not over, so that it can be resumed."""
    return (folder / RECORD).is_file() and not read_record(folder).over


def _numbered(data: str, runs: Path) -> dict[int, Path]:
    """Folders of runs on that data, by their number."""
    pattern = re.compile(re.escape(_name(data)) + r"(?:-(\d+))?")
    found = {each: pattern.fullmatch(each.name) for each in (runs.iterdir() if runs.is_dir() else ())}
    return {int(match[1] or 1): each for each, match in found.items() if match is not None}


def _name(data: str) -> str:
    """The data set's name, or the table's without folder and suffix."""
    return re.sub(r"[^\w.-]+", "-", Path(data).stem).strip("-.") or "run"
