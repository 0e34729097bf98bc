"""The files of a run, without its model: what reports are made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meq.models.hub import CONFIG, WEIGHTS
from meq.records import SEAL, FormatError, read_seal, sha256
from meq.studies.study import STUDY, StudyError
from meq.training.bundle import CARD, TASK, Task, read_task
from meq.training.predictions import Predictions, read_predictions
from meq.training.record import RECORD, RunRecord, read_record


@dataclass(frozen=True, kw_only=True)
class FileHash:
    """A file of a run, hashed now, beside what the record or the run's seal says of it."""

    what: str
    file: str
    sha256: str | None
    """None: the file is not there."""
    recorded: str | None
    """None: nothing is said of it, as of the record itself in a run without a seal."""

    @property
    def verdict(self) -> str:
        if self.sha256 is None:
            return "not there"
        if self.recorded is None:
            return "hashed now"
        return "as recorded" if self.sha256 == self.recorded else "NOT as recorded"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFiles:
    """What can be said of a run from its files alone."""

    folder: Path
    record: RunRecord
    task: Task | None
    """None for a run that did not come to its end."""

    @property
    def labels(self) -> tuple[str, ...]:
        return () if self.task is None else self.task.labels

    @property
    def head(self) -> str:
        return self.record.objective.task

    @property
    def steps(self) -> int | None:
        """K; None for a model that does not iterate."""
        found = self.record.model["options"].get("steps")
        return None if found is None else int(found)

    @property
    def reported_split(self) -> str | None:
        """Where answers are looked at: test where it is labelled, else dev; None where nothing was answered."""
        return next(
            (name for name in ("test", "dev", *self.record.predictions) if name in self.record.predictions), None
        )

    @property
    def has_weights(self) -> bool:
        return self.task is not None and (self.folder / "model" / WEIGHTS).is_file()

    def predictions(self, split: str) -> Predictions | None:
        """The stored answers to a split; None where their file is not there."""
        stated = self.record.predictions.get(split)
        path = None if stated is None else self.folder / "predictions" / f"{split}.parquet"
        return read_predictions(path) if path is not None and path.is_file() else None

    def hashes(self) -> list[FileHash]:
        """Record, weights, task and answers; in a sealed run the model's options and its card as well."""
        checkpoint, known = self.record.checkpoint, sealed_hashes(self.folder)
        found = [self._hash("record", RECORD, known.get(RECORD))]
        if checkpoint is not None:
            found.append(self._hash("weights", f"model/{WEIGHTS}", checkpoint.sha256))
            found.append(self._hash("task", f"model/{TASK}", known.get(f"model/{TASK}")))
        for what, file in (("options", f"model/{CONFIG}"), ("card", f"model/{CARD}")):
            if file in known:
                found.append(self._hash(what, file, known[file]))
        for split, stated in self.record.predictions.items():
            found.append(self._hash(f"answers to {split}", f"predictions/{split}.parquet", stated.sha256))
        return found

    def _hash(self, what: str, file: str, recorded: str | None) -> FileHash:
        path = self.folder / file
        return FileHash(what=what, file=file, sha256=sha256(path) if path.is_file() else None, recorded=recorded)


def open_run_files(folder: Path | str) -> RunFiles:
    """The files of a run's folder; its model is not loaded, and its weights may be missing."""
    folder = Path(folder)
    if folder.name == "model" and (folder.parent / RECORD).is_file():
        folder = folder.parent
    if not (folder / RECORD).is_file():
        if not folder.exists():
            raise StudyError(f"{folder} is not the folder of a run or a study: there is nothing of that name")
        raise StudyError(
            f"{folder} is not the folder of a run or a study: it has neither {RECORD}, as `meq train` writes it, nor "
            f"{STUDY}, as `meq study run` does"
        )
    # What a run says of itself must be what it wrote; of answers and weights, `hashes` says whether they are. A run
    # that is being trained has written a record since, and its seal is that of the one to come.
    known = sealed_hashes(folder)
    for file in (RECORD, f"model/{TASK}", f"model/{CONFIG}", f"model/{SEAL}"):
        path = folder / file
        if file in known and path.is_file() and sha256(path) != known[file] and read_record(folder).over:
            raise FormatError(f"{path} changed since the run was sealed: its SHA-256 differs")
    task = folder / "model" / TASK
    record = read_record(folder)
    ended = record.scored and task.is_file()  # a run that goes on has one for its best weights so far
    return RunFiles(folder=folder, record=record, task=read_task(task) if ended else None)


def sealed_hashes(folder: Path) -> dict[str, str]:
    """What the seals of a run and of its model say of their files, by path; nothing for a run without seals."""
    found = {}
    for place in (".", "model"):
        seal = read_seal(folder / place)
        for name, entry in ({} if seal is None else seal.files).items():
            found[(Path(place) / name).as_posix()] = entry.sha256
    return found
