"""One run of a study: trained, then measured. It writes in its own folder only, wherever it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from meq.experiments.build import Prepared, build_model, build_objective, set_iteration
from meq.experiments.executors.scheduling import Run, in_words
from meq.experiments.measures import read_measured, take_measure, write_measured
from meq.experiments.measures.contract import Trained
from meq.experiments.study import Study, StudyError, run_place
from meq.files import alone, sha256
from meq.models.base import FusionModel
from meq.models.hub import WEIGHTS
from meq.objectives.floors import ARROW
from meq.training.fit import Training
from meq.training.progress import LiveBar
from meq.training.record import FAILED, RECORD, RunRecord, read_record

PATIENCE = 20.0
"""Seconds that a run waits for a process that was told to leave it."""

MakeBar = Callable[[int], LiveBar]
"""From a number of updates to what shows them."""


def do_run(
    study: Study, folder: Path, run: Run, *, prepared: Prepared, console: Console, bar: MakeBar | None = None
) -> RunRecord:
    """One run, begun or resumed, to its record and its measures; a failed training is in the record.

    Nothing outside of the run's own folder is written: several processes may work on several runs. `bar` shows the
    training in place of the console's own live line.
    """
    place = folder / run_place(*run)
    place.mkdir(parents=True, exist_ok=True)
    with alone(place, f"another process is at work on the run in {place}", patience=PATIENCE):
        record = recorded(place)
        if record is None or not record.over:
            record = _train(study, folder, run, prepared=prepared, console=console, bar=bar)
        missing = [measure for measure in study.measures if read_measured(place, measure) is None]
        if record.scored and missing:
            trained = load_trained(study, folder, run, prepared)
            for measure in missing:
                console.print(f"{in_words(run)}: measuring {measure}", highlight=False)
                write_measured(place, take_measure(measure, study, trained))
    return record


def load_trained(study: Study, folder: Path, run: Run, prepared: Prepared) -> Trained:
    """The kept weights of a run, ready to be measured."""
    name, seed = run
    place, arm = folder / run_place(name, seed), study.arm(name)
    record = read_record(place)
    if not (place / "model" / WEIGHTS).is_file():
        raise StudyError(f"{place} has no weights: they cannot be measured; remove the folder to train it again")
    assert record.checkpoint is not None
    if sha256(place / "model" / WEIGHTS) != record.checkpoint.sha256:
        raise StudyError(f"{place}: the weights are not those that the record speaks of")
    model = FusionModel.from_pretrained(place / "model").eval()
    set_iteration(model, arm)  # a model that an older version saved does not say so itself
    return Trained(model=model, data=prepared.seen_by(arm), arm=arm, record=record, prepared=prepared)


def recorded(place: Path) -> RunRecord | None:
    """The record of a run, if it has begun."""
    return read_record(place) if (place / RECORD).is_file() else None


def _train(
    study: Study, folder: Path, run: Run, *, prepared: Prepared, console: Console, bar: MakeBar | None
) -> RunRecord:
    """A failure is in the record, and raised only if there is none."""
    name, seed = run
    arm, place = study.arm(name), folder / run_place(name, seed)
    data = prepared.seen_by(arm)
    model, objective = build_model(study, arm, data, seed), build_objective(arm, data, _floors(study, folder, run))
    provenance = replace(prepared.provenance, study=study.name, arm=name)
    training = Training(model, data, objective, place, study.config(name, seed), console, provenance=provenance)
    if bar is not None:
        training.bar = bar(training.schedule.total_steps)
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
