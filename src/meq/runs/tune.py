"""Random search over a stated space: chosen on dev alone, test untouched until the best is trained at the end.

    found = meq.tune("photos.csv", image="photo", text="caption", label="y", trials=20)
    print(found)

A trial is a run in FOLDER/trials that never sees another split than train and dev. What it is depends on the seed and
its number alone, so that the same call goes on where it was interrupted, more trials can be added, and trials on Ray
are those of one machine. The best one is trained once more in FOLDER/best-NUMBER, a run like any other, scored on test
and calibrated with rows that chose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from meq.data.contract import DataSet
from meq.data.request import DataRequest
from meq.options import checked_options, nearest, real_number, whole_number
from meq.records import alone, plain, read_cached, write_bytes, write_sealed
from meq.runs.calibrate import calibrate_trained
from meq.runs.request_of import Columns, request_of
from meq.runs.search_space import (
    PENALTIES,
    RECIPE,
    TRIALS,
    OneOf,
    space_for,
)
from meq.runs.train_on import data_name
from meq.runs.tune_search import Search, Trial, Tuning, rank, train_command
from meq.tables import as_files
from meq.training.arms import SHAPE, check_recipe, fitted_to, fixed_by, train_arm
from meq.training.config import SMALL, TrainConfig, check_splits
from meq.training.prepare import FEATURES, keeping_apart, prepare_request
from meq.training.record import FAILED, RECORD, Provenance, RunRecord, RunRequest, read_record

TUNINGS = Path("tunings")
SEARCH, RESULT, TRIALS_FOLDER, BEST = "search.json", "tune.json", "trials", "best"
PLACES = ("serial", "ray")
HOUR = 3600.0
Say = Callable[[str], None]


@checked_options
def tune(
    data: Any,
    *,
    image: Columns = (),
    text: Columns = (),
    audio: Columns = (),
    vector: Columns = (),
    label: str | None = None,
    split: str | None = None,
    group: str | None = None,
    task: str | None = None,
    root: Path | str | None = None,
    out: Path | str | None = None,
    trials: int | None = None,
    hours: float | None = None,
    space: Mapping[str, Any] | None = None,
    arm: str = "meq",
    epochs: int | None = None,
    config: TrainConfig | None = None,
    shape: Mapping[str, Any] | None = None,
    encoders: Mapping[str, str | None] | None = None,
    store: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    on: str = "serial",
    workers: int | None = None,
) -> Tuning:
    """Search for settings that are good on dev, by so many trials or hours. See `meq tune --help`.

    `space` takes the place of single ranges: {"learning_rate": (1e-4, 1e-2), "dim": [32, 64], "steps": 8}, which are a
    number between two by its logarithm, one of several, and a fixed one.

    >>> columns = {"image": "photo", "text": "caption", "label": "y"}
    >>> few = {"trials": 1, "epochs": 1, "encoders": {"image": "patches", "text": "words"}}
    >>> found = meq.tune("photos.csv", **columns, **few, space={"dim": [8, 16], "steps": 2})
    >>> print(found.command)
    meq train ...
    """
    columns = {"image": image, "text": text, "audio": audio, "vector": vector}
    place = tuning_folder(str(data) if isinstance(data, str | Path) else "table") if out is None else Path(out)
    places = {"label": label, "split": split, "group": group, "task": task, "root": root}
    request = request_of(data, columns, folder=place, options=options, **places)  # type: ignore[arg-type]
    train = config or SMALL
    search = make_search(
        request,
        arm=arm,
        space=space,
        config=train if epochs is None else replace(train, epochs=epochs),
        shape=shape or {},
        encoders=encoders or {},
        fixed=fixed_by(config, epochs),
    )
    return run_search(search, place, trials=trials, hours=hours, store=store, on=on, workers=workers)


def tuning_folder(data: str) -> Path:
    """Where the trials on that data go, and go on, unless it is told."""
    return TUNINGS / data_name(data)


def make_search(
    request: DataRequest,
    *,
    arm: str = "meq",
    space: Mapping[str, Any] | None = None,
    config: TrainConfig = SMALL,
    shape: Mapping[str, Any] | None = None,
    encoders: Mapping[str, str | None] | None = None,
    skip_bad: bool = False,
    fixed: Sequence[str] = (),
    standardise: bool = True,
) -> Search:
    """The search, or an error if a value of its space makes no model, before anything is read."""
    ranges, sized = space_for(arm, space), {**SHAPE, **(shape or {})}
    for name, each in ranges.items():
        for value in each.values if isinstance(each, OneOf) else (each.low, each.high):
            if name in RECIPE:
                replace(config, **{name: value})
            elif name in PENALTIES:
                real_number(name, value, wanted="must be 0 (off) or a positive number", low=0.0)
            else:
                check_recipe(arm, {**sized, name: value})
    asked = {kind: name for kind, name in (encoders or {}).items() if name is not None}
    return Search(
        request=RunRequest(**vars(request), encoders=asked, skip_bad=skip_bad),
        arm=arm,
        seed=config.seed,
        space=plain(ranges),
        shape={name: value for name, value in sized.items() if name not in ranges},
        config=config,
        fixed=tuple(fixed),
        standardise=standardise,
    )


def run_search(
    search: Search,
    folder: Path,
    *,
    trials: int | None = None,
    hours: float | None = None,
    store: Path | str | None = None,
    on: str = "serial",
    workers: int | None = None,
    say: Say = lambda words: None,
) -> Tuning:
    """Make the trials that are not made yet, train the best, and say what came out; all of it is in the folder."""
    trials, hours = _checked_budget(trials, hours)
    if on not in PLACES:
        raise ValueError(f"trials cannot be made on {on!r}: {nearest(on, PLACES)}")
    if workers is not None and on != "ray":
        raise ValueError("`workers` makes sense with --on ray: without it trials are made one after the other")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, f"another process is tuning in {folder}: wait for it, or choose another folder"):
        search = _kept(search, folder, None if store is None else Path(store))
        data, provenance = prepared_for(search, say)
        if on == "ray":
            from meq.runs.tune_ray import trials_on_ray

            left = [each for each in range(1, (trials or TRIALS) + 1) if not _is_over(trial_place(folder, each))]
            trials_on_ray(folder, left, workers=workers, seconds=None if hours is None else hours * HOUR, say=say)
        else:
            for number in _numbers(folder, trials, hours):
                say(f"trial {number}{'' if trials is None else f' of {trials}'}: {_in_words(search.settings(number))}")
                run_trial(search, folder, number, data, provenance)
        return _finish(search, folder, data, provenance, say)


def _checked_budget(trials: int | None, hours: float | None) -> tuple[int | None, float | None]:
    if trials is not None:
        whole_number("`trials`", trials)
    if hours is not None:
        real_number("`hours`", hours, wanted="must be a positive number", low=1e-6)
    return (TRIALS if trials is None and hours is None else trials), hours


def _kept(search: Search, folder: Path, store: Path | None) -> Search:
    """The search as the folder has it; an error if it has another one."""
    known = read_cached(Search, folder / SEARCH)
    request = keeping_apart(search.request, None if known is None else known.request.options)
    search = replace(search, request=replace(request, store=store or folder / FEATURES))
    if known is None:
        if any(folder.glob(f"{TRIALS_FOLDER}/*/{RECORD}")):
            raise ValueError(f"{folder} holds trials of another version of meq: choose another folder")
        write_sealed(folder / SEARCH, search)
        return search
    before, after = plain(known), plain(search)
    changed = [each.name for each in fields(Search) if before[each.name] != after[each.name]]
    if changed:
        raise ValueError(f"{folder} holds a search with another {' and '.join(changed)}: choose another folder")
    return known


def prepared_for(search: Search, say: Say = lambda words: None) -> tuple[DataSet, Provenance]:
    """The data of a search, encoded; its features are kept in the store."""
    request = search.request
    asked = DataRequest(**{each.name: getattr(request, each.name) for each in fields(DataRequest)})
    smallest = search.config if "batch_size" in search.fixed else replace(search.config, batch_size=1)
    return prepare_request(
        asked,
        request.encoders,
        store=request.store,
        skip_bad=request.skip_bad,
        standardised=search.standardise,
        say=say,
        check=lambda data: check_splits(data, smallest),
    )


# -- trials ------------------------------------------------------------------------------------------------------------


def trial_place(folder: Path, trial: int) -> Path:
    return folder / TRIALS_FOLDER / f"{trial:04d}"


def run_trial(search: Search, folder: Path, trial: int, data: DataSet, provenance: Provenance) -> None:
    """Train a trial, or go on with it, on train and dev alone; one that fails is recorded as failed."""
    seen = replace(data, splits={name: data.splits[name] for name in ("train", "dev")})
    place = trial_place(folder, trial)
    try:
        _train(search, seen, place, search.settings(trial), replace(provenance, request=None))
    except Exception:
        if not (place / RECORD).is_file() or read_record(place).status != FAILED:
            raise


def _train(
    search: Search, data: DataSet, place: Path, settings: Mapping[str, Any], provenance: Provenance
) -> RunRecord | None:
    config = replace(search.config, **{name: value for name, value in settings.items() if name in RECIPE})
    weights = {PENALTIES[name]: {"weight": value} for name, value in settings.items() if name in PENALTIES}
    shape = {name: value for name, value in settings.items() if name not in RECIPE and name not in PENALTIES}
    return train_arm(
        data,
        search.arm,
        place,
        fitted_to(config, data, given=search.fixed),
        {**search.shape, **shape},
        penalties=weights,
        resume=(place / RECORD).is_file(),
        provenance=provenance,
    )


def _is_over(place: Path) -> bool:
    return (place / RECORD).is_file() and read_record(place).over


def _numbers(folder: Path, trials: int | None, hours: float | None) -> Iterator[int]:
    """The trials that are to be made, until the budget is spent; a trial that was begun is always ended."""
    for number in count(1) if trials is None else range(1, trials + 1):
        if _is_over(trial_place(folder, number)):
            continue
        begun = (trial_place(folder, number) / RECORD).is_file()
        if hours is not None and not begun and _spent(folder) >= hours * HOUR:
            return
        yield number


def _spent(folder: Path) -> float:
    """Seconds of all trials, whenever they were made."""
    return sum(read_record(path.parent).wall_seconds for path in folder.glob(f"{TRIALS_FOLDER}/*/{RECORD}"))


# -- what came out -----------------------------------------------------------------------------------------------------


def _finish(search: Search, folder: Path, data: DataSet, provenance: Provenance, say: Say) -> Tuning:
    made = _trials_of(search, folder)
    best = min(made, key=rank, default=None)
    if best is None or best.score is None:
        raise ValueError(f"none of the {len(made)} trials in {folder} has a score: their records say what went wrong")
    place = folder / f"{BEST}-{best.trial:04d}"  # more trials may have another best one
    if not _is_over(place):
        say(f"the best is trial {best.trial}: it is trained in {place}, and scored on all splits")
        _train(search, data, place, best.settings, provenance)
    record = read_record(place)
    fitted = calibrate_trained(place, again=False) if record.scored else None
    if fitted is not None:
        say(str(fitted))
    found = Tuning(
        data=Path(search.request.data).name,
        folder=str(folder),
        metric=record.metric,
        trials=tuple(made),
        best=best.trial,
        run=str(place),
        scores={split: scores[record.metric] for split, scores in record.metrics.items()},
        command=train_command(search, best.settings),
    )
    write_sealed(folder / RESULT, found)
    for name, content in as_files({"trials": found.table()}).items():
        write_bytes(folder / name, content)
    return found


def _trials_of(search: Search, folder: Path) -> list[Trial]:
    """The trials that are over, by number."""
    places = sorted((folder / TRIALS_FOLDER).glob("[0-9]*"))
    return [_trial(search, int(place.name), read_record(place)) for place in places if _is_over(place)]


def _trial(search: Search, number: int, record: RunRecord) -> Trial:
    return Trial(
        trial=number,
        status=record.status,
        score=record.metrics["dev"][record.metric] if record.scored else None,
        epoch=record.selected.epoch,
        seconds=record.wall_seconds,
        settings=search.settings(number),
    )


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
