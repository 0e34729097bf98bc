"""Attention rollout along the iteration: which input tokens the read tokens have gathered from, step by step.

Let W_k be what one step's attention reads, over the tokens of all modalities: row i of modality a has alpha times S's
weights on a's own tokens and 1 - alpha times M's weights on the others', averaged over the heads; mass that finds
no token to read stays on i. The step mixes it with what it keeps, z <- z + beta g (u - z), and S and M add it to their
own residual paths, which are given half, so that

    A_k = I + 1/2 beta g_k (W_k - I),    R_0 = I,    R_{k+1} = A_k R_k,

beta the damping and g_k the mean opening of each token's gate at z(k), 1 without a gate. The injection is a token's
own and counts with the residual path. Rows of R sum to one. What this leaves out: feed-forwards, values, signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.walk import Case
from meq.core.solvers import Damped
from meq.core.state import Masks, State, token_mask


def roll_out(case: Case, steps: Sequence[int]) -> dict[str, Float[Tensor, "S R N"]]:
    """The share of each token in what is read at z(k), k in `steps`: it sums to one over all tokens of a sample.

    Read are the real tokens: those of a modality count alike, and so do the modalities that a sample has, as in a
    readout that pools each state; where one token's answer is looked at, that token alone.
    """
    if not isinstance(case.solver, Damped):
        raise ValueError(
            f"rollout follows the damped iteration, not {type(case.solver).__name__}: set the model's solver to None, "
            "or use grad-cam or gradient"
        )
    damping, wanted = float(case.solver.step), sorted(set(steps))
    end = max(wanted[-1], 1)
    found: dict[int, Tensor] = {}
    rolled: list[Tensor] = []
    operator, inputs, masks = case.solution.operator, case.solution.inputs, case.solution.masks
    if not (hasattr(operator, "attention") and hasattr(operator, "openness")):
        raise ValueError(
            f"{type(operator).__name__} does not show its attention: give it attention(state, inputs) and "
            "openness(state, inputs) as in meq.models, or use grad-cam or gradient"
        )

    def look(k: int, state: State) -> None:
        step = mixing(operator, state, inputs, masks=masks, damping=damping) if k < end else None
        readers = _readers(state, masks) if case.token is None else _one_reader(case, state)
        matrix = rolled.pop() if rolled else torch.eye(readers.shape[1]).to(readers).expand(len(readers), -1, -1)
        if k in wanted:
            found[k] = (readers[:, None] @ matrix)[:, 0]
        if step is not None:
            rolled.append(step @ matrix)

    solution = case.walk(end, trajectory=look)
    sizes = [z.shape[1] for z in solution.state.values()]
    last = found[max(found)]  # if every sample diverged the walk breaks off; what comes then is reported as lost
    shares = torch.stack([found.get(k, last) for k in steps])
    return dict(zip(solution.state, shares.split(sizes, dim=-1), strict=True))


def mixing(operator: Any, state: State, inputs: Any, *, masks: Masks, damping: float) -> Float[Tensor, "R T T"]:
    """A of one step at a state, over the tokens of all modalities in the state's order; padding keeps to itself."""
    reads, opened = operator.attention(state, inputs), operator.openness(state, inputs)
    rows = [_row(reads[name], state) for name in state]
    weights = torch.cat(rows, dim=1)
    weights = weights + torch.diag_embed(1 - weights.sum(-1))
    gates = [opened[name].mean(-1) if name in opened else torch.ones_like(z[..., 0]) for name, z in state.items()]
    real = torch.cat([token_mask(masks.get(name), z) for name, z in state.items()], dim=1)
    share = torch.where(real, torch.cat(gates, dim=1), 0)[..., None] * (damping / 2)
    return torch.eye(weights.shape[-1]).to(weights) * (1 - share) + share * weights


def _row(reads: dict[str, Tensor], state: State) -> Float[Tensor, "R N T"]:
    """One modality's weights over everybody's tokens, zero on those it does not read."""
    like = next(iter(reads.values())).mean(1)
    blocks = [reads[b].mean(1) if b in reads else like.new_zeros(*like.shape[:2], z.shape[1]) for b, z in state.items()]
    return torch.cat(blocks, dim=2)


def _one_reader(case: Case, state: State) -> Float[Tensor, "R T"]:
    """All of the reading is done by one token of each sample, which the case counts over the modalities that answer."""
    assert case.token is not None
    names, sizes = list(state), {name: z.shape[1] for name, z in state.items()}
    firsts = {name: sum(sizes[each] for each in names[:place]) for place, name in enumerate(names)}
    answering = getattr(case.model, "answering", None) or names
    places = torch.cat([firsts[name] + torch.arange(sizes[name]) for name in answering]).to(case.token.device)
    like = next(iter(state.values()))
    return like.new_zeros(len(like), sum(sizes.values())).scatter_(1, places[case.token][:, None], 1.0)


def _readers(state: State, masks: Masks) -> Float[Tensor, "R T"]:
    """How much each token counts in what is read."""
    present = [token_mask(masks.get(name), z).to(z.dtype) for name, z in state.items()]
    shares = [real / real.sum(1, keepdim=True).clamp(min=1) for real in present]
    return torch.cat(shares, dim=1) / torch.stack([real.any(1) for real in present]).sum(0)[:, None]
