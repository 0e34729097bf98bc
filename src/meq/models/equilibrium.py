"""MutualEquilibrium: coupled states on a complete graph, each reading all the others until they agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.options import checked_options, nearest
from meq.core.solution import Solution
from meq.core.solve import solve
from meq.core.solvers import Damped, Solver
from meq.models.admit import Features, TokenMasks
from meq.models.base import Fused, FusionModel
from meq.models.coupling import Coupling
from meq.models.sides import Design, Parts


@checked_options
class MutualEquilibrium(FusionModel):
    """Two or more modalities whose states update each other: z_a <- F_a(x_a, z_a, z_others).

    The defaults are the paper's. `model.solver` and `model.backward` may be replaced at any time by other objects of
    `meq`; they are ways to run the model, not part of it, and are not saved.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        heads: int = 8,
        steps: int = 10,
        tol: float = 1e-3,
        mixer: str = "attention",
        max_tokens: Mapping[str, int] | None = None,
        hidden: int | None = None,
        gate: bool = True,
        gate_floor: float = 0.0,
        cross: bool = True,
        own: bool = True,
        damping: float | Literal["learned"] = 0.5,
        start: str = "injection",
        dropout: float = 0.0,
        modality_dropout: float = 0.0,
        readout: str = "pooled",
        head: str = "classes",
        head_width: int = 1024,
        parts: Mapping[str, Parts] | None = None,
    ) -> None:
        """`widths`: feature width per modality. `mixer`: attention, gmlp (needs `max_tokens`) or mlp (vectors).

        `hidden` is the feed-forwards' width, 4 `dim` unless given. `cross=False`, `own=False`, `gate=False` switch the
        parts M, S and the soft gate off. `parts` replaces S, M or f of a modality by modules of your own.
        """
        if len(widths) < 2:
            raise ValueError(f"a mutual equilibrium needs at least two modalities, got {list(widths)}")
        super().__init__(
            widths,
            classes,
            dim,
            readout=readout,
            heads=heads,
            head=head,
            head_width=head_width,
            modality_dropout=modality_dropout,
        )
        self.steps, self.tol = steps, tol
        self.backward: Backward = Unrolled()
        self.solver: Solver | None = None
        """What replaces the damped iteration, if anything."""
        self.damping = nn.Parameter(torch.tensor(0.5)) if damping == "learned" else _check_damping(damping)
        self.custom = parts is not None
        design = Design(
            dim=dim,
            heads=heads,
            hidden=4 * dim if hidden is None else hidden,
            mixer=mixer,
            max_tokens=max_tokens,
            gate_floor=gate_floor if gate else None,
            cross=cross,
            own=own,
            start=start,
            dropout=dropout,
        )
        self.coupling = Coupling(widths, design, parts)

    @property
    def operator(self) -> Coupling:
        return self.coupling

    def block(self) -> nn.Module:
        return self.coupling

    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Fused:
        context = self.coupling.prepare(features, masks, seeds)
        solution = solve(
            self.coupling,
            context,
            solver=self.solver or self.damped(),
            steps=self.steps,
            tol=self.tol,
            backward=self.backward,
            masks=self.coupling.state_masks(masks),
        )
        return Fused(solution.state, solution.masks, solution)

    def damped(self) -> Damped:
        """The damped iteration, its step constant or learned as sigmoid(d)."""
        return Damped(step=torch.sigmoid(self.damping) if isinstance(self.damping, Tensor) else self.damping)

    def gates(self, solution: Solution) -> dict[str, Float[Tensor, " B"]]:
        with torch.no_grad():
            opened = self.coupling.openness(solution.state, solution.inputs)
        return {name: _mean_over_real(g, solution.masks.get(name)) for name, g in opened.items()}

    def to_config(self) -> dict[str, Any]:
        if self.custom:
            raise ValueError("a model with parts of your own cannot be saved by name: save its state_dict instead")
        return super().to_config()


def _mean_over_real(gate: Tensor, mask: Tensor | None) -> Float[Tensor, " B"]:
    """NaN where the modality is absent."""
    tokens = gate.mean(-1)
    if mask is None:
        return tokens.flatten(1).mean(1) if tokens.ndim > 1 else tokens
    return torch.where(mask, tokens, torch.nan).reshape(len(tokens), -1).nanmean(1)


def _check_damping(damping: float | str) -> float:
    if isinstance(damping, str):
        raise ValueError(f"damping is a number or 'learned', got {damping!r}: {nearest(damping, ['learned'])}")
    return damping
