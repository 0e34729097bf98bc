"""From a trained run and an example to its explanation: one walk along the iteration, read at every step."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from meq.analysis.attribution import METHODS, Attribution, attribute, default_method
from meq.analysis.removal import modality_effects
from meq.analysis.walk import Readings, check_iterates, open_case
from meq.core.operator import held_still
from meq.data.content import Content, Picture, PictureFile, Regions
from meq.data.contract import Batch, Example, collate
from meq.devices import device_of
from meq.encoders import Encoder, Tokens
from meq.options import checked_options, nearest
from meq.runs.analyze import analysis_of
from meq.runs.explanation import Contrast, Explanation, ModalityView
from meq.runs.load import Run
from meq.runs.one_example import NOT_EXPLAINED, example_of
from meq.runs.own_data import encoders_of_run, examples_as_features
from meq.runs.predict import token_places
from meq.studies.study import StudyError
from meq.training.predictions import without_targets

UNTESTED = "Whether maps of this model mean anything was not tested: meq diagnose does"
SHOWN_SIDE = 640
"""Pixels of a picture's longer side that are kept for showing."""


@checked_options
class Explainer:
    """A trained run and its encoders, ready to explain examples; threads may share one.

    Models that do not iterate are refused: they have no steps to look at. Encoders are found by what the run says of
    them unless they are given.
    """

    def __init__(self, run: Run, *, encoders: Mapping[str, Encoder] | None = None, by_rule: bool = False) -> None:
        """With `by_rule`, the step that is read is where the run's calibrated rule stops, if it has one."""
        check_iterates(run.model)
        self.run, self.by_rule = run, by_rule and run.anytime is not None
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
            if not isinstance(image, Picture):  # the folder that a file lies in is its root
                path = Path(image).expanduser().resolve()
                content[self._only("image")] = PictureFile(path, path.parent)
            else:
                content[self._only("image")] = image
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
        token: int | str | None = None,
    ) -> list[Explanation]:
        """One explanation per example, in order; see `explain`."""
        if method is not None and method not in METHODS:
            raise ValueError(f"there is no method {method!r}: {nearest(method, METHODS)}")
        chosen = _chosen_steps(steps, self.read)
        if label is not None and label not in self.run.labels:
            raise ValueError(f"there is no label {label!r}: {nearest(label, self.run.labels)}")
        target = "answer" if label is None else torch.full((len(examples),), self.run.labels.index(label))
        named = self._named_token(token) if isinstance(token, str) else None
        parts = [self._encode(example) for example in examples]
        if not parts:
            return []
        if named is not None:
            _check_has_token(examples, parts, named)
        batch = self._batch(examples, parts)
        model: Any = self.run.model
        places = token_places(model.answering, batch.features)
        reads = self._read_by_rule(batch) if self.by_rule else [self.read] * len(parts)
        last = max(chosen[-1], *reads)
        chosen = tuple(range(last + 1)) if steps is None else tuple(sorted({*chosen, *reads}))
        method = default_method(model, batch.features, batch.masks) if method is None else method
        with torch.no_grad(), held_still(model):
            asked = places.index(named) if named is not None else token
            assert not isinstance(asked, str)
            case = open_case(model, batch.features, batch.masks).of_token(asked)
            readings = case.read_along(chosen)
        if self.by_rule and label is None:  # the answer that is explained is the one that is given
            target = torch.stack([readings.logits[chosen.index(k), row] for row, k in enumerate(reads)]).argmax(-1)
        found = attribute(
            model, batch.features, batch.masks, method=method, steps=chosen, target=target, token=case.token
        )
        if not any(name in self.run.task.widths for name in found.maps):
            raise ValueError(
                f"{method!r} gives maps of the states {', '.join(found.maps)}, which are not modalities in this model: "
                "use 'gradient' or 'gradient-x-input', which go back to the features"
            )
        whose = None if token is None else case.token
        effects = modality_effects(model, batch.features, batch.masks, token=whose)
        evidence = self._evidence(method)
        explained = [
            replace(
                self._explanation(example, parts[row], row, readings, found, effects),
                evidence=evidence,
                read=reads[row],
            )
            for row, example in enumerate(examples)
        ]
        if found.token is None:
            return explained
        return [
            self._of_token(each, examples[row], parts[row], places[int(found.token[row])])
            for row, each in enumerate(explained)
        ]

    def contrast(
        self,
        example: Example,
        instead: Mapping[str, Content] | str,
        *,
        steps: Sequence[int] | None = None,
        method: str | None = None,
        token: int | str | None = None,
    ) -> Contrast:
        """The example beside itself with other content; a string takes the place of its text."""
        changes: dict[str, Content] = {self._only("text"): instead} if isinstance(instead, str) else dict(instead)
        other = replace(
            example, id=f"{example.id}, with other content", content={**example.content, **changes}, target=None
        )
        matched, mismatched = self([example, other], steps=steps, method=method, token=token)
        return Contrast(matched=matched, mismatched=mismatched, instead=changes)

    def _read_by_rule(self, batch: Batch) -> list[int]:
        model = self.run.model_read()
        with torch.no_grad(), held_still(model):
            taken = model(batch.features, batch.masks).solution.steps
        steps: list[int] = taken.reshape(len(batch.ids), -1).amax(1).tolist()  # a row per choice, where there are any
        return steps

    def _named_token(self, token: str) -> tuple[str, int]:
        """The modality and the place that MODALITY:NUMBER says."""
        answering = self.run.model.answering
        if self.run.task.head != "tokens":
            raise ValueError(
                f"`token` cannot be {token!r}: the tokens of this run do not answer, its examples do; leave it out"
            )
        name, colon, place = token.rpartition(":")
        if not colon or not (place.isascii() and place.isdigit()):
            raise ValueError(
                f"`token` must be MODALITY:NUMBER, counted from 0, as in {answering[0]}:0; got {token!r:.80}"
            )
        if name not in answering:
            raise ValueError(f"`token` cannot be {token!r}: no tokens of {name!r} answer: {nearest(name, answering)}")
        return name, int(place)

    # -- before the model ----------------------------------------------------------------------------------------------

    def _only(self, kind: str) -> str:
        names = [name for name, each in self.kinds.items() if each == kind]
        if len(names) == 1:
            return names[0]
        has = ", ".join(f"{name!r} ({each})" for name, each in self.kinds.items())
        if not names:
            raise StudyError(f"this model reads no {kind}: it was trained on {has}")
        raise StudyError(f"this model reads several of the kind {kind} ({', '.join(names)}): give an Example instead")

    def _encode(self, example: Example) -> dict[str, _Part]:
        """The modalities of an example that have a token."""
        unknown = [name for name in example.content if name not in self.run.task.widths]
        if unknown:
            known = nearest(unknown[0], self.run.task.widths)
            raise StudyError(f"example {example.id!r}: this model reads no modality {unknown[0]!r}: {known}")
        parts = {name: self._encode_part(name, content) for name, content in example.content.items()}
        kept = {name: part for name, part in parts.items() if any(len(tokens.features) for tokens in part.tokens)}
        if not kept:
            raise StudyError(
                f"example {example.id!r} holds nothing that its encoders could make a token of: "
                "give a picture, or a text with a word in it"
            )
        return kept

    def _encode_part(self, name: str, content: Content) -> _Part:
        choices = content if isinstance(content, tuple) else (content,)
        encoder = self.encoders.get(name)
        tokens: list[Tokens] = []
        truncated: list[bool] = []
        for each in choices:
            if isinstance(each, Tensor):
                tokens.append(Tokens(features=each[None] if each.ndim == 1 else each))
                truncated.append(False)
            elif encoder is None:
                raise StudyError(f"{name!r} came as numbers in training, and {type(each).__name__} is something else")
            else:
                with self._encoding:
                    before = encoder.truncated
                    tokens += encoder([each])
                    truncated.append(encoder.truncated > before)
        kind = "features" if encoder is None or isinstance(choices[0], Tensor) else encoder.kind
        return _Part(kind, choices, tuple(tokens), tuple(truncated), isinstance(content, tuple))

    def batch(self, examples: Sequence[Example]) -> Batch:
        """The examples as the model reads them."""
        return self._batch(examples, [self._encode(example) for example in examples])

    def _batch(self, examples: Sequence[Example], parts: Sequence[Mapping[str, _Part]]) -> Batch:
        rows = [
            replace(example, content={name: part.features for name, part in each.items()})
            for example, each in zip(examples, parts, strict=True)
        ]
        ready = examples_as_features(self.run, without_targets(rows))
        return collate(list(ready), self.run.task.widths).to(device_of(self.run.model))

    # -- after the model -----------------------------------------------------------------------------------------------

    def _explanation(
        self,
        example: Example,
        parts: Mapping[str, _Part],
        row: int,
        readings: Readings,
        found: Attribution,
        effects: Mapping[str, Tensor],
    ) -> Explanation:
        task, classes, place = self.run.task, readings.logits.shape[2], int(found.classes[0, row])
        # for multiple choice every choice has its states
        state = row * classes + place if task.head == "choices" else row
        named = task.head != "choices" and len(self.run.labels) == classes
        stopped, target = int(readings.stopped[state]), example.target
        is_class = target is not None and target.ndim == 0 and not target.is_floating_point()
        views = {
            name: part.view(name, found.maps[name][:, row].cpu(), place if part.has_choices else 0)
            for name, part in parts.items()
            if name in found.maps
        }
        return Explanation(
            id=example.id,
            steps=readings.steps,
            read=self.read,
            head=task.head,
            labels=tuple(self.run.labels) if named else tuple(map(str, range(classes))),
            logits=readings.logits[:, row].float(),
            residuals={  # not those of modalities that the example lacks; a state of several is never absent
                name: rows[:, state].float()
                for name, rows in readings.residuals.items()
                if name in parts or name not in task.widths
            },
            stopped=None if stopped < 0 else stopped,
            method=found.method,
            explained=place,
            views=views,
            target=int(target) if target is not None and is_class else None,
            effects={name: float(effects[name][row]) for name in views if name in effects},
        )

    def _of_token(
        self, found: Explanation, example: Example, parts: Mapping[str, _Part], place: tuple[str, int]
    ) -> Explanation:
        """The explanation of one token's answer, with its name and its true class."""
        counts = {name: parts[name].count if name in parts else 0 for name in self.run.model.answering}
        before = sum(counts[name] for name in list(counts)[: list(counts).index(place[0])])
        asked = None if example.target is None or example.target.ndim != 1 else int(example.target[before + place[1]])
        return replace(found, token=f"{place[0]} {place[1]}", target=None if asked is None or asked < 0 else asked)

    def _evidence(self, method: str) -> str:
        """What is known of the worth of this run's maps."""
        kept = analysis_of(self.run)
        if kept is None or kept.maps is None:
            return UNTESTED
        other = "" if kept.maps.method == method else f"; these maps are by {method}, which was not tested"
        return f"{kept.maps.words}{other}"


@checked_options
def explain(
    run: Run,
    examples: Sequence[Example],
    *,
    encoders: Mapping[str, Encoder] | None = None,
    steps: Sequence[int] | None = None,
    method: str | None = None,
    label: str | None = None,
    token: int | str | None = None,
) -> list[Explanation]:
    """What a trained run makes of examples with raw content, at each of `steps` (0 to 2 K unless given; K always).

    `method` is a key of `meq.analysis.attribution.METHODS`, or None for its `default_method`. Maps are of the model's
    own answer, the same at every step, or of `label`; with answers per token of that of `token`, or of the one that is
    least sure. A token is "image:4", the fifth of the picture, or a number, counted over the modalities that answer
    with their padding. Methods through the steps cost more the further they go: ask for fewer steps of a large model.
    """
    return Explainer(run, encoders=encoders)(examples, steps=steps, method=method, label=label, token=token)


def explain_contents(
    run: Run,
    contents: Sequence[Any],
    *,
    steps: int | None = None,
    method: str | None = None,
    instead: str | None = None,
    token: str | None = None,
    store: Path | None = None,
    encoders: Mapping[str, str | None] | None = None,
) -> Explanation | Contrast:
    """One example, given as a picture's file and a text: what the run makes of it up to step `steps`.

    The step that is read is that of the run's calibrated rule, where it has one. With `instead`, beside the same
    example with that text.
    """
    if method is not None and method not in METHODS:
        raise ValueError(f"`method` cannot be {method!r}: {nearest(method, METHODS)}")
    check_iterates(run.model)
    explainer = Explainer(run, encoders=encoders_of_run(run, chosen=encoders, store=store), by_rule=True)
    example = example_of(explainer.kinds, contents, otherwise=NOT_EXPLAINED)
    measured = None if steps is None else range(steps + 1)
    if instead is not None:
        return explainer.contrast(example, instead, steps=measured, method=method, token=token)
    return explainer([example], steps=measured, method=method, token=token)[0]


@dataclass(frozen=True, eq=False)
class _Part:
    """One modality of an example, encoded; several tokens where it is a choice."""

    kind: str
    contents: tuple[Any, ...]
    tokens: tuple[Tokens, ...]
    truncated: tuple[bool, ...]
    has_choices: bool

    @property
    def count(self) -> int:
        """Tokens, of the first choice where there are several."""
        return len(self.tokens[0].features)

    @property
    def features(self) -> Content:
        made = tuple(tokens.features for tokens in self.tokens)
        return made if self.has_choices else made[0]

    def view(self, name: str, maps: Float[Tensor, "S M"], choice: int) -> ModalityView:
        tokens, content = self.tokens[choice], self.contents[choice]
        shown = content.picture if isinstance(content, Regions) else content
        picture = shown.open().convert("RGB") if isinstance(shown, Picture) else None
        size = None if picture is None else picture.size
        if picture is not None and max(picture.size) > SHOWN_SIDE:
            scale = SHOWN_SIDE / max(picture.size)
            small = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
            picture = picture.resize(small, Image.Resampling.LANCZOS)
        return ModalityView(
            name=name,
            kind=self.kind,
            content=content,
            attribution=maps[:, : len(tokens.features)],
            boxes=tokens.boxes,
            spans=tokens.spans,
            times=tokens.times,
            picture=picture,
            size=size,
            truncated=self.truncated[choice],
        )


def _check_has_token(examples: Sequence[Example], parts: Sequence[Mapping[str, _Part]], named: tuple[str, int]) -> None:
    name, place = named
    for example, each in zip(examples, parts, strict=True):
        count = each[name].count if name in each else 0
        if place >= count:
            has = f"{count}, counted from 0 to {count - 1}" if count else "none"
            raise ValueError(
                f"`token` cannot be '{name}:{place}': of the tokens of {name!r}, example {example.id!r} has {has}"
            )


def _chosen_steps(steps: Sequence[int] | None, read: int) -> tuple[int, ...]:
    if steps is None:
        return tuple(range(2 * read + 1))
    wrong = [k for k in steps if isinstance(k, bool) or not isinstance(k, int) or k < 0]
    if wrong or not steps:
        raise ValueError(f"steps must be whole numbers, counted from 0, the start; got {list(steps)}")
    return tuple(sorted({*steps, read}))
