"""A trained run, from its folder or from the Hub: the model, its labels, and what is done to an example before.

run = load_run("runs/photos")
print(run.evaluate())
run.predict_table("new.csv").save("answers.csv")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi

from meq.data.contract import Example
from meq.encoders import Encoder
from meq.experiments.runs.answers import Answer, Answers
from meq.experiments.runs.evaluation import Evaluation
from meq.experiments.study import StudyError
from meq.models.base import FusionModel
from meq.models.find import fetched, missing_here
from meq.models.fitting import read_config
from meq.models.hub import CONFIG, WEIGHTS
from meq.models.iterated import Iterated
from meq.training.bundle import CARD, TASK, Task, check_weights, read_task
from meq.training.record import RECORD, EncoderFacts, RunRecord, read_record
from meq.training.request import RunRequest, read_request
from meq.training.seal import SEAL, check_seal

UPLOADED = (CONFIG, WEIGHTS, TASK, CARD, SEAL)
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

    @property
    def not_sealed(self) -> str | None:
        """What to know of a run without a seal; None for one that has it."""
        words = f"{self.folder} is not sealed: only its weights were checked, as with runs of older versions of meq"
        return None if self.sealed else words

    @property
    def labels(self) -> tuple[str, ...]:
        return self.task.labels

    @property
    def request(self) -> RunRequest | None:
        """What it was asked to train on; None for a run of a study, and for a model without the rest of its run."""
        return read_request(self.folder.parent) if self.folder.name == "model" else None

    def predict(
        self, examples: Sequence[Example], *, encoders: Mapping[str, Encoder] | None = None, batch_size: int = 64
    ) -> list[Answer]:
        """Answers to new examples. Pictures and texts go through the encoders of training, found again unless given."""
        from meq.experiments.runs.predict import predict_examples

        return predict_examples(self, examples, encoders=encoders, batch_size=batch_size)

    def predict_table(self, path: Path | str, *, root: Path | None = None, skip_bad: bool = False) -> Answers:
        """Answers to the rows of a table with the columns of the one it was trained on; no label column is needed.

        An empty cell is a missing modality. Paths of pictures and sounds begin at `root`, by default the table's
        folder. A row that cannot be read is an error, or, with `skip_bad`, is left out and named in `left_out`.
        """
        from meq.experiments.runs.predict import predict_table

        return predict_table(self, path, root=root, on_bad="skip" if skip_bad else "raise")

    def evaluate(self, path: Path | str | None = None, *, split: str | None = None) -> Evaluation:
        """Scores on every labelled split of its own data, or on a table with the same columns; prints itself."""
        from meq.experiments.runs.evaluate import evaluate_run

        return evaluate_run(self, None if path is None else str(path), split=split)

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


def facts_of(encoder: Encoder) -> EncoderFacts:
    """What a run keeps of an encoder."""
    return EncoderFacts(name=encoder.name, revision=encoder.revision, sha256=encoder.weight_hash)


def check_encoder(modality: str, encoder: Encoder, expected: EncoderFacts) -> None:
    """An error if it is not the encoder that the modality was encoded by in training."""
    given = facts_of(encoder)
    if given != expected:
        raise StudyError(
            f"{modality!r} was encoded by {shown(expected)} in training, and {shown(given)} is something else"
        )


def shown(facts: EncoderFacts) -> str:
    return f"{facts.name} ({facts.revision}, {facts.sha256[:12]})"


def load_run(place: str | Path, *, revision: str | None = None, token: str | None = None) -> TrainedRun:
    """A run's folder, the folder `model` in it, or a repository of the Hub. A file that has changed is an error."""
    folder = _local(Path(place)) or _downloaded(str(place), revision, token)
    above = folder.parent if folder.name == "model" and _is_a_run(folder.parent) else None
    if not (folder / TASK).is_file():
        raise StudyError(_unfinished(folder))
    record = read_record(above) if above is not None and (above / RECORD).is_file() else None
    if record is not None and not record.over:
        raise StudyError(_unfinished(folder))
    sealed = _check_seals(folder, above)
    task = read_task(folder / TASK)
    check_weights(task, folder / WEIGHTS, hashed=sealed)
    model = FusionModel.from_pretrained(folder).eval()
    run = TrainedRun(model=model, task=task, record=record, folder=folder, sealed=sealed is not None)
    _run_as_trained(run)
    return run


def _is_a_run(folder: Path) -> bool:
    """A seal is enough: it misses the record, where somebody has removed it."""
    return (folder / RECORD).is_file() or (folder / SEAL).is_file()


def _check_seals(folder: Path, above: Path | None) -> str | None:
    """An error if a file of the model, or of the run above it, is not as it was sealed; else the weights' hash.

    None where there is no seal.
    """
    whole = above is None or check_seal(above) is not None
    seal = check_seal(folder, may_lack=(CARD,))  # the Hub's card may be edited, and is not downloaded
    return seal.files[WEIGHTS].sha256 if whole and seal is not None else None


def _run_as_trained(run: TrainedRun) -> None:
    """Models saved by older versions do not say by which solver they are run; the study that trained one does."""
    options = read_config(run.folder / CONFIG)["options"]
    if not isinstance(run.model, Iterated) or {"solver", "backward"} <= options.keys():
        return
    from meq.experiments.build import set_iteration
    from meq.experiments.runs.raw import arm_of

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
    with suppress(FileNotFoundError):  # pushed by an older version
        fetched(name, (SEAL,), what="seal", revision=revision, token=token)
    return folder
