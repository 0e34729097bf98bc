"""From tokens back to where they came from: maps on pixels, values on words."""

from __future__ import annotations

import re

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.core.options import checked_options, nearest

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
    _check_boxes(values, boxes)
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


def _check_boxes(values: Tensor, boxes: Tensor) -> None:
    if values.shape[-1] != len(boxes):
        raise ValueError(
            f"{values.shape[-1]} values for {len(boxes)} boxes: cut the padding off, as in map[:, :{len(boxes)}]"
        )
    wrong = ((boxes[:, 2:] <= boxes[:, :2]).any(1)).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(
            f"boxes {wrong[:8]} are empty: they must be left, top, right, bottom; got {boxes[wrong[0]].tolist()}"
        )


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
    _check_spans(values, spans, text)
    words = list(WORD.finditer(text))
    shared = _shared_characters(spans, [match.span() for match in words])
    return list(zip([match.group() for match in words], _merge(values.double().cpu(), shared, merge), strict=True))


def _shared_characters(spans: Int[Tensor, "N 2"], words: list[tuple[int, int]]) -> Float[Tensor, "N V"]:
    """How many characters each token has in each word."""
    ends = torch.tensor(words, dtype=torch.long).reshape(-1, 2)
    tokens = spans.long().cpu()
    last, first = torch.minimum(tokens[:, 1:], ends[:, 1]), torch.maximum(tokens[:, :1], ends[:, 0])
    return (last - first).clamp(min=0).double()


def _merge(values: Float[Tensor, " N"], shared: Float[Tensor, "N V"], merge: str) -> list[float]:
    if merge == "max":
        covers: Bool[Tensor, "N V"] = shared > 0
        largest = values[:, None].where(covers, -torch.inf).amax(0) if len(values) else shared.sum(0) - torch.inf
        return largest.where(covers.any(0), 0).tolist()
    over = shared.sum(1 if merge == "sum" else 0, keepdim=True)
    return (values[:, None] * shared / over.clamp(min=1)).sum(0).tolist()


def _check_spans(values: Tensor, spans: Tensor, text: str) -> None:
    if len(values) != len(spans):
        raise ValueError(f"{len(values)} values for {len(spans)} spans: cut the padding off the map")
    for place, (first, last) in enumerate(spans.tolist()):
        if (first, last) != (-1, -1) and not 0 <= first <= last <= len(text):
            raise ValueError(f"token {place} spans {first} to {last}, but the text has {len(text)} characters")
