"""What can be read off a trained run, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meq.options import nearest
from meq.records import SCHEMA, plain
from meq.studies.measures.contract import (
    Measure,
    MeasureFile,
    TrainedModel,
    Values,
    as_found,
    read_measured,
    write_measured,
)
from meq.studies.measures.coupling import Coupling
from meq.studies.measures.fixed_point import FixedPoint
from meq.studies.measures.grounding import Grounding
from meq.studies.measures.robustness import Robustness
from meq.studies.measures.staircase import Staircase
from meq.studies.measures.steps import Steps
from meq.studies.study import Run, Study, StudyError, run_place

MEASURES: dict[str, type[Measure[Any]]] = {
    each.name: each for each in (Steps, FixedPoint, Coupling, Robustness, Grounding, Staircase)
}


def make_measure(name: str, options: Mapping[str, Any]) -> Measure[Any]:
    if name not in MEASURES:
        raise StudyError(f"there is no measure {name!r}: {nearest(name, MEASURES)}")
    return MEASURES[name](**options)


def take_measure(name: str, study: Study, trained: TrainedModel) -> MeasureFile:
    """One measure of one run."""
    measure = make_measure(name, study.measures[name])
    assert trained.record.checkpoint is not None
    return MeasureFile(
        schema=SCHEMA,
        measure=name,
        options=plain(dict(study.measures[name])),
        weights_sha256=trained.record.checkpoint.sha256,
        found=as_found(measure.take(trained)) or {},  # made plain when it is written, and only once: there may be NaN
    )


def measured_of(folder: Path, study: Study) -> dict[str, Values]:
    """By measure: what was found on the runs that have it."""
    found: dict[str, dict[Run, Mapping[str, Any]]] = {}
    for name in study.measures:
        taken = {run: read_measured(folder / run_place(*run), name) for run in study.runs()}
        found[name] = {run: each.found for run, each in taken.items() if each is not None and each.found}
    return dict(found)


__all__ = ["MEASURES", "make_measure", "measured_of", "read_measured", "take_measure", "write_measured"]
