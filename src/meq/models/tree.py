"""EquilibriumTree: modalities merged pair by pair, each pair an equilibrium of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.iteration import TOLERANCE
from meq.core.solution import Solution
from meq.core.solvers import Solver
from meq.models.admit import Features, TokenMasks
from meq.models.base import FusedState
from meq.models.blocks import MLP
from meq.models.equilibrium import Coupling
from meq.models.iterated import IteratedModel
from meq.models.readout import PooledReadout
from meq.models.sides import Design
from meq.options import checked_options, nearest

STREAM = 7919
"""How far the seeds of two nodes lie apart, so that they draw different dropout."""

Order = Any
"""A modality's name, or a pair of orders: (("image", "audio"), "text")."""


@checked_options
class EquilibriumTree(IteratedModel):
    """(("image", "audio"), "text"): the first pair settles, an MLP makes one summary of it, which meets the third.

    Every pair is an equilibrium of its own, built and run as in `MutualEquilibrium`; the root pair is what is read. The
    paper's form for CMU-MOSEI is `mixer="mlp"`.

    >>> widths = {"image": 8, "audio": 4, "text": 6}
    >>> model = meq.EquilibriumTree(widths, classes=3, dim=16, order=(("image", "audio"), "text"), heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "audio": torch.randn(2, 4), "text": torch.randn(2, 4, 6)})
    >>> out.logits.shape, len(out.branches)  # B C, and the inner pair
    (torch.Size([2, 3]), 1)
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        order: Order,
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
        damping: float | str = 0.5,
        start: str = "injection",
        dropout: float = 0.0,
        modality_dropout: float = 0.0,
        readout: str = "pooled",
        head: str = "classes",
        head_width: int = 1024,
        answering: Sequence[str] | None = None,
    ) -> None:
        """`order` nests pairs of modality names; the other options are those of `MutualEquilibrium`."""
        self.order = _frozen(order)
        _check_order(self.order, widths)
        self.has_token_states = mixer != "mlp"
        super().__init__(widths, classes, dim, heads, readout, head, head_width, modality_dropout, answering)
        self.run_by(steps, tol, solver, backward, damping)
        hidden = 4 * dim if hidden is None else hidden
        self.branches, self.combiners = nn.ModuleDict(), nn.ModuleDict()
        for pair in _pairs(self.order):
            sides = {_label(side): widths[side] if isinstance(side, str) else dim for side in pair}
            design = Design(
                dim=dim,
                heads=heads,
                hidden=hidden,
                mixer=mixer,
                max_tokens=max_tokens and {side: max_tokens.get(side, 1) for side in sides},
                gate=gate,
                gate_floor=gate_floor,
                start=start,
                dropout=dropout,
            )
            if pair == self.order:
                self.coupling = Coupling(sides, design)
            else:
                self.branches[_label(pair)] = Coupling(sides, design)
                self.combiners[_label(pair)] = Combiner(list(sides), dim, hidden)

    @property
    def state_names(self) -> list[str]:
        return [_label(side) for side in self.order]

    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> FusedState:
        features, masks = dict(features), dict(masks)
        branches: dict[str, Solution] = {}
        for depth, pair in enumerate(_pairs(self.order), start=1):
            if pair == self.order:
                break
            name = _label(pair)
            draws = None if seeds is None else seeds + depth * STREAM
            coupling = self.branches[name]
            assert isinstance(coupling, Coupling)
            branches[name] = self.settle(coupling, *self._sides(pair, features, masks), draws)
            features[name] = self.combiners[name](branches[name])
            if all(_label(side) in masks for side in pair):  # a sample that lacks both sides lacks their summary
                masks[name] = torch.stack([masks[_label(side)].any(1) for side in pair]).any(0)[:, None]
        solution = self.settle(self.coupling, *self._sides(self.order, features, masks), seeds)
        return FusedState(solution.state, solution.masks, solution, branches)

    @staticmethod
    def _sides(pair: Order, features: Features, masks: TokenMasks) -> tuple[Features, TokenMasks]:
        names = [_label(side) for side in pair]
        return {name: features[name] for name in names}, {name: masks[name] for name in names if name in masks}


class Combiner(nn.Module):
    """h(z_a, z_b): the pooled states of a pair through an MLP, as one token for the next pair."""

    def __init__(self, names: list[str], dim: int, hidden: int) -> None:
        super().__init__()
        self.pool, self.mlp = PooledReadout(names, dim), MLP(len(names) * dim, hidden, dim)

    def forward(self, solution: Solution) -> Float[Tensor, "B 1 D"]:
        pooled = self.pool(solution.state, solution.masks)
        return self.mlp(torch.cat(list(pooled.values()), dim=-1))[:, None]


def _frozen(order: Order) -> Order:
    """Lists, as they come from a config file, become tuples."""
    if not isinstance(order, str | list | tuple):
        raise TypeError(
            f"order must be nested pairs of modalities such as (('image', 'audio'), 'text'), got {order!r:.80}"
        )
    return order if isinstance(order, str) else tuple(_frozen(side) for side in order)


def _pairs(order: Order) -> list[tuple[Order, Order]]:
    """Every inner node, children before parents."""
    if isinstance(order, str):
        return []
    return [*_pairs(order[0]), *_pairs(order[1]), order]


def _leaves(order: Order) -> list[str]:
    return [order] if isinstance(order, str) else [leaf for side in order for leaf in _leaves(side)]


def _label(order: Order) -> str:
    return order if isinstance(order, str) else f"({'+'.join(_label(side) for side in order)})"


def _check_order(order: Order, widths: Mapping[str, int]) -> None:
    if isinstance(order, str) or any(len(pair) != 2 for pair in _all_nodes(order)):
        raise ValueError(f"order must nest pairs, such as (('image', 'audio'), 'text'), got {order!r}")
    leaves = _leaves(order)
    for name in leaves:
        if name not in widths:
            raise ValueError(f"order has the unknown modality {name!r}: {nearest(name, widths)}")
    if len(set(leaves)) != len(leaves) or set(leaves) != set(widths):
        raise ValueError(f"order must name every modality once: it has {leaves}, the model has {list(widths)}")


def _all_nodes(order: Order) -> list[Sequence[Order]]:
    return [] if isinstance(order, str) else [order, *(node for side in order for node in _all_nodes(side))]
