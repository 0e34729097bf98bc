"""The iterated map T of the mutual equilibrium: one side per modality, all computed from the old states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from meq.blocks.dropout import keep_masks
from meq.core.options import nearest
from meq.core.state import State
from meq.models.admit import Features, TokenMasks
from meq.models.iterated import Context, PreparedOperator
from meq.models.masks import readable_keys
from meq.models.sides import SIDES, Design, Parts, Side


class Coupling(PreparedOperator):
    """T = [F_a; F_b; ...] on the complete graph: every side reads all the others."""

    def __init__(self, widths: Mapping[str, int], design: Design, parts: Mapping[str, Parts] | None = None) -> None:
        super().__init__()
        parts = parts or {}
        for name in parts:
            if name not in widths:
                raise ValueError(f"parts has the unknown modality {name!r}: {nearest(name, widths)}")
        if design.mixer not in SIDES:
            raise ValueError(f"there is no mixer {design.mixer!r}: {nearest(design.mixer, SIDES)}")
        if design.start not in ("injection", "zero"):
            raise ValueError(f"there is no start {design.start!r}: {nearest(design.start, ['injection', 'zero'])}")
        self.design = design
        self.sides: Mapping[str, Side] = nn.ModuleDict(  # type: ignore[assignment]
            {
                name: SIDES[design.mixer](name, width, list(widths), design, parts.get(name, Parts()))
                for name, width in widths.items()
            }
        )

    def prepare(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Context:
        """The context of one solve: what does not change along the iteration is computed here, once."""
        context: Context = {name: {} for name in ("injection", "own_keys", "cross_keys", "someone", "keep")}
        context["masks"] = context["feature_masks"] = masks
        context["features"] = features
        for name, side in self.sides.items():
            side.check({other: x.shape[1] for other, x in features.items()})
            others = [other for other in features if other != name]
            context["own_keys"][name], _ = readable_keys([name], features, masks)
            context["cross_keys"][name], context["someone"][name] = readable_keys(others, features, masks)
        context["injection"] = self.injections(features, masks)
        if self.training and self.design.dropout > 0:
            context["keep"] = draw_keep_masks(
                dict(self.sides.items()), context["injection"], self.design.dropout, seeds
            )
        return context

    def injections(self, features: Features, masks: TokenMasks) -> State:
        return {name: side.enter(features[name], masks.get(name)) for name, side in self.sides.items()}

    def state_masks(self, masks: TokenMasks) -> dict[str, Tensor]:
        """The features' masks in the shape of the states."""
        return {name: self.sides[name].state_mask(mask) for name, mask in masks.items()}

    def start(self, inputs: Context) -> State:
        if self.design.start == "zero":
            return {name: torch.zeros_like(f) for name, f in inputs["injection"].items()}
        return dict(inputs["injection"])

    def forward(self, state: State, inputs: Context) -> State:
        normed, slots = self._project(state)
        return {name: side(state, normed, slots, inputs) for name, side in self.sides.items()}

    def openness(self, state: State, inputs: Context) -> State:
        """The gates' values at a state; nothing for sides without one."""
        normed, slots = self._project(state)
        return {
            name: side.openness(state, normed, slots, inputs)
            for name, side in self.sides.items()
            if side.gate is not None
        }

    def attention(self, state: State, inputs: Context) -> dict[str, dict[str, Tensor]]:
        _, slots = self._project(state)
        return {name: side.attention(slots, inputs) for name, side in self.sides.items()}

    def _project(self, state: State) -> tuple[State, dict[str, dict[str, Tensor]]]:
        """One LayerNorm and one matrix product per state serve all that reads it, here and on the other sides."""
        normed = {name: self.sides[name].norm(z) for name, z in state.items()}
        return normed, {name: self.sides[name].project_slots(n) for name, n in normed.items()}


def draw_keep_masks(
    sides: Mapping[str, Side], injections: State, rate: float, seeds: Tensor | None
) -> dict[str, dict[str, Tensor]]:
    """One dropout mask per sample, modality and site, shared by the tokens, so that padding changes nothing."""
    like = next(iter(injections.values()))
    total = sum(len(side.dropout_sites) for side in sides.values())
    rows = iter(keep_masks(like.shape[0], (total, like.shape[-1]), rate, like=like, seeds=seeds).unbind(1))
    return {
        name: {site: next(rows) if injections[name].ndim == 2 else next(rows)[:, None] for site in side.dropout_sites}
        for name, side in sides.items()
    }
