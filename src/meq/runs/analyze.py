"""A trained run under the instruments, kept beside it in `analysis/`: the diagnosis of a few samples, the score along
the steps, and what maps of its answers are worth.

`analysis.json` is computed from the weights and the data. One of a version of meq that kept other fields is not read:
the run counts as not analyzed, and the next analysis takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Complex
from torch import Tensor

from meq.analysis.attribution import default_method
from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.analysis.removal import Faithfulness, measure_faithfulness
from meq.analysis.spectrum import leading_eigenvalues
from meq.analysis.tables import middle
from meq.analysis.trajectory import Trajectory, follow
from meq.analysis.walk import check_iterates
from meq.core.solution import Solution
from meq.core.solvers import Damped
from meq.data.contract import DataSet, Split, collate
from meq.encoders.contract import Progress
from meq.models.base import FusionModel
from meq.models.iterated import IteratedModel
from meq.records import SCHEMA, alone, read_cached, write_sealed
from meq.runs.load import TrainedRun
from meq.runs.own_data import ReadOptions, chosen_split, run_data, study_above
from meq.showing import Tabular
from meq.studies.study import STUDY, StudyError
from meq.studies.verify import MANIFEST, read_manifest, sealed, write_manifest
from meq.training.predictions import answer_batch, batched, labelled, without_targets
from meq.training.record import RECORD

FOLDER, ANALYSIS = "analysis", "analysis.json"
OLDER = ("diagnosis.json", "trajectory.json", "maps.json", "showcase.json")
"""What earlier versions kept there: it is computed again, and then these files go."""
BATCH = 64
MAPPED = 128
"""Examples whose maps are tested, spread over the split: each takes some fifty answers."""


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Which examples are analyzed, and how many."""

    split: str | None = None
    """By default test, or else dev, or else the only one there is."""
    samples: int = 4
    """How many are diagnosed: each takes hundreds of products with the Jacobian."""
    limit: int = 1000
    """How many are followed along the steps, and answered with each modality shuffled: the first of the split."""
    horizon: int | None = None
    """How many steps they are followed for; twice the read depth K unless given."""
    steps: int | None = None
    """The read depth to look at instead of the model's own K; what is found is then not kept."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.limit < 1:
            raise StudyError(f"at least one sample is needed, got {self.samples} and {self.limit}")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which data and weights an analysis is of."""

    data: str
    split: str
    same_data: bool
    """The very data of training, by its fingerprint."""
    weights_sha256: str


@dataclass(frozen=True, kw_only=True)
class TrajectorySummary:
    """A Trajectory without its samples, one number per measured step: medians over the samples, but for the score."""

    steps: tuple[int, ...]
    read: int
    """K, the step that answers are read at."""
    samples: int
    diverged: int
    metric_name: str
    metric: tuple[float, ...] | None
    """None without labels."""
    confidence: tuple[float, ...]
    flips: tuple[int, ...]
    """Samples that answer otherwise at a later step."""
    residuals: Mapping[str, tuple[float, ...]]
    drift: Mapping[str, float]
    page: str
    """What is printed."""

    @classmethod
    def of(cls, found: Trajectory) -> TrajectorySummary:
        return cls(
            steps=found.steps,
            read=found.read,
            samples=found.predictions.shape[1],
            diverged=found.diverged,
            metric_name=found.metric_name,
            metric=None if found.metric is None else tuple(found.metric.double().tolist()),
            confidence=tuple(middle(row) for row in found.confidence),
            flips=tuple(found.flips.tolist()),
            residuals={name: tuple(middle(row) for row in rows) for name, rows in found.residuals.items()},
            drift={name: middle(values) for name, values in found.drift.items()},
            page=str(found),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class IterationSpectrum:
    """The leading eigenvalues of dT/dz at the read state, a row per sample, and how the iteration is damped."""

    values: Complex[Tensor, "B E"]
    """NaN where they were not found."""
    damping: float | None
    """None for a solver that is not a damped iteration."""

    @classmethod
    def of(cls, solution: Solution, *, count: int = 12) -> IterationSpectrum:
        solver = solution.solver
        return cls(
            values=leading_eigenvalues(solution.operator, solution, count=count).values,
            damping=float(solver.step) if isinstance(solver, Damped) else None,
        )

    @property
    def found(self) -> bool:
        return not bool(self.values.abs().isnan().all())

    def in_words(self) -> list[str]:
        """What the largest modulus says of the iteration, undamped and as it is taken."""
        if not self.found:
            return ["The eigenvalues were not found: they lie too close to each other for Arnoldi to tell them apart."]
        lines = [_radius_line("The undamped map", self.values)]
        if self.damping is not None and self.damping != 1:
            # Of the eigenvalues that were found: one that was not is smaller than all of these, and so is not the
            # radius of the undamped map, but 1 - d + d lambda may still be larger. The sentence says so.
            damped = _radius_line(
                f"As it is iterated, damped by {self.damping:.3g}", (1 - self.damping) + self.damping * self.values
            )
            lines.append(f"{damped} (Of the eigenvalues shown; damping may bring others forward.)")
        return lines


def _radius_line(what: str, values: Complex[Tensor, "B E"]) -> str:
    radius = float(values.abs().nan_to_num(0).max())
    begin = f"{what}: the largest modulus is {radius:.3f}, "
    if radius >= 1:
        return begin + "not below 1: near this state the iteration moves away along at least one direction."
    steps = math.ceil(math.log(0.1) / math.log(radius)) if radius > 0 else 1
    return begin + f"below 1: near this state a disturbance shrinks to a tenth in about {steps:,} steps."


@dataclass(frozen=True, kw_only=True, eq=False)
class RunAnalysis(Tabular):
    """What `analysis.json` holds."""

    schema: int = SCHEMA
    origin: Origin
    diagnosis: Diagnosis
    trajectory: TrajectorySummary
    maps: Faithfulness | None = None
    """None for multiple choice and for single tokens, where there is no order of tokens to test."""

    def rows(self) -> list[dict[str, Any]]:
        """The samples along the steps: one row per step that was looked at."""
        walked = self.trajectory
        scores = () if walked.metric is None else ((walked.metric_name or "score", walked.metric),)
        columns = {**dict(scores), "confidence": walked.confidence, "flips": walked.flips}
        columns |= {f"residual({name})": values for name, values in walked.residuals.items()}
        return [
            {"step": step, "read": step == walked.read, **{name: values[at] for name, values in columns.items()}}
            for at, step in enumerate(walked.steps)
        ]

    def remarks(self) -> list[str]:
        return [f"{self.origin.data}, split {self.origin.split}", "", str(self.diagnosis)]

    def __str__(self) -> str:
        parts = [*self.remarks(), "", self.trajectory.page]
        return "\n".join([*parts, *(["", self.maps.words] if self.maps is not None else [])])


def analyze_run(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    options: AnalysisOptions = AnalysisOptions(),  # noqa: B008
    reading: ReadOptions = ReadOptions(),  # noqa: B008
    keep: bool = True,
) -> RunAnalysis:
    """Diagnose and follow the run on its own data, or on other data; kept in its folder unless told otherwise."""
    model = run.model if options.steps is None else run.model_read(options.steps)
    progress = reading.progress or no_progress
    keep = keep and options.steps in (None, getattr(run.model, "steps", None))
    check_iterates(model)
    if not isinstance(model, IteratedModel):
        raise StudyError(f"{type(model).__name__} cannot be followed along its steps")
    if options.horizon is not None and options.horizon < model.steps:  # said before anything that takes long
        raise StudyError(f"horizon {options.horizon} lies before the step that is read, K = {model.steps}")
    ready = run_data(run, data, root=root, labelled=None, reading=reading)
    split = options.split or next((name for name in ("test", "dev") if name in ready.data.splits), None)
    made = chosen_split(ready.data, split or next(iter(ready.data.splits)))
    (name,) = made.splits
    found = RunAnalysis(
        origin=Origin(data=made.name, split=name, same_data=ready.same, weights_sha256=run.task.weights_sha256),
        diagnosis=diagnose_split(
            model, made, samples=options.samples, among=options.samples, limit=options.limit, progress=progress
        ),
        trajectory=follow_split(model, made, limit=options.limit, horizon=options.horizon, progress=progress),
        maps=maps_of_split(model, made, progress),
    )
    if keep and run.place is not None:
        write_analysis(run.place, found)
    return found


def diagnose_split(
    model: FusionModel, data: DataSet, *, samples: int, among: int, limit: int, progress: Progress
) -> Diagnosis:
    """`samples` of the first `among` examples; if they have labels, the first `limit` show what answers owe to what."""
    (split,) = data.splits.values()
    output = first_output(model, data, among)
    answered = list(_batches(split[:limit], data)) if labelled(split) else None
    progress("diagnosing", 0, 1)
    found = diagnose(model, output, data=answered, samples=samples)
    progress("diagnosing", 1, 1)
    return found


def follow_split(
    model: IteratedModel,
    data: DataSet,
    *,
    limit: int,
    horizon: int | None = None,
    steps: Sequence[int] | None = None,
    progress: Progress,
) -> TrajectorySummary:
    """The first examples along the steps, up to twice the read depth unless told; scored where they are labelled."""
    (split,) = data.splits.values()
    count = min(limit, len(split))

    def batches() -> Iterator[SimpleNamespace]:
        for done, batch in enumerate(_batches(split[:count], data), start=1):
            yield batch
            progress("following the steps", min(done * BATCH, count), count)

    metric = data.metric if labelled(split) else None
    walked = follow(model, batches(), steps=steps, horizon=horizon or 2 * model.steps, metric=metric)
    return TrajectorySummary.of(walked)


def maps_of_split(model: IteratedModel, data: DataSet, progress: Progress) -> Faithfulness | None:
    """Whether the default maps beat random ones on this data; None where there is no order of tokens to test."""
    (split,) = data.splits.values()
    if model.head_kind == "choices":
        return None
    rows = torch.linspace(0, len(split) - 1, min(MAPPED, len(split))).long()  # neighbours often share a picture
    batches = list(_batches([split[row] for row in rows.tolist()], data))
    if not any(x.ndim == 3 and x.shape[1] > 1 for batch in batches for x in batch.features.values()):
        return None
    progress("testing the maps", 0, 1)
    method = default_method(model, batches[0].features, batches[0].masks)
    found = measure_faithfulness(model, batches, method=method)
    progress("testing the maps", 1, 1)
    return found


def first_output(model: FusionModel, data: DataSet, count: int) -> Any:
    """What the model returns for the first examples."""
    (split,) = data.splits.values()
    return answer_batch(model, without_targets(split[:count]), data.widths)[1]


def _batches(examples: Split, data: DataSet) -> Iterator[SimpleNamespace]:
    """Ids, features, masks, and the target, which is None where there is none."""
    for part in batched(examples, BATCH):
        known = part[0].target is not None
        made = collate(part if known else without_targets(part), data.widths, data.answering)
        target = made.target if known else None
        yield SimpleNamespace(ids=made.ids, features=made.features, masks=made.masks, target=target)


def no_progress(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


# -- on disk -----------------------------------------------------------------------------------------------------------


def write_analysis(run: Path, analysis: RunAnalysis) -> Path:
    """Keep it in the run's folder, sealed; in a study's folder, its manifest lists the file from then on."""
    folder = run / FOLDER
    with alone(run, f"a run is being trained in {run}: what was measured is of weights that it may replace"):
        write_sealed(folder / ANALYSIS, analysis)
        for name in OLDER:
            (folder / name).unlink(missing_ok=True)
        list_in_study(run.resolve(), f"{FOLDER}/{ANALYSIS}")
    return folder


def analysis_of(run: TrainedRun) -> RunAnalysis | None:
    """What `meq diagnose` left beside a run's model; None if there is none, or if it is of other weights."""
    kept = None if run.place is None else read_analysis(run.place)
    return kept if kept is not None and kept.origin.weights_sha256 == run.task.weights_sha256 else None


def read_analysis(run: Path) -> RunAnalysis | None:
    """What `meq diagnose` left in the folder; None if it never ran, or was of a version that kept other fields."""
    return read_cached(RunAnalysis, run / FOLDER / ANALYSIS)


def list_in_study(run: Path, file: str) -> None:
    """Keep the manifest of the study true, or `verify` would find an unlisted file and missing ones."""
    study = study_above(run)
    if study is None or not (study / MANIFEST).is_file():
        return
    with alone(study / STUDY, f"the study in {study} is being run, and its list of files is written by who runs it"):
        place, manifest = run.relative_to(study).as_posix(), read_manifest(study)
        if f"{place}/{RECORD}" in manifest.files:
            gone = {f"{place}/{FOLDER}/{name}" for name in OLDER}
            kept = {name: entry for name, entry in manifest.files.items() if name not in gone}
            write_manifest(study, sealed(replace(manifest, files=kept), study, [f"{place}/{file}"]))
