"""One run of a study: trained, then measured. It writes in its own folder only, wherever it happens."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rich.console import Console

from meq.devices import chosen_device
from meq.models.base import FusionModel
from meq.models.hub import WEIGHTS
from meq.objectives.penalties import ARROW
from meq.records import SCHEMA, read_dataclass, sha256, write_dataclass
from meq.studies.build import PreparedData, build_model, build_objective, set_iteration
from meq.studies.measures import read_measured, take_measure, write_measured
from meq.studies.measures.contract import FOLDER, TrainedModel
from meq.studies.study import Run, Study, StudyError, read_study, run_place
from meq.training.fit import Training
from meq.training.record import FAILED, RECORD, RunRecord, read_record


def in_words(run: Run) -> str:
    return f"{run[0]}, seed {run[1]}"


def do_run(study: Study, folder: Path, run: Run, *, prepared: PreparedData, console: Console) -> RunRecord:
    """One run, begun or resumed, to its record and its measures; a failed training is in the record.

    Nothing outside of the run's own folder, which the caller holds, is written.
    """
    place = folder / run_place(*run)
    record = recorded(place)
    if record is None or not record.over:
        record = _train(study, folder, run, prepared=prepared, console=console)
    missing = [measure for measure in study.measures if read_measured(place, measure) is None]
    if record.scored and missing:
        trained = load_trained(study, folder, run, prepared)
        for measure in missing:
            console.print(f"{in_words(run)}: measuring {measure}", highlight=False)
            write_measured(place, take_measure(measure, study, trained))
    return record


def load_trained(study: Study, folder: Path, run: Run, prepared: PreparedData) -> TrainedModel:
    """The kept weights of a run, ready to be measured."""
    name, seed = run
    place, arm = folder / run_place(name, seed), study.arm(name)
    record = read_record(place)
    if not (place / "model" / WEIGHTS).is_file():
        raise StudyError(f"{place} has no weights: they cannot be measured; remove the folder to train it again")
    assert record.checkpoint is not None
    if sha256(place / "model" / WEIGHTS) != record.checkpoint.sha256:
        raise StudyError(f"{place}: the weights are not those that the record speaks of")
    model = FusionModel.from_pretrained(place / "model").eval().to(chosen_device(prepared.places.device))
    set_iteration(model, arm)  # a model that an older version saved does not say so itself
    return TrainedModel(model=model, data=prepared.seen_by(arm), arm=arm, record=record, prepared=prepared)


def recorded(place: Path) -> RunRecord | None:
    """The record of a run, if it has begun; one that has not changed is not read again."""
    try:
        stat = (place / RECORD).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _read(place, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=256)
def _read(place: Path, changed: int, inode: int) -> RunRecord:
    return read_record(place)


def _train(study: Study, folder: Path, run: Run, *, prepared: PreparedData, console: Console) -> RunRecord:
    """A failure is in the record, and raised only if there is none."""
    name, seed = run
    arm, place = study.arm(name), folder / run_place(name, seed)
    data = prepared.seen_by(arm)
    model, objective = build_model(study, arm, data, seed), build_objective(arm, data, _floors(study, folder, run))
    provenance = replace(prepared.provenance, study=study.name, arm=name)
    training = Training(
        model,
        data,
        objective,
        place,
        study.config(name, seed),
        console,
        provenance=provenance,
        device=prepared.places.device,
    )
    try:
        training.run(resume=True)
    except Exception:
        record = recorded(place)
        if record is None or record.status != FAILED:
            raise  # it could not begin or go on: nothing that belongs into a table
    return read_record(place)


def _floors(study: Study, folder: Path, run: Run) -> dict[str, float] | None:
    """The off-diagonal blocks that another arm's run reached on held-out samples."""
    source = study.needs(*run)
    if source is None:
        return None
    measured = read_measured(folder / run_place(*source), "coupling")
    if measured is None:
        raise StudyError(
            f"{run[0]!r} takes its floors from {source[0]!r}, seed {source[1]}, which has not been measured"
        )
    return {pair: value for pair, value in measured.found["blocks"].items() if len(set(pair.split(ARROW))) == 2}


# -- runs of other studies ---------------------------------------------------------------------------------------------


BORROWED = "borrowed.json"


@dataclass(frozen=True, kw_only=True)
class BorrowedRun:
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
            place, match = folder / run_place(arm, seed), same_arm(other, study, arm, seed)
            if match is None or place.exists():
                continue
            record = recorded(source / run_place(match, seed))
            if record is not None and record.scored:
                _copy(source / run_place(match, seed), place, other.name, match)
                console.print(f"{arm}, seed {seed}: taken from {other.name}", highlight=False)


def read_borrowed(place: Path) -> BorrowedRun | None:
    path = place / BORROWED
    return read_dataclass(BorrowedRun, path) if path.is_file() else None


def same_arm(other: Study, study: Study, arm: str, seed: int) -> str | None:
    """The other study's arm that is trained in just the same way, whatever its name; floors would be its own."""
    if study.arm(arm).floor_from or seed not in other.seeds:
        return None
    return next((each.name for each in other.arms if _trained_alike((other, each.name), (study, arm), seed)), None)


def _trained_alike(one: tuple[Study, str], two: tuple[Study, str], seed: int) -> bool:
    """Equal but for names, and for which options are of all arms and which of one; so are those that they match."""
    (study, name), (other, its_name) = one, two
    mine, its = study.arm(name), other.arm(its_name)
    plain = [replace(arm, name="arm", train={}, match=None) for arm in (mine, its)]
    if plain[0] != plain[1] or study.config(name, seed) != other.config(its_name, seed):
        return False
    if mine.match is None or its.match is None:
        return mine.match is its.match
    alike = replace(mine.match, to="arm") == replace(its.match, to="arm")
    return alike and _trained_alike((study, mine.match.to), (other, its.match.to), seed)


def _copy(source: Path, place: Path, study: str, arm: str) -> None:
    """Whole or not at all; measures belong to the study that asked for them."""
    writing = place.parent / f".{place.name}.writing"
    shutil.rmtree(writing, ignore_errors=True)
    shutil.copytree(source, writing, ignore=shutil.ignore_patterns(FOLDER, "checkpoints", BORROWED))
    origin = read_borrowed(source)  # of a run that was borrowed there, too, the record names where it was made
    note = BorrowedRun(
        schema=SCHEMA,
        study=study if origin is None else origin.study,
        arm=arm if origin is None else origin.arm,
        record_sha256=sha256(writing / RECORD),
    )
    write_dataclass(writing / BORROWED, note)
    writing.rename(place)
