"""Every random number of a run comes from here, and depends on nothing but the seed, the step and the sample."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch: for the model's initial weights, and for modules of a user's own."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is what users' code draws from
    torch.manual_seed(seed)


def sample_seeds(seed: int, step: int, ids: Sequence[str]) -> Int[Tensor, " B"]:
    """One seed per sample for dropout and probes: the same whoever shares the batch, and on however many processes."""
    return torch.tensor([_hash(seed, step, name) for name in ids])


def epoch_order(seed: int, epoch: int, size: int) -> list[int]:
    """The shuffled order of one epoch."""
    generator = torch.Generator().manual_seed(_hash(seed, epoch, "order"))
    return torch.randperm(size, generator=generator).tolist()


def _hash(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2  # room for small offsets below 2^63


def rng_state() -> dict[str, Any]:
    """The global generators, as plain values that JSON can hold."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
        "cuda": [bytes(state.tolist()).hex() for state in torch.cuda.get_rng_state_all()],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_bytes(each) for each in state["cuda"]])


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
