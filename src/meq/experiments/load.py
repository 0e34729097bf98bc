"""A trained run, from its folder or from the Hub: the model, its labels, and what is done to an example before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub import HfApi, hf_hub_download
from jaxtyping import Float
from torch import Tensor

from meq.data.contract import DataSet, Example, Modality, Split, collate, features
from meq.data.metrics import ACCURACY
from meq.encoders import Encoder, encode
from meq.experiments.study import StudyError
from meq.models.base import FusionModel
from meq.models.hub import CONFIG, WEIGHTS
from meq.training.bundle import TASK, Task, check_weights, read_task
from meq.training.record import RECORD, EncoderFacts, RunRecord, read_record


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a trained model says of one example."""

    id: str
    answer: str | float
    """A label, the place of a choice, or a number."""
    logits: Float[Tensor, " C"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRun:
    """A model that is ready to answer."""

    model: FusionModel
    task: Task
    record: RunRecord | None
    """None for a model that was loaded without the rest of its run."""
    folder: Path
    """Where its files lie."""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.task.labels

    def predict(
        self, examples: Sequence[Example], *, encoders: Mapping[str, Encoder] | None = None, batch_size: int = 64
    ) -> list[Answer]:
        """Answers to new examples. Pictures and texts need the encoders that the model was trained with."""
        data = self._prepared(examples, encoders or {})
        rows: Split = data.splits["new"]
        answers = []
        for start in range(0, len(rows), batch_size):
            part = [
                replace(rows[row], target=torch.zeros(())) for row in range(start, min(start + batch_size, len(rows)))
            ]
            batch = collate(part, data.widths)
            with torch.no_grad():
                logits = self.model(batch.features, batch.masks).logits
            answers += [self._answer(name, row) for name, row in zip(batch.ids, logits.float(), strict=True)]
        return answers

    def push_to_hub(self, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
        """Upload the model's folder, which `load_run(repo_id)` loads again; returns the address."""
        api = HfApi(token=token)
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=self.folder, commit_message="Upload a trained run")
        return str(address)

    def _prepared(self, examples: Sequence[Example], encoders: Mapping[str, Encoder]) -> DataSet:
        for name, encoder in encoders.items():
            expected = self.task.encoders.get(name)
            given = EncoderFacts(name=encoder.name, revision=encoder.revision, sha256=encoder.weight_hash)
            if expected is not None and given != expected:
                raise StudyError(
                    f"{name!r} was encoded by {expected.name} ({expected.revision}, {expected.sha256[:12]}) in "
                    f"training, and {given.name} ({given.revision}, {given.sha256[:12]}) is something else"
                )
        modalities: dict[str, Modality] = {name: features(width) for name, width in self.task.widths.items()}
        modalities |= {name: Modality(kind=encoder.kind) for name, encoder in encoders.items()}  # type: ignore[arg-type]
        head, labels = self.task.head, self.task.labels
        data = DataSet(
            name="new", splits={"new": examples}, modalities=modalities, labels=labels, head=head, metric=ACCURACY
        )
        data = encode(data, encoders) if encoders else data
        return data if self.task.standardisation is None else self.task.standardisation.apply(data)

    def _answer(self, name: str, logits: Tensor) -> Answer:
        best = int(logits.argmax())
        if self.task.head == "score":
            return Answer(id=name, answer=float(logits[0]), logits=logits)
        return Answer(id=name, answer=str(best) if self.task.head == "choices" else self.labels[best], logits=logits)


def load_run(place: str | Path, *, revision: str | None = None, token: str | None = None) -> TrainedRun:
    """A run's folder, the folder `model` in it, or a repository of the Hub."""
    folder = _local(Path(place))
    if folder is None:
        names = (TASK, CONFIG, WEIGHTS)
        files = [Path(hf_hub_download(str(place), name, revision=revision, token=token)) for name in names]
        folder = files[0].parent
    if not (folder / TASK).is_file():
        raise StudyError(f"{folder} has no {TASK}: the run is not finished, or was trained by an older version of meq")
    task = read_task(folder / TASK)
    check_weights(task, folder / WEIGHTS)
    model = FusionModel.from_pretrained(folder).eval()
    above = folder.parent
    record = read_record(above) if folder.name == "model" and (above / RECORD).is_file() else None
    return TrainedRun(model=model, task=task, record=record, folder=folder)


def _local(place: Path) -> Path | None:
    for folder in (place / "model", place):
        if (folder / CONFIG).is_file():
            return folder
    if place.exists():
        raise StudyError(
            f"{place} is not the folder of a trained run: expected {RECORD} and model/ with {CONFIG}, {WEIGHTS} and "
            f"{TASK}"
        )
    return None
