"""From a table, or a data set by name, to a trained run: what `meq train` does, and `meq.train` in Python."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from meq.data.contract import DataSet
from meq.data.frames import PICTURES, TABLE
from meq.data.request import DataRequest, nearest_beside
from meq.data.table_files import is_table
from meq.devices import chosen_device
from meq.encoders.contract import Progress
from meq.options import checked_options
from meq.records import check_folder
from meq.runs.calibrate import calibrate_trained
from meq.runs.load import Run, load_run
from meq.training.arms import (
    ARMS,
    FITTED,
    PAPER,
    SHAPE,
    check_recipe,
    fitted_in_words,
    fitted_to,
    model_options,
    resumed,
    train_arm,
)
from meq.training.checkpoint import refuse_busy
from meq.training.config import SMALL, TrainConfig, check_splits, check_trackers
from meq.training.depth import FAST
from meq.training.prepare import FEATURES, prepare_request
from meq.training.record import RECORD, RunRecord, holds_scores, read_record, read_request

RUNS = Path("runs")


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
) -> Run:
    """Read, encode and train; the run, ready to answer, and kept in its folder. `meq.train` has more to say.

    `encoders` maps kinds of content ("image", "text", "audio") to names or folders of encoders. `shape` are options of
    the model: dim, heads, steps, dropout. After an interruption the same call with `resume=True` goes on. Where rows
    were kept apart for it, probabilities are calibrated at the end.
    """
    train_request(
        request,
        Path(folder),
        encoders=encoders,
        arm=arm,
        shape=shape or {},
        config=config or SMALL,
        fixed=() if config is None else FITTED,
        resume=resume,
    )
    return load_run(folder)


def train_request(
    request: DataRequest,
    place: Path,
    *,
    encoders: Mapping[str, str | None] | None = None,
    store: Path | None = None,
    skip_bad: bool = False,
    standardise: bool = True,
    arm: str = "meq",
    shape: Mapping[str, Any] | None = None,
    parts: Mapping[str, Mapping[str, Any]] | None = None,
    solver: str | None = None,
    backward: str | None = None,
    config: TrainConfig = SMALL,
    fixed: Collection[str] = (),
    fast: bool = False,
    lambda_j: float = PAPER["jacobian-range"]["weight"],
    lambda_f: float = PAPER["residual-correction"]["weight"],
    resume: bool = False,
    device: str | None = None,
    say: Callable[[str], None] = lambda words: None,
    bars: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
) -> RunRecord | None:
    """Read, encode and train in the folder `place`; the record on the first of several processes, None on the others.

    `parts` are further options by part: of the "model", its "solver" and "backward", and of penalties, which this
    switches on. Options in FITTED follow from the data, or from the run that is resumed, unless they are among `fixed`.
    What is wrong with the recipe is said before the data is read. `bars` opens what shows the progress of reading and
    encoding. Where rows of dev were kept apart for it, probabilities are calibrated at the end.
    """
    given = {name: dict(options) for name, options in (parts or {}).items()}
    config = _fast(config, arm, backward) if fast else config
    check_trackers(config.trackers)
    if device is not None:
        chosen_device(device)
    sized = {**SHAPE, **(shape or {})} | model_options(arm, given, solver=solver, backward=backward)
    penalties = _penalties(arm, lambda_j, lambda_f, given)
    check_recipe(arm, sized, penalties)
    smallest = config if "batch_size" in fixed else replace(config, batch_size=1)
    with bars() as progress:
        prepared, provenance = prepare_request(
            request,
            encoders or {},
            store=store,
            run=place,
            skip_bad=skip_bad,
            standardised=standardise,
            device=device,
            progress=progress,
            say=say,
            check=partial(check_splits, config=smallest),
            kept=read_request(place) if resume else None,
        )
    record = train_arm(
        prepared,
        arm,
        place,
        _recipe(config, prepared, place if resume else None, fixed, say),
        sized,
        penalties=penalties,
        resume=resume,
        provenance=provenance,
        device=device,
    )
    fitted = None if record is None else calibrate_trained(place)
    if fitted is not None:
        say(str(fitted))
    return record


def _recipe(
    config: TrainConfig, data: DataSet, run: Path | None, fixed: Collection[str], say: Callable[[str], None]
) -> TrainConfig:
    """The recipe of the `run` that is resumed, or fitted to the data; what is `fixed` stays."""
    if run is not None and (run / RECORD).is_file():
        return resumed(config, run, given=fixed)
    fitted = fitted_to(config, data, given=fixed)
    words = fitted_in_words(config, fitted)
    if words is not None:
        say(words)
    return fitted


def _fast(config: TrainConfig, arm: str, backward: str | None) -> TrainConfig:
    """The recipe with gradients through few steps, if nothing else was said about them."""
    if arm in ARMS and "backward" not in ARMS[arm].options:
        raise ValueError(f"`fast` is for models that iterate, and the arm {arm!r} does not: leave it out")
    if config.depth != "fixed" or backward is not None:
        given = f"`depth` '{config.depth}'" if backward is None else f"`backward` {backward}"
        raise ValueError(f"`fast` and {given} both say which steps have gradients: leave one of them out")
    return replace(config, depth=FAST)


def _penalties(
    arm: str, lambda_j: float, lambda_f: float, parts: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """By name: the options of the paper's two penalties, and of those that were named."""
    from meq.objectives import PENALTIES

    given = {name: parts[name] for name in PENALTIES if name in parts}
    if given and "solver" not in ARMS[arm].options:
        raise ValueError(f"the arm {arm!r} does not iterate, so it has no penalties: leave out {', '.join(given)}")
    for name, weight in (("lambda_j", lambda_j), ("lambda_f", lambda_f)):
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{name} must be 0 (off) or a positive number, got {weight}")
    paper = {"jacobian-range": {"weight": lambda_j}, "residual-correction": {"weight": lambda_f}}
    return {name: {**paper.get(name, {}), **given.get(name, {})} for name in {**paper, **given}}


# -- where a run goes: the folder it was given, or runs/NAME, numbered where that is taken -----------------------------


def place_of_run(
    data: str,
    out: Path | None,
    *,
    resume: bool,
    store: Path | None,
    way_on: Callable[[Path], str],
    say: Callable[[str], None],
) -> Path:
    """The folder of the run, or an error if nothing can begin, or go on, there; said before the data is read.

    `way_on` says in words how to go on with a run that is in a folder already.
    """
    place = out or _unnamed_place(data, resume=resume, way_on=way_on, say=say)
    check_folder(place, "`out`")
    if os.environ.get("RANK", "0") == "0":  # of one launch, the first process holds the folder
        refuse_busy(place)
    if store is not None:
        check_folder(store, "`store`")
    if resume and not (place / RECORD).is_file():
        beside = "" if place.exists() else nearest_beside(place)
        raise ValueError(f"leave out `resume` to begin a run in {place}: there is none to go on with{beside}")
    if not any((place / "checkpoints").glob("step-*")):
        if holds_scores(place):
            raise ValueError(f"{place} holds a run that is over, and its checkpoints are gone: choose another folder")
    elif not resume:
        raise ValueError(f"{place} already holds a run: choose another folder, or go on with it: {way_on(place)}")
    return place


def _unnamed_place(data: str, *, resume: bool, way_on: Callable[[Path], str], say: Callable[[str], None]) -> Path:
    """Where the run goes that was given no folder."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each process would look for a free folder of its own
        raise ValueError("several processes need to be told the run's folder: `out` runs/NAME")
    last = latest_folder(data)
    if resume:
        if last is None:
            raise ValueError(f"there is no run on {data} in {RUNS} to resume: name its folder with `out`")
        return last
    if last is not None and is_open(last):
        say(f"{last} holds a run that is not finished; to go on with it: {way_on(last)}")
    place = new_folder(data)
    say(f"the run's folder: {place}")
    return place


def new_folder(data: str, *, runs: Path = RUNS) -> Path:
    """A folder for a run on that data that is not there yet: runs/photos, then runs/photos-2 and so on.

    One that holds features and nothing else is taken again: a run was interrupted while it encoded.
    """
    last = latest_folder(data, runs=runs)
    if last is not None and last.is_dir() and holds_features_only(last):
        return last
    number = max(_numbered(data, runs), default=0) + 1
    return runs / (data_name(data) if number == 1 else f"{data_name(data)}-{number}")


def holds_features_only(folder: Path) -> bool:
    """Whether a run was interrupted there before its training began."""
    there = {each.name for each in folder.iterdir() if each.name[0] != "."}
    return FEATURES in there and there <= {FEATURES, TABLE, PICTURES}


def latest_folder(data: str, *, runs: Path = RUNS) -> Path | None:
    """The folder that `new_folder` gave out last; None if there is none."""
    taken = _numbered(data, runs)
    return taken[max(taken)] if taken else None


def is_open(folder: Path) -> bool:
    """A run was begun here and is not over, so that it can be resumed."""
    return (folder / RECORD).is_file() and not read_record(folder).over


def _numbered(data: str, runs: Path) -> dict[int, Path]:
    """Folders of runs on that data, by their number."""
    pattern = re.compile(re.escape(data_name(data)) + r"(?:-(\d+))?")
    found = {each: pattern.fullmatch(each.name) for each in (runs.iterdir() if runs.is_dir() else ())}
    return {int(match[1] or 1): each for each, match in found.items() if match is not None}


def data_name(data: str) -> str:
    """The data set's name, or the table's without folder and suffix: what folders are called after."""
    stem = Path(data.removesuffix(".gz")).stem if is_table(data) else Path(data).stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"
