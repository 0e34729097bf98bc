"""The data of a trained run before it is encoded, and the study that the run belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings
from meq.data.table_files import is_table
from meq.experiments.build import Places, open_raw
from meq.experiments.runs.load import TrainedRun
from meq.experiments.study import STUDY, ArmConfig, StudyError, read_study


def raw_data(run: TrainedRun, *, root: Path | None = None, findings: Findings | None = None) -> DataSet:
    """What the run was trained on, read again and not encoded; `root` where it has moved to.

    `findings` decides what a bad row does; unless given, what it did in training.
    """
    request = run.request
    if request is None:
        return open_raw(read_study(own_study(run)).data, Places(data=root))
    asked = request.data_request()
    if is_table(asked.data) and not Path(asked.data).is_file():
        raise DataError(
            f"{asked.data}, which the run was trained on, is not here: give the table's place after the run's"
        )
    findings = Findings("skip" if request.skip_bad else "raise") if findings is None else findings
    return replace(asked, root=root or asked.root).open(findings)


def own_study(run: TrainedRun) -> Path:
    """The folder of the study that the run belongs to; an error where it belongs to none."""
    folder = study_of(run)
    if folder is None:
        raise StudyError(
            f"{run.folder.parent} does not say what it was trained on: it has no request.json, and is no run of a "
            "study. Give a data set or a table after it; what `meq train`, `train_on` or a study trains says it itself"
        )
    return folder


def study_of(run: TrainedRun) -> Path | None:
    """The folder of the study that a run belongs to."""
    return study_above(run.folder.parent) if run.record is not None and run.record.study is not None else None


def study_above(run: Path) -> Path | None:
    """The folder of the study that a run's folder lies in."""
    parents = run.resolve().parents
    return parents[2] if len(parents) > 2 and (parents[2] / STUDY).is_file() else None


def arm_of(run: TrainedRun) -> ArmConfig | None:
    """The arm of the run's study, which may set a solver or blank a modality; None for a run of no study.

    By the run's place, not by its record: a run that was taken over from another study has that one's name for its arm.
    """
    folder = study_of(run)
    if folder is None:
        return None
    study, name = read_study(folder), run.folder.resolve().parents[1].name
    known = [arm.name for arm in study.arms]
    if name not in known:
        raise StudyError(f"{folder} has no arm {name!r}, in whose folder the run lies: {nearest(name, known)}")
    return study.arm(name)
