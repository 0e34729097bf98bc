"""The data of a trained run before it is encoded: pictures and texts that can be shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings
from meq.data.table_files import is_table
from meq.experiments.build import Places, open_raw
from meq.experiments.runs.load import TrainedRun
from meq.experiments.study import STUDY, ArmConfig, StudyError, read_study


def raw_data(run: TrainedRun, *, root: Path | None = None) -> DataSet:
    """What the run was trained on, read again and not encoded; `root` where it has moved to."""
    request = run.request
    if request is None:
        folder = study_of(run)
        if folder is None:
            raise StudyError(
                f"{run.folder.parent} does not say what it was trained on: it has no request.json, and is no run of a "
                "study. Train with `meq train`, `train_on` or a study, which write that down"
            )
        return open_raw(read_study(folder).data, Places(data=root))
    asked = request.data_request()
    if is_table(asked.data) and not Path(asked.data).is_file():
        raise DataError(f"{asked.data}, which the run was trained on, is not here")
    findings = Findings("skip" if request.skip_bad else "raise")
    return replace(asked, root=root or asked.root).open(findings)


def study_of(run: TrainedRun) -> Path | None:
    """The folder of the study that a run belongs to."""
    return study_above(run.folder.parent) if run.record is not None and run.record.study is not None else None


def study_above(run: Path) -> Path | None:
    """The folder of the study that a run's folder lies in."""
    parents = run.resolve().parents
    return parents[2] if len(parents) > 2 and (parents[2] / STUDY).is_file() else None


def arm_of(run: TrainedRun) -> ArmConfig | None:
    """The arm of the run's study, which may set a solver or blank a modality; by the run's place, not by its record,
    since a run that was taken over from another study has that one's name for its arm."""
    folder = study_of(run)
    if folder is None:
        return None
    study, name = read_study(folder), run.folder.parents[1].name
    return study.arm(name) if name in {arm.name for arm in study.arms} else None
