"""From a trained run and an example to its explanation: one walk along the iteration, read at every step."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from meq.analysis.attribution import METHODS, attribute, default_method
from meq.analysis.shares import modality_effects
from meq.analysis.subject import Case, check_iterates, held_still, open_case, stopped_at
from meq.core.options import checked_options, nearest
from meq.core.state import State
from meq.data.content import Content, Picture, PictureFile, Regions
from meq.data.contract import Batch, DataSet, Example, collate, features
from meq.data.metrics import ACCURACY
from meq.encoders import Encoder, Tokens
from meq.experiments.runs.analysis import read_maps
from meq.experiments.runs.encoders import encoders_of_run
from meq.experiments.runs.explanation import Contrast, Explanation, ModalityView
from meq.experiments.runs.load import TrainedRun
from meq.experiments.study import StudyError

UNTESTED = "Whether maps of this model mean anything was not tested: meq analyze does"
SHOWN_SIDE = 640
"""Pixels of a picture's longer side that are kept for showing."""


@checked_options
class Explainer:
    """A trained run and its encoders, ready to explain examples; threads may share one.

    Models that do not iterate are refused: they have no steps to look at. Encoders are found by what the run says of
    them unless they are given.
    """

    def __init__(self, run: TrainedRun, *, encoders: Mapping[str, Encoder] | None = None) -> None:
        check_iterates(run.model)
        self.run = run
        self.encoders = dict(encoders) if encoders is not None else dict(encoders_of_run(run))
        self._encoding = threading.Lock()  # what an encoder says of cut texts is a count that all its callers share

    @property
    def read(self) -> int:
        """K, the step the model's answer is read at."""
        return int(self.run.model.steps)  # type: ignore[arg-type]

    @property
    def kinds(self) -> dict[str, str]:
        """What each modality holds: image, regions, text, audio, or features."""
        return {
            name: self.encoders[name].kind if name in self.encoders else "features" for name in self.run.task.widths
        }

    def pair(self, image: Path | str | Picture | None, text: str | None) -> Example:
        """An example of a picture and a text, either of which may be missing."""
        content: dict[str, Content] = {}
        if image is not None:
            content[self._only("image")] = image if isinstance(image, Picture) else _picture_file(Path(image))
        if text is not None:
            content[self._only("text")] = text
        name = text if image is None else Path(image).name if isinstance(image, str | Path) else str(image)
        return Example(id=name or "example", content=content, target=None)

    def __call__(
        self,
        examples: Sequence[Example],
        *,
        steps: Sequence[int] | None = None,
        method: str | None = None,
        label: str | None = None,
    ) -> list[Explanation]:
        """One explanation per example, in order; see `explain`."""
        if method is not None and method not in METHODS:
            raise ValueError(f"there is no method {method!r}: {nearest(method, METHODS)}")
        chosen = _chosen_steps(steps, self.read)
        opened = [self._open(example) for example in examples]
        if not opened:
            return []
        batch = self._batch(opened)
        target = self._target(label, len(opened))
        model: Any = self.run.model
        method = default_method(model, batch.features, batch.masks) if method is None else method
        with torch.no_grad(), held_still(model):
            walk = _walk(open_case(model, batch.features, batch.masks), chosen)
        found = attribute(
            model,
            batch.features,
            batch.masks,
            method=method,
            steps=chosen,
            target="answer" if target is None else target,
        )
        self._check_maps(found.maps, method)
        effects = modality_effects(model, batch.features, batch.masks)
        made = [
            self._explanation(example, row, walk, found.classes[0, row], found.maps, method)
            for row, example in enumerate(opened)
        ]
        return [
            replace(
                each,
                effects={name: float(effects[name][row]) for name in each.views if name in effects},
                evidence=self._evidence(method),
            )
            for row, each in enumerate(made)
        ]

    def _evidence(self, method: str) -> str:
        """What is known of the worth of this run's maps."""
        known = read_maps(self.run.folder.parent) if self.run.folder.name == "model" else None
        if known is None or known.origin.weights_sha256 != self.run.task.weights_sha256:
            return UNTESTED
        other = "" if known.method == method else f"; these maps are by {method}, which was not tested"
        return f"{known.words}{other}"

    def contrast(
        self,
        example: Example,
        instead: Mapping[str, Content] | str,
        *,
        steps: Sequence[int] | None = None,
        method: str | None = None,
    ) -> Contrast:
        """The example beside itself with other content; a string takes the place of its text."""
        changes: dict[str, Content] = {self._only("text"): instead} if isinstance(instead, str) else dict(instead)
        other = replace(
            example, id=f"{example.id}, with other content", content={**example.content, **changes}, target=None
        )
        matched, mismatched = self([example, other], steps=steps, method=method)
        return Contrast(matched=matched, mismatched=mismatched, instead=changes)

    # -- before the model ----------------------------------------------------------------------------------------------

    def _only(self, kind: str) -> str:
        names = [name for name, each in self.kinds.items() if each == kind]
        if len(names) == 1:
            return names[0]
        has = ", ".join(f"{name!r} ({each})" for name, each in self.kinds.items())
        if not names:
            raise StudyError(f"this model reads no {kind}: it was trained on {has}")
        raise StudyError(f"this model reads several of the kind {kind} ({', '.join(names)}): give an Example instead")

    def _open(self, example: Example) -> _Opened:
        unknown = [name for name in example.content if name not in self.run.task.widths]
        if unknown:
            known = nearest(unknown[0], self.run.task.widths)
            raise StudyError(f"example {example.id!r}: this model reads no modality {unknown[0]!r}: {known}")
        parts = {name: self._encoded(name, content) for name, content in example.content.items()}
        kept = {name: part for name, part in parts.items() if any(len(tokens.features) for tokens in part.tokens)}
        if not kept:
            raise StudyError(
                f"example {example.id!r} holds nothing that its encoders could make a token of: "
                "give a picture, or a text with a word in it"
            )
        return _Opened(example, kept)

    def _encoded(self, name: str, content: Content) -> _Part:
        choices = content if isinstance(content, tuple) else (content,)
        encoder = self.encoders.get(name)
        tokens, cut = [], []
        for each in choices:
            if encoder is None or isinstance(each, Tensor):
                tokens.append(_ready(name, each))
                cut.append(False)
                continue
            with self._encoding:
                before = encoder.truncated
                tokens += encoder([each])
                cut.append(encoder.truncated > before)
        kind = "features" if encoder is None or isinstance(choices[0], Tensor) else encoder.kind
        return _Part(kind, tuple(choices), tuple(tokens), tuple(cut), isinstance(content, tuple))

    def batch(self, examples: Sequence[Example]) -> Batch:
        """The examples as the model reads them."""
        return self._batch([self._open(example) for example in examples])

    def _batch(self, opened: Sequence[_Opened]) -> Batch:
        task = self.run.task
        rows = [each.as_features() for each in opened]
        data = DataSet(
            name="new",
            splits={"new": rows},
            modalities={name: features(width) for name, width in task.widths.items()},
            labels=task.labels,
            head=task.head,
            metric=ACCURACY,
        )
        data = data if task.standardisation is None else task.standardisation.apply(data)
        device = next(self.run.model.parameters()).device
        return collate(list(data.splits["new"]), data.widths).to(device)

    def _target(self, label: str | None, count: int) -> Int[Tensor, " B"] | None:
        if label is None:
            return None
        if label not in self.run.labels:
            raise ValueError(f"there is no label {label!r}: {nearest(label, self.run.labels)}")
        return torch.full((count,), self.run.labels.index(label))

    # -- after the model -----------------------------------------------------------------------------------------------

    def _check_maps(self, maps: Mapping[str, Tensor], method: str) -> None:
        if not any(name in self.run.task.widths for name in maps):
            raise ValueError(
                f"{method!r} gives maps of the states {', '.join(maps)}, which are not modalities in this model: "
                "use 'gradient' or 'gradient-x-input', which go back to the features"
            )

    def _explanation(
        self, opened: _Opened, row: int, walk: _Walk, explained: Tensor, maps: Mapping[str, Tensor], method: str
    ) -> Explanation:
        head, place = self.run.task.head, int(explained)
        choices = walk.logits.shape[2] if head == "choices" else 1
        state = row * choices + (place if head == "choices" else 0)  # for multiple choice every choice has its states
        stopped = int(walk.stopped[state])
        return Explanation(
            id=opened.example.id,
            steps=walk.steps,
            read=self.read,
            head=head,
            labels=_labels(self.run, walk.logits.shape[2]),
            logits=walk.logits[:, row],
            residuals={
                name: rows[:, state] for name, rows in walk.residuals.items() if not _absent(name, opened, self)
            },
            stopped=None if stopped < 0 else stopped,
            method=method,
            explained=place,
            views={
                name: part.view(name, maps[name][:, row].cpu(), place if part.has_choices else 0)
                for name, part in opened.parts.items()
                if name in maps
            },
            target=_true_class(opened.example.target),
        )


@checked_options
def explain(
    run: TrainedRun,
    examples: Sequence[Example],
    *,
    encoders: Mapping[str, Encoder] | None = None,
    steps: Sequence[int] | None = None,
    method: str | None = None,
    label: str | None = None,
) -> list[Explanation]:
    """What a trained run makes of examples with raw content, at each of `steps` (0 to 2 K unless given; K always).

    `method` is a key of `meq.analysis.attribution.METHODS`; None is its `default_method`. Maps are of the model's own answer, the same at every step,
    or of `label`. Methods through the steps cost more the further they go: ask for fewer steps of a large model.
    """
    return Explainer(run, encoders=encoders)(examples, steps=steps, method=method, label=label)


@dataclass(frozen=True, eq=False)
class _Part:
    """One modality of an example, encoded; several tokens where it is a choice."""

    kind: str
    contents: tuple[Any, ...]
    tokens: tuple[Tokens, ...]
    truncated: tuple[bool, ...]
    has_choices: bool

    def view(self, name: str, maps: Float[Tensor, "S M"], choice: int) -> ModalityView:
        tokens, content = self.tokens[choice], self.contents[choice]
        picture = _picture(content)
        return ModalityView(
            name=name,
            kind=self.kind,
            content=content,
            attribution=maps[:, : len(tokens.features)],
            boxes=tokens.boxes,
            spans=tokens.spans,
            times=tokens.times,
            picture=None if picture is None else _scaled_down(picture),
            size=None if picture is None else picture.size,
            truncated=self.truncated[choice],
        )


@dataclass(frozen=True, eq=False)
class _Opened:
    """An example with the tokens of what it holds."""

    example: Example
    parts: Mapping[str, _Part]

    def as_features(self) -> Example:
        content: dict[str, Content] = {}
        for name, part in self.parts.items():
            made = tuple(tokens.features for tokens in part.tokens)
            content[name] = made if part.has_choices else made[0]
        return replace(self.example, content=content, target=torch.zeros(()))


@dataclass(frozen=True, eq=False)
class _Walk:
    """What was read along the way, for all examples."""

    steps: tuple[int, ...]
    logits: Float[Tensor, "S B C"]
    residuals: dict[str, Float[Tensor, "S R"]]
    stopped: Int[Tensor, " R"]


def _walk(case: Case, steps: tuple[int, ...]) -> _Walk:
    logits: dict[int, Tensor] = {}

    def look(k: int, state: State) -> None:
        if k in steps:
            logits[k] = case.read(state).float().cpu()

    solution = case.walk(steps[-1], trajectory=look)
    last = case.read(solution.state).float().cpu()  # where the walk broke off because every sample had diverged
    stopped = stopped_at(solution)
    final = {name: rows.where(stopped < 0, torch.nan) for name, rows in solution.final_residual.items()}
    residuals = {
        name: torch.stack([*(rows[k] for k in steps[:-1]), final[name]]).float().cpu()
        for name, rows in solution.residuals.items()
    }
    return _Walk(steps, torch.stack([logits.get(k, last) for k in steps]), residuals, stopped.cpu())


def _chosen_steps(steps: Sequence[int] | None, read: int) -> tuple[int, ...]:
    if steps is None:
        return tuple(range(2 * read + 1))
    wrong = [k for k in steps if isinstance(k, bool) or not isinstance(k, int) or k < 0]
    if wrong or not steps:
        raise ValueError(f"steps must be whole numbers, counted from 0, the start; got {list(steps)}")
    return tuple(sorted({*steps, read}))


def _picture_file(path: Path) -> PictureFile:
    """A picture that somebody points at: where it lies is its root."""
    whole = path.expanduser().resolve()
    return PictureFile(whole, whole.parent)


def _picture(content: Any) -> Image.Image | None:
    if isinstance(content, Regions):
        content = content.picture
    return content.open().convert("RGB") if isinstance(content, Picture) else None


def _scaled_down(picture: Image.Image) -> Image.Image:
    scale = SHOWN_SIDE / max(picture.size)
    if scale >= 1:
        return picture
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _ready(name: str, content: Any) -> Tokens:
    if not isinstance(content, Tensor):
        raise StudyError(f"{name!r} came as numbers in training, and {type(content).__name__} is something else")
    return Tokens(features=content[None] if content.ndim == 1 else content)


def _labels(run: TrainedRun, classes: int) -> tuple[str, ...]:
    if run.task.head == "choices":
        return tuple(str(place) for place in range(classes))
    return tuple(run.labels) if len(run.labels) == classes else tuple(str(place) for place in range(classes))


def _absent(name: str, opened: _Opened, explainer: Explainer) -> bool:
    """Is it the state of a modality that the example lacks? States that belong to several are never absent."""
    return name in explainer.run.task.widths and name not in opened.parts


def _true_class(target: Tensor | None) -> int | None:
    if target is None or target.ndim != 0 or target.is_floating_point():
        return None
    return int(target)
