"""EquilibriumTree: modalities merged pair by pair, each pair an equilibrium of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.blocks.mlp import MLP
from meq.core.options import checked_options, nearest
from meq.core.solution import Solution
from meq.models.admit import Features, TokenMasks
from meq.models.base import Fused, FusionModel
from meq.models.equilibrium import MutualEquilibrium
from meq.models.iterated import PreparedOperator

Order = Any
"""A modality's name, or a pair of orders: (("image", "audio"), "text")."""


@checked_options
class EquilibriumTree(FusionModel):
    """(("image", "audio"), "text"): the first pair settles, an MLP makes one summary of it, which meets the third.

    The root pair is what is read. Every node takes the options of `MutualEquilibrium`; the paper's form for CMU-MOSEI
    is `mixer="mlp"`.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        order: Order,
        heads: int = 8,
        modality_dropout: float = 0.0,
        readout: str = "pooled",
        head: str = "classes",
        head_width: int = 1024,
        node: Mapping[str, Any] | None = None,
    ) -> None:
        """`order` nests pairs of modality names; `node` holds further options of each pair's `MutualEquilibrium`."""
        self.order = _frozen(order)
        _check_order(self.order, widths)
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
        self.nodes, self.combiners = nn.ModuleDict(), nn.ModuleDict()
        for pair in _pairs(self.order):
            sides = {_label(side): widths.get(side, dim) if isinstance(side, str) else dim for side in pair}
            self.nodes[_label(pair)] = MutualEquilibrium(sides, None, dim, heads=heads, **(node or {}))
            if pair != self.order:
                self.combiners[_label(pair)] = MLP(2 * dim, 4 * dim, dim)

    @property
    def state_names(self) -> list[str]:
        return [_label(side) for side in self.order]

    @property
    def root(self) -> MutualEquilibrium:
        return self.nodes[_label(self.order)]  # type: ignore[return-value]

    @property
    def operator(self) -> PreparedOperator:
        return self.root.operator

    def gates(self, solution: Solution) -> dict[str, Float[Tensor, " B"]]:
        return self.root.gates(solution)

    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Fused:
        features, masks = dict(features), dict(masks)
        branches: dict[str, Solution] = {}
        for depth, pair in enumerate(_pairs(self.order)):
            name, sides = _label(pair), [_label(side) for side in pair]
            node: MutualEquilibrium = self.nodes[name]  # type: ignore[assignment]
            fused = node.fuse(
                {side: features[side] for side in sides},
                {side: masks[side] for side in sides if side in masks},
                None if seeds is None else seeds + 7919 * depth,  # another stream of draws for every node
            )
            if pair == self.order:
                return Fused(fused.state, fused.masks, fused.solution, branches)
            assert fused.solution is not None
            branches[name] = fused.solution
            pooled = node.pool(fused.state, fused.masks)
            features[name] = self.combiners[name](torch.cat(list(pooled.values()), dim=-1))[:, None]
            if all(side in masks for side in sides):  # a sample that lacks both sides lacks their summary
                masks[name] = torch.stack([masks[side].any(1) for side in sides]).any(0)[:, None]
        raise AssertionError("an order always ends at its root")


def _frozen(order: Order) -> Order:
    """Lists, as they come from a config file, become tuples."""
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
