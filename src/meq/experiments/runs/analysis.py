"""What the instruments say of a trained run, as plain numbers that are kept beside it: `analysis/` in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from meq.analysis.answers import Answers, Estimate
from meq.analysis.diagnosis import Diagnosis
from meq.analysis.faithfulness import Faithfulness
from meq.analysis.tables import middle
from meq.analysis.trajectory import Trajectory
from meq.experiments.manifest import MANIFEST, read_manifest, sealed, write_manifest
from meq.experiments.study import STUDY
from meq.files import alone
from meq.training.plain import SINCE
from meq.training.record import RECORD
from meq.training.sealed import read_sealed, write_sealed

FOLDER, DIAGNOSIS, TRAJECTORY, MAPS = "analysis", "diagnosis.json", "trajectory.json", "maps.json"
SCHEMA = 1
Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What was looked at."""

    schema: int
    data: str
    split: str
    same_data: bool
    """The very data of training, by its fingerprint."""
    weights_sha256: str


@dataclass(frozen=True, kw_only=True)
class FindingFile:
    """The answer to one of the questions behind the verdict."""

    holds: bool | None
    """None: not measured."""
    words: str


@dataclass(frozen=True, kw_only=True)
class AnswersFile:
    """`meq.analysis.answers.Answers`; an estimate is a value and the two ends of its interval."""

    samples: int
    score_name: str
    score: float
    constant: float
    chance: float
    gain: Numbers
    losses: Mapping[str, Numbers]
    changed: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class DiagnosisFile:
    """`meq.diagnose`, one number per measured sample."""

    origin: Origin
    verdict: str
    evidence: str
    samples: int
    measured: int
    diverged: int
    tol: float
    radius: Numbers
    damped_radius: Numbers
    statistic: Numbers
    """|J|, the root mean square singular value."""
    residual: Numbers
    further_steps: Numbers
    cross_self: Mapping[str, Numbers]
    gates: Mapping[str, Numbers]
    answer: Mapping[str, Numbers]
    influence: Mapping[str, Mapping[str, Numbers]]
    inputs: Mapping[str, Mapping[str, Numbers]]
    spread: float
    page: str
    """What is printed."""
    findings: Mapping[str, FindingFile] = field(default_factory=dict, metadata=SINCE)
    """By key of `meq.analysis.collapse.QUESTIONS`; files of older versions have none, and their verdict knew less."""
    answers: AnswersFile | None = field(default=None, metadata=SINCE)
    settling_steps: Numbers = field(default=(), metadata=SINCE)
    radius_bounds: tuple[Numbers, ...] = field(default=(), metadata=SINCE)


@dataclass(frozen=True, kw_only=True)
class TrajectoryFile:
    """`meq.analysis.follow`, one number per measured step: medians over the samples, but for the score."""

    origin: Origin
    steps: tuple[int, ...]
    read: int
    """K, the step that answers are read at."""
    samples: int
    diverged: int
    metric_name: str
    metric: Numbers | None
    """None without labels."""
    confidence: Numbers
    flips: tuple[int, ...]
    """Samples that answer otherwise at a later step."""
    residuals: Mapping[str, Numbers]
    drift: Mapping[str, float]
    page: str


@dataclass(frozen=True, kw_only=True)
class MapsFile:
    """What maps of this model are worth as evidence: `meq.analysis.faithfulness.Faithfulness`."""

    origin: Origin
    method: str
    samples: int
    gain: Mapping[str, Numbers]
    """By modality: ahead of random maps in deletion and insertion together, with the ends of its interval."""
    deletion: Mapping[str, Numbers]
    insertion: Mapping[str, Numbers]
    words: str

    @property
    def is_weak(self) -> bool:
        return any(not low > 0 for _, low, _ in self.gain.values())


@dataclass(frozen=True, kw_only=True)
class RunAnalysis:
    """All of it."""

    diagnosis: DiagnosisFile
    trajectory: TrajectoryFile
    maps: MapsFile | None = None
    """None for multiple choice, where maps are not tested, and where an older version looked at the run."""

    def __str__(self) -> str:
        origin = self.diagnosis.origin
        parts = [f"{origin.data}, split {origin.split}", "", self.diagnosis.page, "", self.trajectory.page]
        return "\n".join([*parts, *(["", self.maps.words] if self.maps is not None else [])])


def diagnosis_file(found: Diagnosis, origin: Origin) -> DiagnosisFile:
    return DiagnosisFile(
        origin=origin,
        verdict=found.verdict.value,
        evidence=found.evidence,
        samples=found.samples,
        measured=len(found.radius),
        diverged=found.diverged,
        tol=found.tol,
        radius=_numbers(found.radius),
        damped_radius=_numbers(found.damped_radius),
        statistic=_numbers(found.statistic),
        residual=_numbers(found.residual),
        further_steps=_numbers(found.further_steps),
        cross_self={name: _numbers(x) for name, x in found.cross_self.items()},
        gates={name: _numbers(x) for name, x in found.gates.items()},
        answer={name: _numbers(x) for name, x in found.answer.items()},
        influence={a: {b: _numbers(x) for b, x in row.items()} for a, row in found.influence.items()},
        inputs={a: {b: _numbers(x) for b, x in row.items()} for a, row in found.inputs.items()},
        spread=float(found.spread),
        page=str(found),
        findings={name: FindingFile(holds=each.holds, words=each.words) for name, each in found.findings.items()},
        answers=None if found.answers is None else _answers_file(found.answers),
        settling_steps=_numbers(found.settling_steps),
        radius_bounds=tuple(_numbers(bound) for bound in found.radius_bounds),
    )


def _answers_file(found: Answers) -> AnswersFile:
    return AnswersFile(
        samples=found.samples,
        score_name=found.score_name,
        score=found.score,
        constant=found.constant,
        chance=found.chance,
        gain=_three(found.gain),
        losses={name: _three(loss) for name, loss in found.losses.items()},
        changed=dict(found.changed),
    )


def _three(found: Estimate) -> Numbers:
    return found.value, found.low, found.high


def trajectory_file(found: Trajectory, origin: Origin) -> TrajectoryFile:
    return TrajectoryFile(
        origin=origin,
        steps=found.steps,
        read=found.read,
        samples=found.predictions.shape[1],
        diverged=found.diverged,
        metric_name=found.metric_name,
        metric=None if found.metric is None else _numbers(found.metric),
        confidence=tuple(middle(row) for row in found.confidence),
        flips=tuple(int(x) for x in found.flips.tolist()),
        residuals={name: tuple(middle(row) for row in rows) for name, rows in found.residuals.items()},
        drift={name: middle(values) for name, values in found.drift.items()},
        page=str(found),
    )


def maps_file(found: Faithfulness, origin: Origin) -> MapsFile:
    return MapsFile(
        origin=origin,
        method=found.method,
        samples=found.samples,
        gain={name: _three(each) for name, each in found.gain.items()},
        deletion={name: _three(each) for name, each in found.deletion.items()},
        insertion={name: _three(each) for name, each in found.insertion.items()},
        words=found.words,
    )


def write_analysis(run: Path, analysis: RunAnalysis) -> Path:
    """Keep it in the run's folder, sealed; in a study's folder, its manifest lists the files from then on."""
    folder = run / FOLDER
    with alone(run, f"a run is being trained in {run}: what was measured is of weights that it may replace"):
        write_sealed(folder / DIAGNOSIS, analysis.diagnosis)
        write_sealed(folder / TRAJECTORY, analysis.trajectory)
        if analysis.maps is not None:
            write_sealed(folder / MAPS, analysis.maps)
        _list_in_study(run)
    return folder


def read_analysis(run: Path) -> RunAnalysis | None:
    """What `meq analyze` left in the run's folder; None if it never ran."""
    folder = run / FOLDER
    if not (folder / DIAGNOSIS).is_file() or not (folder / TRAJECTORY).is_file():
        return None
    return RunAnalysis(
        diagnosis=read_sealed(DiagnosisFile, folder / DIAGNOSIS),
        trajectory=read_sealed(TrajectoryFile, folder / TRAJECTORY),
        maps=read_maps(run),
    )


def read_maps(run: Path) -> MapsFile | None:
    """What is known of the maps of this run; None if nobody has tested them."""
    path = run / FOLDER / MAPS
    return read_sealed(MapsFile, path) if path.is_file() else None


def _list_in_study(run: Path) -> None:
    """A file that a study's manifest does not list would be a fault."""
    run = run.resolve()
    if len(run.parents) < 3 or not (run.parents[2] / MANIFEST).is_file():
        return
    study = run.parents[2]
    with alone(study / STUDY, f"the study in {study} is being run, and its list of files is written by who runs it"):
        place, manifest = run.relative_to(study).as_posix(), read_manifest(study)
        if f"{place}/{RECORD}" in manifest.files:
            names = [name for name in (DIAGNOSIS, TRAJECTORY, MAPS) if (run / FOLDER / name).is_file()]
            files = [f"{place}/{FOLDER}/{name}" for name in names]
            write_manifest(study, sealed(manifest, study, files))


def _numbers(x: Tensor) -> Numbers:
    return tuple(float(value) for value in x.double().tolist())
