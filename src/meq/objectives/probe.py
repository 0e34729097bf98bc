"""T(z) at the state that was read: one operator call, from which every penalty takes what it needs.

The random signs are for Hutchinson's estimator: E |v^T J|^2 = |J|_F^2 for v of independent signs.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from meq.core.operator import evaluate
from meq.core.solution import Solution, Stop, relative
from meq.core.state import Masks, State, all_finite, count_entries, detach, norm, per_sample, take_rows

WORD = 2**64 - 1


class Evaluation:
    """T(z) and products v^T J with J = dT/dz of the undamped map, R samples, by `Evaluation.at`.

    The state stays attached to the solve that led to it, so that the gradient of a penalty is that of the whole
    computation. Where gradients are off, so is that: the numbers are the same, and nothing can be backpropagated.
    """

    def __init__(
        self,
        operator: Any,
        solution: Solution,
        kept: Bool[Tensor, " B"],
        *,
        seeds: Int[Tensor, " B"] | None = None,
        split: int = 0,
    ) -> None:
        self.kept, self.split, self.tracking = kept, split, torch.is_grad_enabled()
        state, inputs, masks = solution.state, solution.inputs, dict(solution.masks)
        if not bool(kept.all()):
            rows = kept.nonzero().squeeze(1)
            state, inputs, masks, seeds = take_rows((state, inputs, masks, seeds), rows)
        self.state = {name: self._variable(z) for name, z in state.items()}
        self.masks, self.seeds = masks, seeds
        self._blocks: dict[int, dict[str, State]] = {}
        # fused attention has no second derivative, and v^T J is differentiated again
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            self.image = evaluate(operator, self.state, inputs) if bool(kept.any()) else self.state

    @classmethod
    def at(
        cls, operator: Any, solution: Solution, *, seeds: Int[Tensor, " B"] | None = None, split: int = 0
    ) -> Evaluation:
        """The evaluation of all samples but those that diverged, or would with this step: NaN spreads in backward.

        `seeds` make the probes reproducible, one per sample, or one per question of a multiple choice. The first
        `split` probes are pulled back modality by modality.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("penalties differentiate T, which inference_mode forbids: use torch.no_grad()")
        kept = solution.stop_codes != Stop.DIVERGED.code
        seeds = _seeds_per_row(seeds, len(kept))
        evaluation = cls(operator, solution, kept, seeds=seeds, split=split)
        finite = all_finite(detach(evaluation.image), evaluation.masks)
        if bool(finite.all()):
            return evaluation
        return cls(operator, solution, kept.masked_scatter(kept, finite), seeds=seeds, split=split)

    def product(self, probe: int) -> State:
        """v^T J for the probe of that number, v random signs on the real entries of all modalities."""
        if probe < self.split:
            rows = self.blocks(probe).values()
            return {name: torch.stack([row[name] for row in rows]).sum(0) for name in self.state}
        return self._pull(self._signs(probe))

    def blocks(self, probe: int) -> dict[str, State]:
        """v_a^T J_ab as blocks[a][b], v_a the part of the probe on modality a; they sum to `product`."""
        if probe not in self._blocks:
            signs = self._signs(probe)
            self._blocks[probe] = {name: self._pull({name: v}) for name, v in signs.items()}
        return self._blocks[probe]

    @cached_property
    def gap(self) -> dict[str, Float[Tensor, " R"]]:
        """|z - T(z)| per modality."""
        return {name: norm(self.image[name] - z, self.masks.get(name)) for name, z in self._plain.items()}

    @cached_property
    def size(self) -> dict[str, Float[Tensor, " R"]]:
        """|z| per modality."""
        return {name: norm(z, self.masks.get(name)) for name, z in self._plain.items()}

    @property
    def residuals(self) -> dict[str, Float[Tensor, " R"]]:
        """|z - T(z)| / |z|, detached; as `Solution.final_residual`."""
        gap, size = detach(self.gap), detach(self.size)
        return {name: relative(gap[name], size[name], self.masks.get(name)) for name in gap}

    def entries(self, name: str) -> Float[Tensor, " R"]:
        """n_m: how many real entries a modality's state has; 0 where the sample lacks it."""
        return count_entries(self.state[name], self.masks.get(name))

    def everyone(self, values: Float[Tensor, " R"]) -> Float[Tensor, " B"]:
        """Values of the evaluated samples as values of the batch, NaN for the samples that were left out."""
        values = values.detach()
        if len(values) == len(self.kept):
            return values
        return values.new_full(self.kept.shape, torch.nan).masked_scatter(self.kept, values)

    def mean(self, values: Float[Tensor, " R"]) -> Float[Tensor, ""]:
        """The batch mean, a sample that was left out counting 0: so parts of a batch add up, whoever holds them."""
        return values.sum() / len(self.kept)

    def _variable(self, z: Tensor) -> Tensor:
        """z to differentiate by: a node of its own, so that what T's inputs share with it stays out of dT/dz."""
        return z.view_as(z) if self.tracking and z.requires_grad else z.detach().requires_grad_()

    @property
    def _plain(self) -> State:
        return self.state if self.tracking else detach(self.state)

    def _signs(self, probe: int) -> State:
        return draw_signs(self.state, self.masks, seeds=self.seeds, probe=probe)

    def _pull(self, v: State) -> State:
        """v^T J, v zero in the modalities it does not name; differentiable where gradients are on."""
        image = {name: self.image[name] for name in v if self.image[name].requires_grad}
        if not image:  # a constant map
            return {name: torch.zeros_like(z) for name, z in self.state.items()}
        pulled = torch.autograd.grad(
            list(image.values()),
            list(self.state.values()),
            [v[name] for name in image],
            create_graph=self.tracking,
            retain_graph=True,
            materialize_grads=True,
        )
        return dict(zip(self.state, pulled, strict=True))


def _seeds_per_row(seeds: Tensor | None, rows: int) -> Tensor | None:
    """Seeds for every row of the state: with multiple choice a question's seed serves all of its choices."""
    if seeds is None:
        return None
    if seeds.ndim != 1 or seeds.is_floating_point() or len(seeds) == 0 or rows % len(seeds):
        found = f"{seeds.dtype} of shape {tuple(seeds.shape)}"
        raise ValueError(f"seeds must be whole numbers, one per sample, of which there are {rows}; got {found}")
    return seeds.repeat_interleave(rows // len(seeds))


def draw_signs(state: State, masks: Masks, *, seeds: Int[Tensor, " R"] | None, probe: int) -> State:
    """v: +1 or -1 in the shape of a state, 0 on padding.

    With `seeds` every sample, modality and probe has a generator of its own, read token by token: neither neighbours
    nor padding nor the number of processes change what a token gets. Otherwise torch's global generator is used.
    """
    signs = {}
    for name, z in state.items():
        if seeds is None:
            bits = torch.randint(2, z.shape, device=z.device, dtype=torch.int8)
        else:
            bits = _seeded_bits(z, seeds, zlib.crc32(f"{name}/{probe}".encode()))
        v = (2 * bits - 1).to(z.dtype)
        signs[name] = v if name not in masks else v.masked_fill(~per_sample(masks[name], v), 0)
    return signs


def _seeded_bits(z: Tensor, seeds: Int[Tensor, " R"], stream: int) -> Tensor:
    bits = torch.empty(z.shape, dtype=torch.int8)
    for row, seed in zip(bits, seeds.tolist(), strict=True):
        row.random_(2, generator=torch.Generator().manual_seed(mixed(seed, stream)))
    return bits.to(z.device)


def mixed(seed: int, stream: int) -> int:
    """splitmix64 of seed + stream: far from the raw seed, which dropout draws from.

    All 64 bits end up in the lower 32, the only ones that torch's CPU generator looks at.
    """
    x = (seed + stream * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)
