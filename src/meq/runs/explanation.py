"""What one example looks like along the iteration: answers, residuals, and the part that each token has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from meq.analysis.attribution import METHODS, OLD_METHODS
from meq.analysis.maps import paint, spell
from meq.analysis.removal import as_shares
from meq.analysis.tables import number, text_table
from meq.data.content import Content
from meq.models.heads import probabilities
from meq.records import SINCE
from meq.showing import Tabular

TOP_WORDS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class ModalityView:
    """One modality of an explained example: what it holds, where its tokens lie in it, and what each had a part in.

    S steps, N tokens.
    """

    name: str
    kind: str
    """image, regions, text, audio, or features for numbers that came as such."""
    content: Content
    """For multiple choice, that of the explained choice."""
    attribution: Float[Tensor, "S N"]
    """As the method gives it, never negative; zero throughout at a step that is lost."""
    boxes: Float[Tensor, "N 4"] | None = None
    """Left, top, right, bottom in pixels of the original picture, of `size`; NaN: a token without a place."""
    spans: Int[Tensor, "N 2"] | None = None
    """First and past-the-last character of the text; -1, -1: a token without a place."""
    times: Float[Tensor, "N 2"] | None = None
    """Begin and end in seconds of the sound; NaN: a token without a place."""
    picture: Image.Image | None = None
    """The picture, scaled down where it is large."""
    size: tuple[int, int] | None = None
    """Width and height of the original picture."""
    truncated: bool = False
    """It was longer than its encoder reads: what lies behind the last token was not seen."""

    @cached_property
    def shares(self) -> Float[Tensor, "S N"]:
        """The attribution as multiples of an even share: 1 everywhere if all tokens count alike, 0 if none does."""
        total = self.attribution.sum(1, keepdim=True)
        even = self.attribution * self.attribution.shape[1]
        return torch.where(total > 0, even / total.clamp(min=torch.finfo(even.dtype).tiny), 0.0)

    @property
    def peak(self) -> float:
        """The largest share at any step: the end of a colour scale that all steps have in common."""
        return float(self.shares.max()) if self.shares.numel() else 0.0

    def heat(self, row: int, *, width: int, height: int, smooth: bool = False) -> Float[Tensor, "height width"]:
        """The shares of one step on a picture of that size, which shows the whole original."""
        if self.boxes is None or self.size is None:
            raise ValueError(f"{self.name!r} is of kind {self.kind!r}: it has no places in a picture")
        scale = torch.tensor([width / self.size[0], height / self.size[1]]).repeat(2)
        return paint(self.shares[row], self.boxes * scale, height=height, width=width, smooth=smooth)

    def words(self, row: int) -> list[tuple[str, float]]:
        """The words of the text in order, with the largest share among each one's tokens at one step."""
        if self.spans is None or not isinstance(self.content, str):
            raise ValueError(f"{self.name!r} is of kind {self.kind!r}: it has no words")
        return spell(self.shares[row], self.spans, self.content, merge="max")

    def top_words(self, row: int, count: int = TOP_WORDS) -> list[str]:
        """The words with the largest shares, the largest first; none that has no share."""
        ranked = sorted(self.words(row), key=lambda pair: -pair[1])
        return [word for word, share in ranked[:count] if share > 0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation(Tabular):
    """One example read at every one of S steps, C classes."""

    id: str
    steps: tuple[int, ...]
    read: int
    """K, the step the model's answer is read at; always among the steps."""
    head: str
    """What the logits mean: a key of `meq.models.heads.HEADS`."""
    labels: tuple[str, ...]
    """One per class; for multiple choice the places of the choices; one name for a number."""
    logits: Float[Tensor, "S C"]
    residuals: Mapping[str, Float[Tensor, " S"]]
    """|z(k) - T(z(k))| / |z(k)| of the undamped map, by modality that the example has; NaN after divergence."""
    stopped: int | None
    """The last step at which the state was finite, which is the one that is read from then on; None: it stayed so."""
    method: str
    """Which of `meq.analysis.attribution.METHODS` gave the attribution."""
    explained: int
    """The class whose logit the attribution is of, the same at every step."""
    views: Mapping[str, ModalityView]
    """By modality that the example has."""
    target: int | None = None
    """The true class, where it is known."""
    effects: Mapping[str, float] = field(default_factory=dict)
    """What each modality adds to the answer's probability: `meq.analysis.removal.modality_effects`."""
    evidence: str = ""
    """What is known of the worth of this model's maps."""
    token: str = field(default="", metadata=SINCE)
    """With answers per token: the one whose answer this is, such as "text 3"."""

    @property
    def modality_shares(self) -> dict[str, float]:
        """Sizes of the effects as shares of the answer; empty where they were not measured."""
        return as_shares(self.effects)

    @property
    def shares_in_words(self) -> str:
        """`image 31 % (+0.12), text 69 % (+0.27)`, and what that means."""
        shares = self.modality_shares
        if not shares:
            return ""
        parts = [f"{name} {100 * share:.0f} % ({self.effects[name]:+.3f})" for name, share in shares.items()]
        what = "closeness to it" if self.head == "score" else "its probability above chance"
        return f"Shares of the answer read at K: {', '.join(parts)}; Shapley values over modalities, of {what}"

    @cached_property
    def probabilities(self) -> Float[Tensor, "S C"] | None:
        """What the head gives each class; with soft labels each for itself. None for a regression."""
        if self.head == "score":
            return None
        return probabilities(self.logits, self.head)

    @cached_property
    def predictions(self) -> tuple[int, ...]:
        """The class with the largest logit at every step; -1 where the logits are not finite."""
        finite = self.logits.isfinite().all(1)
        return tuple(self.logits.argmax(1).where(finite, -1).tolist())

    @property
    def answer(self) -> str:
        """What the model says, at the step it is read at."""
        return self.said(self.row(self.read))

    def said(self, row: int) -> str:
        """The answer at one measured step, in words."""
        if self.head == "score":
            return number(float(self.logits[row, 0]))
        place = self.predictions[row]
        return "not finite" if place < 0 else self.labels[place]

    def confidence(self, row: int) -> float:
        """The probability given to the answer of one measured step; NaN where there is none."""
        place = self.predictions[row]
        return math.nan if self.probabilities is None or place < 0 else float(self.probabilities[row, place])

    def row(self, step: int) -> int:
        """The place of a measured step."""
        if step not in self.steps:
            raise ValueError(f"step {step} was not measured; measured: {', '.join(map(str, self.steps))}")
        return self.steps.index(step)

    @property
    def pictures(self) -> list[ModalityView]:
        return [view for view in self.views.values() if view.picture is not None]

    @property
    def texts(self) -> list[ModalityView]:
        return [view for view in self.views.values() if view.spans is not None and isinstance(view.content, str)]

    @property
    def explained_label(self) -> str:
        return self.labels[self.explained]

    @property
    def cut(self) -> list[str]:
        """The modalities of which only the beginning was read."""
        return [name for name, view in self.views.items() if view.truncated]

    def __str__(self) -> str:
        answered = [] if self.head == "score" else ["probability"]
        header = ["k", "answer", *answered]
        header += [f"{name} residual" for name in self.residuals] + [f"top words, {view.name}" for view in self.texts]
        rows = [self._cells(row) for row in range(len(self.steps))]
        return "\n".join([text_table(header, rows), *self.remarks()])

    def rows(self) -> list[dict[str, Any]]:
        """One per step that was looked at."""
        return [
            {
                "step": step,
                "read": step == self.read,
                "answer": self.said(row),
                **({} if self.head == "score" else {"probability": self.confidence(row)}),
                **{f"residual({name})": float(values[row]) for name, values in self.residuals.items()},
                **{f"top words({view.name})": ", ".join(view.top_words(row)) for view in self.texts},
            }
            for row, step in enumerate(self.steps)
        ]

    def _cells(self, row: int) -> list[str]:
        step = f"{self.steps[row]}{'*' if self.steps[row] == self.read else ''}"
        answered = [] if self.head == "score" else [f"{self.confidence(row):.3f}"]
        residuals = [number(float(values[row])) for values in self.residuals.values()]
        words = [", ".join(view.top_words(row)) or "-" for view in self.texts]
        return [step, self.said(row), *answered, *residuals, *words]

    def remarks(self) -> list[str]:
        whose = "the number" if self.head == "score" else f"the score of {self.explained_label!r}"
        whose += f" at the token {self.token}" if self.token else ""
        lines = [
            f"* is read. Residuals are of the undamped map. Words and heat maps: {self.method}, of {whose};",
            f"{self.method}: {(METHODS | OLD_METHODS)[self.method]}.",
        ]
        lines += [f"{words}." for words in (self.shares_in_words, self.evidence) if words]
        lines += [f"{name!r} is longer than its encoder reads: its end was not seen." for name in self.cut]
        if self.stopped is not None:
            lines.append(f"The iteration stopped being finite after step {self.stopped}, which is read from then on.")
        return lines

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain values; what is not finite is None."""
        chances = None if self.probabilities is None else _plain(self.probabilities)
        return {
            **{"id": self.id, "steps": list(self.steps), "read": self.read, "head": self.head},
            **({"token": self.token} if self.token else {}),
            **{"labels": list(self.labels), "answer": self.answer, "method": self.method},
            "answers": [self.said(row) for row in range(len(self.steps))],
            "probabilities": chances,
            "logits": _plain(self.logits),
            "residuals": {name: _plain(values) for name, values in self.residuals.items()},
            "explained": self.explained_label,
            "target": None if self.target is None else self.labels[self.target],
            "stopped": self.stopped,
            "effects": {name: value if math.isfinite(value) else None for name, value in self.effects.items()},
            "shares": {name: value if math.isfinite(value) else None for name, value in self.modality_shares.items()},
            "evidence": self.evidence,
            "modalities": {name: _view_to_json(view, len(self.steps)) for name, view in self.views.items()},
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Contrast(Tabular):
    """The same example twice: as it is, and with something else in one of its modalities."""

    matched: Explanation
    mismatched: Explanation
    instead: Mapping[str, Content]
    """What was put in place of the original, by modality."""

    @property
    def _columns(self) -> list[str]:
        if self.matched.probabilities is None or self.mismatched.probabilities is None:
            return ["answer", "answer, instead"]
        return [f"P({self.matched.answer})", f"P({self.matched.answer}), instead"]

    def __str__(self) -> str:
        rows = []
        for row, step in enumerate(self.matched.steps):
            mark = "*" if step == self.matched.read else ""
            rows.append([f"{step}{mark}", *(self._cell(each, row) for each in (self.matched, self.mismatched))])
        return "\n".join([text_table(["k", *self._columns], rows), *self.remarks()])

    def rows(self) -> list[dict[str, Any]]:
        """One per step that was looked at: the answer as it is, and with the other content."""
        both = (self.matched, self.mismatched)
        return [
            {"step": step, **{name: self._cell(each, row) for name, each in zip(self._columns, both, strict=True)}}
            for row, step in enumerate(self.matched.steps)
        ]

    def remarks(self) -> list[str]:
        if self.mismatched.answer == self.matched.answer:
            return [f"With the other content the answer is {self.matched.answer!r} as well."]
        return [f"With the other content the answer is {self.mismatched.answer!r}, not {self.matched.answer!r}."]

    def _cell(self, each: Explanation, row: int) -> str:
        if each.probabilities is None:
            return each.said(row)
        followed = each.labels.index(self.matched.answer) if self.matched.answer in each.labels else None
        return "-" if followed is None else f"{float(each.probabilities[row, followed]):.3f}"

    def to_json(self) -> dict[str, Any]:
        instead = {
            name: content if isinstance(content, str) else str(content) for name, content in self.instead.items()
        }
        return {"instead": instead, "matched": self.matched.to_json(), "mismatched": self.mismatched.to_json()}


def _view_to_json(view: ModalityView, steps: int) -> dict[str, Any]:
    places = {"boxes": view.boxes, "spans": view.spans, "times": view.times}
    found: dict[str, Any] = {"kind": view.kind, "truncated": view.truncated, "attribution": _plain(view.attribution)}
    found |= {name: _plain(values) for name, values in places.items() if values is not None}
    if view.size is not None:
        found["size"] = list(view.size)
    if view.spans is not None and isinstance(view.content, str):
        found["text"] = view.content
        found["words"] = [word for word, _ in view.words(0)]
        found["word_shares"] = [[share for _, share in view.words(row)] for row in range(steps)]
    return found


def _plain(values: Tensor) -> Any:
    """Nested lists; JSON has no NaN and no infinity."""
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [value if math.isfinite(value) else None for value in values.tolist()]
