"""A trained run from its folder or from the Hub: everything about it that can be checked is checked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from meq.models.base import FusionModel
from meq.models.fitting import read_config
from meq.models.hub import CONFIG, WEIGHTS, fetched, missing_here
from meq.models.iterated import IteratedModel
from meq.records import SEAL, FormatError, check_seal
from meq.runs.calibrate import CALIBRATION, read_calibration
from meq.runs.run import Run, TrainedRun
from meq.runs.run_files import FileHash, RunFiles, open_run_files, sealed_hashes
from meq.studies.study import StudyError
from meq.training.bundle import CARD, TASK, check_weights, read_task
from meq.training.record import RECORD, read_record

__all__ = ["FileHash", "Run", "RunFiles", "TrainedRun", "load_run", "open_run_files", "sealed_hashes"]


def load_run(place: str | Path, *, revision: str | None = None, token: str | None = None) -> Run:
    """A run's folder, the folder `model` in it, or a repository of the Hub. A file that has changed is an error.

    Of a run that goes on, or was interrupted, the best weights so far are taken, see `Run.unfinished`.
    """
    folder = _local(Path(place)) or _downloaded(str(place), revision, token)
    above = folder.parent if folder.name == "model" else None
    if above is not None and not any((above / name).is_file() for name in (RECORD, SEAL)):
        above = None  # either is enough for a run: its seal misses the record, where somebody has removed it
    if not (folder / TASK).is_file():
        raise StudyError(_unfinished(folder))
    record = read_record(above) if above is not None and (above / RECORD).is_file() else None
    done = record is None or record.scored  # a seal is written just before the record that it seals
    whole = above is None or (done and check_seal(above) is not None)
    seal = check_seal(folder, may_lack=(CARD,))  # the Hub's card may be edited, and is not downloaded
    hashed = seal.files[WEIGHTS].sha256 if whole and seal is not None else None
    task = read_task(folder / TASK)
    try:
        check_weights(task, folder / WEIGHTS, hashed=hashed)
    except FormatError as error:
        if done:
            raise
        raise StudyError(
            f"{error}. The run is not finished, and was just replacing its weights: try again, or resume it"
        ) from error
    model = FusionModel.from_pretrained(folder).eval()
    run = Run(
        model=model,
        task=task,
        record=record,
        folder=folder,
        sealed=hashed is not None,
        calibration=read_calibration(folder, task.weights_sha256),
    )
    _run_as_trained(run)
    return run


def _run_as_trained(run: Run) -> None:
    """Models saved by older versions do not say by which solver they are run; the study that trained one does."""
    options = read_config(run.folder / CONFIG)["options"]
    if not isinstance(run.model, IteratedModel) or {"solver", "backward"} <= options.keys():
        return
    from meq.runs.own_data import arm_of
    from meq.studies.build import set_iteration

    arm = arm_of(run)
    if arm is not None:
        set_iteration(run.model, arm)


def _local(place: Path) -> Path | None:
    for folder in (place / "model", place):
        if (folder / CONFIG).is_file():
            return folder
    if (place / RECORD).is_file():
        raise StudyError(_unfinished(place / "model"))
    if place.exists():
        raise StudyError(
            f"{place} is not the folder of a trained run: expected {RECORD} and model/ with {CONFIG}, {WEIGHTS} and "
            f"{TASK}"
        )
    if words := missing_here(place, "run"):
        raise StudyError(words)
    return None


def _unfinished(folder: Path) -> str:
    above = folder.parent
    status = read_record(above).status if (above / RECORD).is_file() else "not finished"
    return (
        f"{folder} has no {TASK}: the run is not finished and has kept no weights yet (its record says: {status}), or "
        "was trained by an older version of meq. Go on with an interrupted run by the command that began it, and "
        "--resume"
    )


def _downloaded(name: str, revision: str | None, token: str | None) -> Path:
    try:
        folder = fetched(name, (TASK, CONFIG, WEIGHTS), what="run", revision=revision, token=token)[0].parent
    except FileNotFoundError as error:
        raise StudyError(str(error)) from error
    for file, what in ((SEAL, "seal"), (CALIBRATION, "calibration")):
        with suppress(FileNotFoundError):  # pushed by an older version; never calibrated
            fetched(name, (file,), what=what, revision=revision, token=token)
    return folder
