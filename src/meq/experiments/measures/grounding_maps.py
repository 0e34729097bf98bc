"""Maps of what a true statement's score depends on, step by step: scored against masks, and kept for a few pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.analysis.attribution import attribute
from meq.analysis.grounding import SCORES, Grounding, score_grounding
from meq.analysis.maps import WORD, paint, spell
from meq.data.contract import Example, collate
from meq.experiments.measures.contract import Trained
from meq.experiments.measures.encoding import seen_by_arm
from meq.experiments.measures.grounding_pictures import ENTAILMENT, Gallery, Shown

BATCH = 25
SCORED_SIDE = 256
"""Pixels of the longer side at which maps and masks are compared: tokens are coarser, and sorting pixels is slow."""


@dataclass(frozen=True, eq=False)
class PictureMaps:
    """One method's maps of one picture with its true statement, over the steps."""

    image: Float[Tensor, "S N"]
    boxes: Float[Tensor, "N 4"]
    text: Float[Tensor, "S M"] | None
    """None where the method has no map of the text."""
    spans: Tensor | None


@dataclass(frozen=True, eq=False)
class SmallMask:
    """A mask on at most SCORED_SIDE pixels a side: those of thousands of photographs have to be held at once."""

    pixels: Bool[Tensor, "h w"]
    height: int
    """Of the picture."""
    width: int


def reduce_mask(mask: Bool[Tensor, "H W"]) -> SmallMask:
    height, width = mask.shape
    scale = SCORED_SIDE / max(height, width)
    if scale < 1:
        size = max(1, round(height * scale)), max(1, round(width * scale))
        share = torch.nn.functional.adaptive_avg_pool2d(mask.float()[None, None], size)[0, 0]
        mask = share >= min(0.5, float(share.max()))  # what is smaller than a pixel stays
    return SmallMask(mask, height, width)


def left_out(method: str, trained: Trained, gallery: Gallery) -> str | None:
    """Why a method gives no maps of this model's pictures; None if it does."""
    model: Any = trained.model
    batch = collate(seen_by_arm([gallery.shown[0].true.example], trained), trained.data.widths)
    try:
        found = attribute(model, batch.features, batch.masks, method=method, steps=[0])
    except ValueError as error:
        if method != "rollout":  # the only one that asks for a certain mixer and solver
            raise
        return str(error)
    return None if gallery.image in found.maps else f"its maps are of the states {', '.join(found.maps)}"


def maps_of(
    trained: Trained, gallery: Gallery, shown: Sequence[Shown], *, method: str, steps: Sequence[int]
) -> list[PictureMaps]:
    """Of the score of `entailment`, which the true statement deserves, whatever the model answers."""
    examples = seen_by_arm([each.true.example for each in shown], trained)
    made: list[PictureMaps] = []
    for start in range(0, len(examples), BATCH):
        some = examples[start : start + BATCH]
        batch = collate(some, trained.data.widths)
        target = torch.full((len(some),), list(trained.data.labels).index(ENTAILMENT))
        model: Any = trained.model
        found = attribute(model, batch.features, batch.masks, method=method, steps=list(steps), target=target)
        made += [_picture_maps(example, row, found.maps, gallery) for row, example in enumerate(some)]
    return made


def _picture_maps(example: Example, row: int, maps: Mapping[str, Tensor], gallery: Gallery) -> PictureMaps:
    tokens = example.facts["tokens"]()
    (image,), (text,) = tokens[gallery.image], tokens[gallery.text]
    assert image.boxes is not None
    words = maps[gallery.text][:, row, : len(text.features)].cpu() if gallery.text in maps else None
    return PictureMaps(maps[gallery.image][:, row, : len(image.boxes)].cpu(), image.boxes, words, text.spans)


def score_maps(maps: Sequence[PictureMaps], masks: Sequence[SmallMask], steps: Sequence[int]) -> Grounding:
    return score_grounding(
        (_compared(one.image, one.boxes, mask) for one, mask in zip(maps, masks, strict=True)), steps=list(steps)
    )


def _compared(
    values: Float[Tensor, "S N"], boxes: Float[Tensor, "N 4"], mask: SmallMask
) -> tuple[Float[Tensor, "S h w"], Bool[Tensor, "h w"]]:
    """Map and mask on the same pixels, fewer than the picture's where it is large."""
    height, width = mask.pixels.shape
    factor = boxes.new_tensor([width / mask.width, height / mask.height] * 2)
    return paint(values, boxes * factor, height=height, width=width), mask.pixels


def constant_score(masks: Sequence[SmallMask]) -> float | None:
    """The mean that a constant map would have, in every score; None without masks."""
    areas = [float(mask.pixels.double().mean()) for mask in masks]
    return sum(areas) / len(areas) if areas else None


def best_possible(maps: Sequence[PictureMaps], masks: Sequence[SmallMask]) -> dict[str, float]:
    """The means that the best maps of such tokens would have: a token is coarser than what it shows.

    Each token has the share of it that lies in the mask. All of a map in the token with the largest share is the best
    for pointing and energy, and a threshold on shares is the best for overlap.
    """
    ideal = [_shares(one.boxes, mask) for one, mask in zip(maps, masks, strict=True)]
    pictures = (_compared(x[None], one.boxes, mask) for x, one, mask in zip(ideal, maps, masks, strict=True))
    found = score_grounding(pictures)
    pointing, overlap = float(found.mean("pointing")[0]), float(found.mean("iou")[0])
    return {"pointing": pointing, "energy": pointing, "iou": overlap}


def _shares(boxes: Float[Tensor, "N 4"], mask: SmallMask) -> Float[Tensor, " N"]:
    alone, small = _compared(torch.eye(len(boxes)), boxes, mask)
    return ((alone * small).sum((1, 2)) / alone.sum((1, 2))).nan_to_num(0)  # nothing is painted of one without a place


def summary(grounding: Grounding) -> dict[str, Any]:
    """Means over pictures at every step, None where no picture counts; and how many do."""
    means = {name: [None if x.isnan() else float(x) for x in grounding.mean(name)] for name in SCORES}
    return {**means, "counted": grounding.counted.tolist()}


# -- what is kept to be drawn later ------------------------------------------------------------------------------------


def kept_picture(shown: Shown, maps: Mapping[str, PictureMaps], probabilities: Float[Tensor, "S C"]) -> dict[str, Any]:
    """All that a grid of this picture needs besides the picture: places, and values at every step.

    The values of a step are one text of numbers (see `numbers`): a list would take a line of the file for each.
    """
    width, height = shown.picture.open().size
    mask, some = shown.mask(), next(iter(maps.values()), None)
    true = shown.true
    return {
        "id": true.example.id,
        "picture": shown.name,
        "text": true.text,
        "label": true.label,
        "size": [width, height],
        "mask_box": None if mask is None else _bounds(mask),
        "probabilities": [as_row(row) for row in probabilities],
        "boxes": [] if some is None else [_box(row) for row in some.boxes],
        "maps": {method: [as_row(row) for row in one.image] for method, one in maps.items()},
        "words": [list(match.span()) for match in WORD.finditer(true.text)],
        "word_values": {
            method: [as_row(_on_words(row, one, true.text)) for row in one.text]
            for method, one in maps.items()
            if one.text is not None and one.spans is not None
        },
    }


def numbers(row: str) -> list[float]:
    """What was kept of one step: a value per token, word or label."""
    return [float(word) for word in row.split()]


def _on_words(values: Float[Tensor, " M"], maps: PictureMaps, text: str) -> Float[Tensor, " W"]:
    assert maps.spans is not None
    return torch.tensor([value for _, value in spell(values, maps.spans, text)])


def as_row(values: Float[Tensor, " N"]) -> str:
    """Three digits of each."""
    return " ".join(f"{value:.3g}" for value in values.tolist())


def _box(box: Float[Tensor, 4]) -> str | None:
    """None for a token without a place."""
    return None if bool(box.isnan().any()) else " ".join(f"{side:.6g}" for side in box.tolist())


def _bounds(mask: Bool[Tensor, "H W"]) -> list[int]:
    """Left, top, right, bottom."""
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
