"""A trained run under the instruments: the diagnosis of a few samples, and the score along the steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from meq.analysis.attribution import default_method
from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.analysis.faithfulness import measure_faithfulness
from meq.analysis.subject import check_iterates
from meq.analysis.trajectory import Trajectory, follow
from meq.data.contract import DataSet, Split, collate
from meq.encoders.survey import Progress
from meq.experiments.runs.analysis import (
    SCHEMA,
    MapsFile,
    Origin,
    RunAnalysis,
    diagnosis_file,
    maps_file,
    trajectory_file,
    write_analysis,
)
from meq.experiments.runs.data import Reading, chosen_split, other_data, own_data
from meq.experiments.runs.load import TrainedRun
from meq.experiments.study import StudyError
from meq.models.iterated import Iterated
from meq.training.evaluation import labelled

BATCH = 64
MAPPED = 128
"""Examples whose maps are tested, spread over the split: each takes some fifty answers."""


@dataclass(frozen=True, kw_only=True)
class Looking:
    """What to look at."""

    split: str | None = None
    """By default test, or else dev, or else the only one there is."""
    samples: int = 4
    """How many are diagnosed: each takes hundreds of products with the Jacobian."""
    limit: int = 1000
    """How many are followed along the steps, and answered with each modality shuffled: the first of the split."""
    horizon: int | None = None
    """How many steps they are followed for; twice the read depth K unless given."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.limit < 1:
            raise StudyError(f"at least one sample is needed, got {self.samples} and {self.limit}")


@dataclass(frozen=True, eq=False)
class _Batch:
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    target: Tensor | None


def analyze_run(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    looking: Looking = Looking(),  # noqa: B008
    reading: Reading = Reading(),  # noqa: B008
    keep: bool = True,
) -> RunAnalysis:
    """Diagnose and follow the run on its own data, or on other data; kept in its folder unless told otherwise."""
    model = run.model
    check_iterates(model)
    if not isinstance(model, Iterated):
        raise StudyError(f"{type(model).__name__} cannot be followed along its steps")
    if looking.horizon is not None and looking.horizon < model.steps:  # said before anything that takes long
        raise StudyError(f"horizon {looking.horizon} lies before the step that is read, K = {model.steps}")
    ready = (
        own_data(run, root=root, reading=reading)
        if data is None
        else other_data(run, data, root=root, labelled=None, reading=reading)
    )
    split = looking.split or next((name for name in ("test", "dev") if name in ready.data.splits), None)
    made = chosen_split(ready.data, split or next(iter(ready.data.splits)))
    (name,) = made.splits
    origin = Origin(
        schema=SCHEMA, data=made.name, split=name, same_data=ready.same, weights_sha256=run.task.weights_sha256
    )
    found = RunAnalysis(
        diagnosis=diagnosis_file(_diagnosed(run, made, looking, reading.progress), origin),
        trajectory=trajectory_file(_followed(model, made, looking, reading.progress), origin),
        maps=tested_maps(model, made, origin, reading.progress),
    )
    if keep and run.folder.name == "model":
        write_analysis(run.folder.parent, found)
    return found


def _diagnosed(run: TrainedRun, data: DataSet, looking: Looking, progress: Progress | None) -> Diagnosis:
    (split,) = data.splits.values()
    samples = looking.samples
    (batch,) = _batches(data, split, min(samples, len(split)), size=samples)
    answered = list(_batches(data, split, min(looking.limit, len(split)), size=BATCH)) if labelled(split) else None
    if progress is not None:
        progress("diagnosing", 0, 1)
    with torch.no_grad():
        output = run.model(batch.features, batch.masks)
    found = diagnose(run.model, output, data=answered, samples=samples)
    if progress is not None:
        progress("diagnosing", 1, 1)
    return found


def tested_maps(model: Iterated, data: DataSet, origin: Origin, progress: Progress | None) -> MapsFile | None:
    """Whether the default maps beat random ones on this data; None where there is no order of tokens to test."""
    (split,) = data.splits.values()
    if model.head_kind == "choices":
        return None
    count = min(MAPPED, len(split))
    rows = torch.linspace(0, len(split) - 1, count).long().tolist()  # neighbours often share a picture
    parts = [[split[row] for row in rows[start : start + BATCH]] for start in range(0, count, BATCH)]
    batches = [collate([replace(each, target=torch.zeros(())) for each in part], data.widths) for part in parts]
    if not any(x.ndim == 3 and x.shape[1] > 1 for batch in batches for x in batch.features.values()):
        return None
    if progress is not None:
        progress("testing the maps", 0, 1)
    method = default_method(model, batches[0].features, batches[0].masks)
    found = measure_faithfulness(model, batches, method=method)
    if progress is not None:
        progress("testing the maps", 1, 1)
    return maps_file(found, origin)


def _followed(model: Iterated, data: DataSet, looking: Looking, progress: Progress | None) -> Trajectory:
    (split,) = data.splits.values()
    count = min(looking.limit, len(split))

    def told() -> Iterator[_Batch]:
        for done, batch in enumerate(_batches(data, split, count, size=BATCH), start=1):
            yield batch
            if progress is not None:
                progress("following the steps", min(done * BATCH, count), count)

    metric = data.metric if labelled(split) else None
    return follow(model, told(), horizon=looking.horizon or 2 * model.steps, metric=metric)


def _batches(data: DataSet, split: Split, count: int, *, size: int) -> Iterator[_Batch]:
    """The first examples of a split; without targets where it has no labels."""
    for start in range(0, count, size):
        part = [split[row] for row in range(start, min(start + size, count))]
        known = labelled(split)
        batch = collate(part if known else [replace(each, target=torch.zeros(())) for each in part], data.widths)
        yield _Batch(batch.features, batch.masks, batch.target if known else None)
