"""MutualEquilibrium: coupled states on a complete graph, each reading all the others until they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.iteration import TOLERANCE
from meq.core.solvers import Solver
from meq.core.state import State
from meq.models.admit import Features, TokenMasks
from meq.models.blocks import is_lean, keep_masks, readable_keys, real_tokens
from meq.models.iterated import Context, IteratedModel, PreparedOperator
from meq.models.sides import SIDES, Design, Parts, Side, Slots, SlotsWhenAsked, has_parts
from meq.options import checked_options, nearest


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
        lengths = {name: x.shape[1] for name, x in features.items()}
        context = Context(
            features=features,
            feature_masks=masks,
            injection={},
            masks=masks,
            own_keys={},
            cross_keys={},
            someone={},
            keep={},
        )
        for name, side in self.sides.items():
            side.check(lengths)
            others = [other for other in features if other != name]
            context["own_keys"][name], _ = readable_keys([name], features, masks)
            context["cross_keys"][name], context["someone"][name] = readable_keys(others, features, masks)
        context["injection"] = self.injections(features, masks)
        if self.training and self.design.dropout > 0:
            sides = dict(self.sides.items())
            context["keep"] = draw_keep_masks(sides, context["injection"], self.design.dropout, seeds)
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
        if is_lean(next(iter(state.values()))) and all(has_parts(side.project) for side in self.sides.values()):
            return self._lean(state, inputs)
        normed, slots = self._project(state)
        return {name: side(state, normed, slots, inputs) for name, side in self.sides.items()}

    def _lean(self, state: State, inputs: Context) -> State:
        """The same without gradients: padding is left out of the products, and no more is held than a side needs."""
        tokens, normed, slots = {}, {}, {}
        for name, side in self.sides.items():
            mask = inputs["masks"].get(name) if side.leaves_padding and not inputs["keep"] else None
            tokens[name] = real_tokens(state[name], mask)
            normed[name] = side.norm(tokens[name].take(state[name]))
            slots[name] = SlotsWhenAsked(side, normed[name], tokens[name], readers=len(self.sides) - 1)
        inputs = {**inputs, "tokens": tokens}
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

    def _project(self, state: State) -> tuple[State, Slots]:
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


@checked_options
class MutualEquilibrium(IteratedModel):
    """Two or more modalities whose states update each other: z_a <- F_a(x_a, z_a, z_others).

    The defaults are the paper's.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, steps=10)
    >>> mask = torch.tensor([[True, True, True, True], [True, True, False, False]])  # B M, True = a real token
    >>> features = {"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}  # B N 8 and B M 6
    >>> out = model(features, masks={"text": mask})
    >>> out.logits.shape, out.solution.state["text"].shape  # B C and B M D
    (torch.Size([2, 3]), torch.Size([2, 4, 16]))
    >>> model({"image": torch.randn(2, 5, 8)}).logits.shape  # without texts
    torch.Size([2, 3])
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        heads: int = 8,
        steps: int = 10,
        tol: float = TOLERANCE,
        solver: Solver | None = None,
        backward: Backward = Unrolled(),
        mixer: str = "attention",
        max_tokens: Mapping[str, int] | None = None,
        hidden: int | None = None,
        gate: bool | str = True,
        gate_floor: float = 0.0,
        cross: bool = True,
        own: bool = True,
        damping: float | str = 0.5,
        start: str = "injection",
        dropout: float = 0.0,
        modality_dropout: float = 0.0,
        readout: str = "pooled",
        head: str = "classes",
        head_width: int = 1024,
        answering: Sequence[str] | None = None,
        parts: Mapping[str, Parts] | None = None,
    ) -> None:
        """`widths`: feature width per modality. `mixer`: attention, gmlp (needs `max_tokens`) or mlp (vectors).

        `hidden` is the feed-forwards' width, 4 `dim` unless given. `cross=False`, `own=False`, `gate=False` switch the
        parts M, S and the soft gate off; `gate="decay"` puts a carry in its place that fades by construction. `parts`
        replaces S, M or f of a modality by modules of your own. `solver`, the damped iteration unless given,
        `backward`, `steps` and `tol` say how it is run, and can be set again later. `answering`: the modalities whose
        tokens answer with head="tokens", all of them unless given.
        """
        self.has_token_states = mixer != "mlp"
        super().__init__(widths, classes, dim, heads, readout, head, head_width, modality_dropout, answering)
        if len(widths) < 2:
            raise ValueError(f"a mutual equilibrium needs at least two modalities, got {list(widths)}")
        self.run_by(steps, tol, solver, backward, damping)
        self.custom = parts is not None
        design = Design(
            dim=dim,
            heads=heads,
            hidden=4 * dim if hidden is None else hidden,
            mixer=mixer,
            max_tokens=max_tokens,
            gate=gate,
            gate_floor=gate_floor,
            cross=cross,
            own=own,
            start=start,
            dropout=dropout,
        )
        self.coupling = Coupling(widths, design, parts)

    def to_config(self) -> dict[str, Any]:
        if self.custom:
            raise ValueError("a model with parts of your own cannot be saved by name: save its state_dict instead")
        return super().to_config()
