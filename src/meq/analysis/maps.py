"""Token values shown where the tokens came from: on pixels, on words; and whether such maps lie on an object."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.tables import middle, number, text_table
from meq.options import checked_options, nearest

WORD = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]+")
"""A word, with its apostrophes and hyphens, or a run of punctuation."""

MERGES = {
    "sum": "a word has what its tokens have; a token over several words is divided by its characters in each",
    "max": "a word has what its largest token has",
    "mean": "the mean of a word's tokens, weighed by their characters in it",
}


@checked_options
def paint(
    values: Float[Tensor, "*K N"],
    boxes: Float[Tensor, "N 4"],
    *,
    height: int,
    width: int,
    smooth: bool = False,
    outside: float = 0.0,
) -> Float[Tensor, "*K height width"]:
    """Token values on a picture's pixels: the mean of the boxes over a pixel, weighed by how much of it each covers.

    `boxes` are left, top, right, bottom in pixels of that picture, fractions allowed; a token whose box is NaN has no
    place and is left out. Pixels that no box touches, such as the borders that a centre crop leaves, get `outside`.
    `smooth` interpolates between the boxes' centres instead, which needs boxes on a grid.
    """
    if values.shape[-1] != len(boxes):
        raise ValueError(
            f"{values.shape[-1]} values for {len(boxes)} boxes: cut the padding off, as in map[:, :{len(boxes)}]"
        )
    wrong = ((boxes[:, 2:] <= boxes[:, :2]).any(1)).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(
            f"boxes {wrong[:8]} are empty: they must be left, top, right, bottom; got {boxes[wrong[0]].tolist()}"
        )
    placed = ~boxes.isnan().any(1)
    kept, values = boxes[placed].to(values), values[..., placed]
    across = _coverage(kept[:, 0], kept[:, 2], width)
    down = _coverage(kept[:, 1], kept[:, 3], height)
    covered = torch.einsum("nh,nw->hw", down, across)
    if smooth and len(kept) > 0:
        painted = _interpolate(values, kept, height, width)
    else:
        painted = torch.einsum("...n,nh,nw->...hw", values, down, across) / covered.clamp(
            min=torch.finfo(covered.dtype).tiny
        )
    return torch.where(covered > 0, painted, outside)


def _coverage(first: Float[Tensor, " N"], last: Float[Tensor, " N"], size: int) -> Float[Tensor, "N size"]:
    """How much of each pixel [i, i + 1] a box covers along one axis, from 0 to 1."""
    edges = torch.arange(size).to(first)
    return (torch.minimum(last[:, None], edges + 1) - torch.maximum(first[:, None], edges)).clamp(min=0)


def _interpolate(values: Float[Tensor, "*K N"], boxes: Tensor, height: int, width: int) -> Tensor:
    """Bilinear between the centres of a grid of boxes, constant beyond the outermost."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    columns, column = _lines(centres[:, 0], boxes[:, 2] - boxes[:, 0])
    rows, row = _lines(centres[:, 1], boxes[:, 3] - boxes[:, 1])
    places = row * len(columns) + column
    if len(places) != len(rows) * len(columns) or len(places.unique()) != len(places):
        raise ValueError(
            f"smooth=True needs boxes on a full grid: {len(boxes)} boxes lie on {len(rows)} rows and {len(columns)} "
            "columns; use smooth=False"
        )
    grid = values[..., places.argsort()].unflatten(-1, (len(rows), len(columns)))
    return _hats(rows, height) @ grid @ _hats(columns, width).T


def _lines(centres: Float[Tensor, " N"], sizes: Float[Tensor, " N"]) -> tuple[Float[Tensor, " L"], Int[Tensor, " N"]]:
    """The distinct lines that centres lie on, in order, and each centre's; rounding may part them by a little."""
    order = centres.argsort()
    apart = centres[order].diff() > sizes.min() / 4
    index = torch.zeros_like(order)
    index[order[1:]] = apart.cumsum(0)
    lines = torch.stack([centres[index == line].mean() for line in range(int(index.max()) + 1)])
    return lines, index


def _hats(lines: Float[Tensor, " L"], size: int) -> Float[Tensor, "size L"]:
    """Linear interpolation from the lines to the pixels' centres, as a matrix whose rows sum to one."""
    pixels = (torch.arange(size).to(lines) + 0.5).clamp(float(lines[0]), float(lines[-1]))
    after = torch.searchsorted(lines, pixels).clamp(1, max(len(lines) - 1, 1))
    weights = lines.new_zeros(size, len(lines))
    if len(lines) == 1:
        return weights + 1
    share = (pixels - lines[after - 1]) / (lines[after] - lines[after - 1])
    weights.scatter_(1, (after - 1)[:, None], (1 - share)[:, None])
    return weights.scatter_(1, after[:, None], share[:, None])


@checked_options
def spell(
    values: Float[Tensor, " N"], spans: Int[Tensor, "N 2"], text: str, *, merge: str = "sum"
) -> list[tuple[str, float]]:
    """Token values on a text's words, in order: each word (or run of punctuation) with its merged value.

    `spans` are the first and past-the-last character of each token in `text`; a token at -1, -1 has no place and is
    left out, and so is one that covers only spaces. A word that no token covers has 0. `merge` is a key of MERGES.
    """
    if merge not in MERGES:
        raise ValueError(f"there is no merge {merge!r}: {nearest(merge, MERGES)}")
    if len(values) != len(spans):
        raise ValueError(f"{len(values)} values for {len(spans)} spans: cut the padding off the map")
    for place, (first, last) in enumerate(spans.tolist()):
        if (first, last) != (-1, -1) and not 0 <= first <= last <= len(text):
            raise ValueError(f"token {place} spans {first} to {last}, but the text has {len(text)} characters")
    words = list(WORD.finditer(text))
    ends = torch.tensor([match.span() for match in words], dtype=torch.long).reshape(-1, 2)
    tokens, values = spans.long().cpu(), values.double().cpu()
    # N V: how many characters each token has in each word
    shared = (torch.minimum(tokens[:, 1:], ends[:, 1]) - torch.maximum(tokens[:, :1], ends[:, 0])).clamp(min=0).double()
    if merge == "max":
        covers: Bool[Tensor, "N V"] = shared > 0
        largest = values[:, None].where(covers, -torch.inf).amax(0) if len(values) else shared.sum(0) - torch.inf
        merged = largest.where(covers.any(0), 0)
    else:
        over = shared.sum(1 if merge == "sum" else 0, keepdim=True)
        merged = (values[:, None] * shared / over.clamp(min=1)).sum(0)
    return list(zip([match.group() for match in words], merged.tolist(), strict=True))


SCORES = {
    "pointing": "the share of the map's largest pixels that lie in the mask: 1 or 0, between them if they tie",
    "energy": "the share of the map's sum that lies in the mask",
    "iou": "intersection over union of the mask and {map >= t}, at the t that is best for this very map and mask",
}

ROUNDING = 1e-6
"""Pixels of one token are painted alike up to this, relatively."""


@dataclass(frozen=True, eq=False)
class Grounding:
    """Scores of S steps on P pictures; NaN, and counted nowhere, where a map is zero throughout or a mask is empty."""

    steps: tuple[int, ...]
    scores: dict[str, Float[Tensor, "S P"]]
    """By the names of SCORES."""
    area: Float[Tensor, " P"]
    """The mask's share of the picture, which is what a constant map scores in all three; 0 for an empty mask."""

    @property
    def counted(self) -> Int[Tensor, " S"]:
        """How many pictures count at each step."""
        return (~self.scores["pointing"].isnan()).sum(1)

    @property
    def empty_masks(self) -> int:
        return int((self.area == 0).sum())

    def mean(self, score: str) -> Float[Tensor, " S"]:
        return self.scores[score].nanmean(1)

    def standard_error(self, score: str) -> Float[Tensor, " S"]:
        """s / sqrt(n), s the sample standard deviation over pictures; NaN for fewer than two."""
        squares = (self.scores[score] - self.mean(score)[:, None]).square().nansum(1)
        count = self.counted.double()
        return (squares / (count - 1) / count).sqrt().where(count > 1, torch.nan)

    def __str__(self) -> str:
        chance = number(middle(self.area[self.area > 0]))
        rows = [
            [str(step), str(self.counted[row].item()), *(self._cell(name, row) for name in self.scores)]
            for row, step in enumerate(self.steps)
        ]
        return "\n".join(
            [
                f"{len(self.area)} pictures, {self.empty_masks or 'none'} with an empty mask",
                text_table(["k", "counted", *self.scores], rows),
                "Mean +- standard error, iou at each map's own best threshold. Not counted: empty masks, maps that are",
                f"zero throughout. A constant map scores the mask's share of the picture: median {chance}.",
            ]
        )

    def _cell(self, name: str, row: int) -> str:
        mean, error = self.mean(name)[row].item(), self.standard_error(name)[row].item()
        return number(mean) if math.isnan(error) else f"{number(mean)} +- {number(error)}"


@checked_options
def score_grounding(pictures: Iterable[tuple[Tensor, Tensor]], *, steps: Sequence[int] | None = None) -> Grounding:
    """Score maps against masks: `pictures` yields (maps S H W over the steps, mask H W), one picture at a time.

    Pictures may differ in size. The maps are never negative, as `attribute` and `paint` give them; `steps` names their
    S steps, 0 to S - 1 unless given.
    """
    rows: list[dict[str, Tensor]] = []
    areas: list[float] = []
    for place, (maps, mask) in enumerate(pictures):
        if maps.ndim != 3 or mask.dtype != torch.bool or tuple(mask.shape) != tuple(maps.shape[1:]):
            raise ValueError(
                f"picture {place}: maps must be (S H W) and the mask boolean (H W), got {tuple(maps.shape)} and "
                f"{mask.dtype} {tuple(mask.shape)}"
            )
        if rows and len(maps) != len(rows[0]["pointing"]):
            raise ValueError(f"picture {place} has {len(maps)} maps, the first one has {len(rows[0]['pointing'])}")
        if not bool(torch.isfinite(maps).all()) or bool((maps < 0).any()):
            raise ValueError(f"picture {place}: maps must be finite and not negative")
        rows.append({"pointing": pointing(maps, mask), "energy": energy(maps, mask), "iou": best_iou(maps, mask)})
        areas.append(mask.double().mean().item())
    if not rows:
        raise ValueError("there were no pictures to score")
    count = len(rows[0]["pointing"])
    named = tuple(range(count)) if steps is None else tuple(steps)
    if len(named) != count:
        raise ValueError(f"steps names {len(named)} steps, but each picture has {count} maps")
    scores = {name: torch.stack([row[name] for row in rows], dim=1).cpu() for name in SCORES}
    return Grounding(named, scores, torch.tensor(areas, dtype=torch.float64))


def pointing(maps: Float[Tensor, "S H W"], mask: Bool[Tensor, "H W"]) -> Float[Tensor, " S"]:
    """The pointing game, fair to ties, up to rounding: the share of a map's maxima inside the mask."""
    flat = maps.double().flatten(1)
    largest = flat >= (1 - ROUNDING) * flat.amax(1, keepdim=True)
    return _counted((largest & mask.flatten()).sum(1).double() / largest.sum(1), maps, mask)


def energy(maps: Float[Tensor, "S H W"], mask: Bool[Tensor, "H W"]) -> Float[Tensor, " S"]:
    """sum of the map inside the mask / sum of the map"""
    flat = maps.double().flatten(1)
    return _counted(flat[:, mask.flatten()].sum(1) / flat.sum(1), maps, mask)


def best_iou(maps: Float[Tensor, "S H W"], mask: Bool[Tensor, "H W"]) -> Float[Tensor, " S"]:
    """max over t of |{map >= t} and mask| / |{map >= t} or mask|, every distinct value of the map tried as t."""
    ordered, place = maps.double().flatten(1).sort(dim=1, descending=True)
    inside = mask.flatten()[place].cumsum(1).double()
    chosen = torch.arange(1, ordered.shape[1] + 1, device=maps.device)
    overlap = inside / (chosen + mask.sum() - inside)
    # pixels that tie are above the threshold together, so only the last of them is a place to cut
    last_of_tie = torch.nn.functional.pad(ordered.diff(dim=1) < 0, (0, 1), value=True)
    return _counted(overlap.where(last_of_tie, 0).amax(1), maps, mask)


def _counted(scores: Float[Tensor, " S"], maps: Tensor, mask: Tensor) -> Float[Tensor, " S"]:
    """NaN where nothing can be said."""
    says = (maps.flatten(1) > 0).any(1) & mask.any()
    return scores.double().where(says, torch.nan)
