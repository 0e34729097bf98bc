"""What is shown of a trained run, kept on disk: explained examples, eigenvalues, diagnosis, score along the steps."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from meq.data.content import DrawnPicture
from meq.data.pictures import open_picture
from meq.experiments.runs.analysis import FOLDER, DiagnosisFile, MapsFile, Numbers, Origin, TrajectoryFile
from meq.experiments.runs.explanation import Explanation, ModalityView
from meq.training.plain import SINCE
from meq.training.sealed import read_sealed, write_sealed

SHOWCASE = "showcase.json"
SCHEMA = 1
QUALITY, LONGEST = 88, 320
"""Of kept pictures: WebP's quality, and the pixels of the longer side."""
Rows = tuple[Numbers, ...]


@dataclass(frozen=True, kw_only=True)
class ViewFile:
    """A ModalityView, its content apart."""

    kind: str
    attribution: Rows
    boxes: Rows | None
    spans: tuple[tuple[int, ...], ...] | None
    times: Rows | None
    size: tuple[int, ...] | None
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class ExplanationFile:
    """An Explanation, as plain numbers."""

    steps: tuple[int, ...]
    read: int
    head: str
    labels: tuple[str, ...]
    logits: Rows
    residuals: Mapping[str, Numbers]
    stopped: int | None
    method: str
    explained: int
    target: int | None
    views: Mapping[str, ViewFile]
    effects: Mapping[str, float] = field(default_factory=dict, metadata=SINCE)
    evidence: str = field(default="", metadata=SINCE)


@dataclass(frozen=True, kw_only=True)
class ExampleFile:
    """An example that is shown, and why."""

    id: str
    reason: str
    answer: str
    truth: str
    confidence: float
    """NaN for a number."""
    texts: Mapping[str, str]
    pictures: Mapping[str, str]
    """WebP in base 64."""
    explanation: ExplanationFile | None
    """None for a model that does not iterate, and where its encoders are not here."""

    def explained(self) -> Explanation | None:
        return None if self.explanation is None else _explanation(self, self.explanation)


@dataclass(frozen=True, kw_only=True)
class EigenvaluesFile:
    """The leading eigenvalues of dT/dz at the read state, a row per sample."""

    real: Rows
    imaginary: Rows
    damping: float | None
    """None for a solver that is not a damped iteration."""

    def values(self) -> Tensor:
        return torch.complex(_tensor(self.real, torch.float64), _tensor(self.imaginary, torch.float64))


@dataclass(frozen=True, kw_only=True)
class ShowcaseFile:
    """Everything that a report shows of a run beyond its record."""

    schema: int
    origin: Origin
    """`same_data` here: ids, targets and answers are those that were stored at the end of training."""
    reproduced: float | None
    """The largest difference between the stored logits and those computed again; None where none were."""
    chosen: str
    """How the examples were chosen."""
    examples: tuple[ExampleFile, ...]
    diagnosis: DiagnosisFile | None
    trajectory: TrajectoryFile | None
    eigenvalues: EigenvaluesFile | None
    missing: tuple[str, ...]
    """What could not be computed, why, and what to do about it."""
    maps: MapsFile | None = field(default=None, metadata=SINCE)
    """What the maps are worth; None where that was not tested."""


def write_showcase(run: Path, found: ShowcaseFile) -> Path:
    path = run / FOLDER / SHOWCASE
    write_sealed(path, found)
    return path


def read_showcase(run: Path) -> ShowcaseFile | None:
    """What `meq report` has computed for the run of this folder; None if it has not."""
    path = run / FOLDER / SHOWCASE
    return read_sealed(ShowcaseFile, path) if path.is_file() else None


def kept_explanation(found: Explanation) -> ExplanationFile:
    return ExplanationFile(
        steps=found.steps,
        read=found.read,
        head=found.head,
        labels=tuple(found.labels),
        logits=_rows(found.logits),
        residuals={name: tuple(values.double().tolist()) for name, values in found.residuals.items()},
        stopped=found.stopped,
        method=found.method,
        explained=found.explained,
        target=found.target,
        views={name: _kept_view(view) for name, view in found.views.items()},
        effects=dict(found.effects),
        evidence=found.evidence,
    )


def kept_picture(picture: Image.Image) -> str:
    small = picture.convert("RGB")
    small.thumbnail((LONGEST, LONGEST))
    out = io.BytesIO()
    small.save(out, "WEBP", quality=QUALITY)
    return base64.b64encode(out.getvalue()).decode()


def opened_picture(kept: str) -> Image.Image:
    return open_picture(base64.b64decode(kept), name="a picture kept for the report")


def _kept_view(view: ModalityView) -> ViewFile:
    return ViewFile(
        kind=view.kind,
        attribution=_rows(view.attribution),
        boxes=None if view.boxes is None else _rows(view.boxes),
        spans=None if view.spans is None else tuple(tuple(int(x) for x in row) for row in view.spans.tolist()),
        times=None if view.times is None else _rows(view.times),
        size=view.size,
        truncated=view.truncated,
    )


def _explanation(example: ExampleFile, kept: ExplanationFile) -> Explanation:
    return Explanation(
        id=example.id,
        steps=kept.steps,
        read=kept.read,
        head=kept.head,
        labels=kept.labels,
        logits=_tensor(kept.logits),
        residuals={name: _tensor(values) for name, values in kept.residuals.items()},
        stopped=kept.stopped,
        method=kept.method,
        explained=kept.explained,
        views={name: _view(name, view, example) for name, view in kept.views.items()},
        target=kept.target,
        effects=kept.effects,
        evidence=kept.evidence,
    )


def _view(name: str, kept: ViewFile, example: ExampleFile) -> ModalityView:
    picture = opened_picture(example.pictures[name]) if name in example.pictures else None
    content: Any = example.texts.get(name, torch.zeros(len(kept.attribution[0])))
    if picture is not None:
        content = DrawnPicture(name, lambda: picture)
    return ModalityView(
        name=name,
        kind=kept.kind,
        content=content,
        attribution=_tensor(kept.attribution),
        boxes=None if kept.boxes is None else _tensor(kept.boxes),
        spans=None if kept.spans is None else torch.tensor(kept.spans, dtype=torch.long).reshape(-1, 2),
        times=None if kept.times is None else _tensor(kept.times),
        picture=picture,
        size=None if kept.size is None else (kept.size[0], kept.size[1]),
        truncated=kept.truncated,
    )


def _rows(values: Tensor) -> Rows:
    """Six digits: what is drawn does not show more, and the file is half as long."""
    return tuple(tuple(_short(x) for x in row) for row in values.double().tolist())


def _short(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def _tensor(values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)
