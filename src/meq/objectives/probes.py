"""Random signs for Hutchinson's estimator: E |v^T J|^2 = |J|_F^2 for v of independent signs."""

from __future__ import annotations

import zlib

import torch
from jaxtyping import Int
from torch import Tensor

from meq.core.state import Masks, State, per_sample

WORD = 2**64 - 1


def draw_signs(state: State, masks: Masks, *, seeds: Int[Tensor, " R"] | None, probe: int) -> State:
    """v: +1 or -1 in the shape of a state, 0 on padding.

    With `seeds` every sample, modality and probe has a generator of its own, read token by token: neither neighbours
    nor padding nor the number of processes change what a token gets. Otherwise torch's global generator is used.
    """
    signs = {}
    for name, z in state.items():
        bits = _bits(z) if seeds is None else _seeded_bits(z, seeds, zlib.crc32(f"{name}/{probe}".encode()))
        v = (2 * bits - 1).to(z.dtype)
        signs[name] = v if name not in masks else v.masked_fill(~per_sample(masks[name], v), 0)
    return signs


def _bits(z: Tensor) -> Tensor:
    return torch.randint(2, z.shape, device=z.device, dtype=torch.int8)


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
