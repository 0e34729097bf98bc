"""Do the maps lie on the object? Pointing game, energy and overlap against a mask, as curves over the iteration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.tables import middle, number, text_table
from meq.core.options import checked_options

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

    @property
    def zero_maps(self) -> Int[Tensor, " S"]:
        """How many maps of pictures with a mask are zero throughout."""
        return len(self.area) - self.empty_masks - self.counted

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
        _check_picture(place, maps, mask, rows)
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


def _check_picture(place: int, maps: Tensor, mask: Tensor, rows: list[dict[str, Tensor]]) -> None:
    if maps.ndim != 3 or mask.dtype != torch.bool or tuple(mask.shape) != tuple(maps.shape[1:]):
        raise ValueError(
            f"picture {place}: maps must be (S H W) and the mask boolean (H W), got {tuple(maps.shape)} and "
            f"{mask.dtype} {tuple(mask.shape)}"
        )
    if rows and len(maps) != len(rows[0]["pointing"]):
        raise ValueError(f"picture {place} has {len(maps)} maps, the first one has {len(rows[0]['pointing'])}")
    if not bool(torch.isfinite(maps).all()) or bool((maps < 0).any()):
        raise ValueError(f"picture {place}: maps must be finite and not negative")
