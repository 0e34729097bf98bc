"""A trained run, from its folder or from the Hub: the model, its labels, and what is done to an example before.

run = load_run("runs/photos")
print(run.evaluate())
run.predict_table("new.csv").save("answers.csv")
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi

from meq.data.contract import Example
from meq.encoders import Encoder
from meq.models.anytime import Anytime
from meq.models.base import FusionModel
from meq.models.fitting import read_config
from meq.models.hub import CONFIG, WEIGHTS, fetched, missing_here
from meq.models.iterated import IteratedModel
from meq.records import SEAL, FormatError, check_seal, read_seal, sha256
from meq.runs.calibrate import CALIBRATION, Calibration, read_calibration
from meq.studies.study import STUDY, StudyError
from meq.training.bundle import CARD, TASK, Task, check_weights, read_task
from meq.training.predictions import BATCH_SIZE, Predictions, read_predictions
from meq.training.record import RECORD, RunRecord, RunRequest, read_record, read_request

if TYPE_CHECKING:
    from meq.runs.evaluate import Evaluation
    from meq.runs.predict import Answer, Answers

UPLOADED = (CONFIG, WEIGHTS, TASK, CARD, SEAL, CALIBRATION)
"""What belongs to a model and goes to the Hub with it; whatever else lies in its folder stays here."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRun:
    """A model that is ready to answer."""

    model: FusionModel
    task: Task
    record: RunRecord | None
    """None for a model that was loaded without the rest of its run."""
    folder: Path
    """Where its files lie."""
    sealed: bool = False
    """Whether there were hashes of all its files to check; runs of older versions have those of some only."""
    calibration: Calibration | None = None
    """What was calibrated after its training."""

    @property
    def anytime(self) -> Anytime | None:
        """The calibrated rule that its answers are read by; None: all are read at the model's own depth K."""
        stopping = None if self.calibration is None else self.calibration.stopping
        return None if stopping is None else stopping.anytime

    def model_read(self, steps: int | None = None) -> FusionModel:
        """The model as it answers: read at step `steps`, or unless given by the calibrated rule, or else at K.

        It shares all weights with `model`, which stays as it is: instruments look at K, and threads at what they ask.
        """
        if steps is None and self.anytime is None:
            return self.model
        if not isinstance(self.model, IteratedModel):
            kind = type(self.model).__name__
            raise StudyError(f"the run's model, {kind}, does not iterate: there are no steps to read it at")
        other = copy.copy(self.model)
        other.anytime = None if steps is not None else self.anytime
        other.steps = self.model.steps if steps is None else steps
        return other

    @property
    def not_sealed(self) -> str | None:
        """What to know of a run without a seal; None for one that has it."""
        words = f"{self.folder} is not sealed: only its weights were checked, as with runs of older versions of meq"
        return None if self.sealed else words

    @property
    def labels(self) -> tuple[str, ...]:
        return self.task.labels

    @property
    def batch_size(self) -> int:
        """How many examples are answered at a time: as many as in training, so that padding, and bits, are the same."""
        return BATCH_SIZE if self.record is None else int(self.record.config["batch_size"])

    @property
    def place(self) -> Path | None:
        """The run's own folder; None for a model without the rest of its run."""
        return self.folder.parent if self.folder.name == "model" else None

    @property
    def request(self) -> RunRequest | None:
        """What it was asked to train on; None for a run of a study, and for a model without the rest of its run."""
        return None if self.place is None else read_request(self.place)

    def predict(
        self,
        examples: Sequence[Example],
        *,
        encoders: Mapping[str, Encoder] | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> list[Answer]:
        """Answers to new examples. Pictures and texts go through the encoders of training, found again unless given.

        All are read at step `steps`; unless given, by the run's calibrated rule, or else at the model's own depth.
        """
        from meq.runs.predict import predict_examples

        return predict_examples(self, examples, encoders=encoders, batch_size=batch_size, steps=steps)

    def predict_table(
        self, path: Path | str, *, root: Path | None = None, skip_bad: bool = False, steps: int | None = None
    ) -> Answers:
        """Answers to the rows of a table with the columns of the one it was trained on; no label column is needed.

        An empty cell is a missing modality. Paths of pictures and sounds begin at `root`, by default the table's
        folder. A row that cannot be read is an error, or, with `skip_bad`, is left out and named in `left_out`.
        """
        from meq.runs.predict import predict_table

        return predict_table(self, path, root=root, on_bad="skip" if skip_bad else "raise", steps=steps)

    def evaluate(
        self, path: Path | str | None = None, *, split: str | None = None, steps: int | None = None
    ) -> Evaluation:
        """Scores on every labelled split of its own data, or on a table with the same columns; prints itself."""
        from meq.runs.evaluate import evaluate_run

        return evaluate_run(self, None if path is None else str(path), split=split, steps=steps)

    def push_to_hub(self, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
        """Upload the model and its task, which `load_run(repo_id)` loads again; returns the address."""
        api = HfApi(token=token)
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=self.folder,
            allow_patterns=list(UPLOADED),
            commit_message="Upload a trained run",
        )
        return str(address)


def load_run(place: str | Path, *, revision: str | None = None, token: str | None = None) -> TrainedRun:
    """A run's folder, the folder `model` in it, or a repository of the Hub. A file that has changed is an error."""
    folder = _local(Path(place)) or _downloaded(str(place), revision, token)
    above = folder.parent if folder.name == "model" else None
    if above is not None and not any((above / name).is_file() for name in (RECORD, SEAL)):
        above = None  # either is enough for a run: its seal misses the record, where somebody has removed it
    if not (folder / TASK).is_file():
        raise StudyError(_unfinished(folder))
    record = read_record(above) if above is not None and (above / RECORD).is_file() else None
    if record is not None and not record.over:
        raise StudyError(_unfinished(folder))
    whole = above is None or check_seal(above) is not None
    seal = check_seal(folder, may_lack=(CARD,))  # the Hub's card may be edited, and is not downloaded
    hashed = seal.files[WEIGHTS].sha256 if whole and seal is not None else None
    task = read_task(folder / TASK)
    check_weights(task, folder / WEIGHTS, hashed=hashed)
    model = FusionModel.from_pretrained(folder).eval()
    run = TrainedRun(
        model=model,
        task=task,
        record=record,
        folder=folder,
        sealed=hashed is not None,
        calibration=read_calibration(folder, task.weights_sha256),
    )
    _run_as_trained(run)
    return run


def _run_as_trained(run: TrainedRun) -> None:
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
        f"{folder} has no {TASK} that fits its record: the run is not finished (its record says: {status}), or was "
        "trained by an older version of meq. Go on with an interrupted run by the command that began it, and --resume"
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


# -- the files of a run, without its model: what reports are made from -------------------------------------------------


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
    return RunFiles(folder=folder, record=read_record(folder), task=read_task(task) if task.is_file() else None)


def sealed_hashes(folder: Path) -> dict[str, str]:
    """What the seals of a run and of its model say of their files, by path; nothing for a run without seals."""
    found = {}
    for place in (".", "model"):
        seal = read_seal(folder / place)
        for name, entry in ({} if seal is None else seal.files).items():
            found[(Path(place) / name).as_posix()] = entry.sha256
    return found
