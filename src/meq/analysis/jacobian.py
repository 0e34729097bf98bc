"""Block statistics of the Jacobian: who moves whom in one undamped step, at the read state."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from meq.core.operator import Operator, evaluate
from meq.core.options import checked_options
from meq.core.solution import Solution
from meq.core.state import State, detach, norm, per_sample

Blocks = dict[str, dict[str, Float[Tensor, " B"]]]
"""blocks[a][b] belongs to J_ab = dF_a / dz_b: what b's state does to a's update."""


@checked_options
def block_statistics(operator: Operator, solution: Solution, *, probes: int = 8, seed: int = 0) -> Blocks:
    """s_ab = |J_ab|_F / sqrt(n_a) per sample, by Hutchinson: E |v_a^T J_ab|^2 = |J_ab|_F^2 for random signs v_a.

    n_a counts the real entries of a. NaN where a sample lacks a or b.
    """
    state = {name: z.requires_grad_() for name, z in detach(solution.state).items()}
    with torch.enable_grad():
        image = evaluate(operator, state, solution.inputs)
    generator = torch.Generator().manual_seed(seed)
    return {name: _row(name, state, image, solution, probes, generator) for name in state}


def cross_self_ratio(blocks: Blocks) -> dict[str, Float[Tensor, " B"]]:
    """sqrt(sum_{b != a} s_ab^2) / s_aa per path a; absent modalities count for nothing."""
    ratios = {}
    for name, row in blocks.items():
        others = [s.nan_to_num(0).square() for other, s in row.items() if other != name]
        if others:
            ratios[name] = torch.stack(others).sum(0).sqrt() / row[name]
    return ratios


def _row(
    name: str, state: State, image: State, solution: Solution, probes: int, generator: torch.Generator
) -> dict[str, Float[Tensor, " B"]]:
    z = state[name]
    mask = solution.masks.get(name)
    real = torch.ones_like(z) if mask is None else per_sample(mask, z).expand_as(z).to(z.dtype)
    totals = {other: 0.0 * norm(each.detach()) for other, each in state.items()}
    for _ in range(probes):
        signs = torch.randint(0, 2, z.shape, generator=generator).to(z) * 2 - 1
        pulled = torch.autograd.grad(
            image[name], list(state.values()), signs * real, retain_graph=True, materialize_grads=True
        )
        for other, x in zip(state, pulled, strict=True):
            totals[other] = totals[other] + norm(x, solution.masks.get(other)).square()
    count, present = real.flatten(1).sum(1), _present(name, solution)
    return {
        other: torch.where(present & _present(other, solution), (total / probes / count).sqrt(), torch.nan)
        for other, total in totals.items()
    }


def _present(name: str, solution: Solution) -> Tensor:
    mask = solution.masks.get(name)
    if mask is None:
        return torch.ones_like(solution.steps, dtype=torch.bool)
    return mask if mask.ndim == 1 else mask.any(1)
