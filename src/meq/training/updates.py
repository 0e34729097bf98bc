"""What an update is made of: its examples, its random numbers and its learning rate.

All of them depend on nothing but the seed, the step and the sample, whatever the number of processes.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from meq.core.backward import Phantom
from meq.core.operator import held_still
from meq.data.contract import Batch, DataSet
from meq.devices import device_of
from meq.models.base import FusionModel
from meq.models.blocks import Injection
from meq.models.iterated import Disturbance, IteratedModel
from meq.models.plan import DepthPlan
from meq.options import nearest
from meq.training.config import DECAYS, TrainConfig
from meq.training.depth import Depth, parse_depth

if TYPE_CHECKING:
    from accelerate import Accelerator


class TrainingError(RuntimeError):
    """The run stopped because it could not go on; the message says where, why and from what it can be resumed."""

    def __init__(self, message: str, batch_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.batch_ids = tuple(batch_ids)


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


@contextmanager
def drawn_depth(model: FusionModel, config: TrainConfig, step: int, ids: Sequence[str] = ()) -> Iterator[None]:
    """Within it, a model that iterates is run as deep as this update draws, and disturbed as the recipe says.

    `ids` are the samples of the batch: some depths are drawn for each of them.
    """
    if not isinstance(model, IteratedModel):
        yield
        return
    depth = parse_depth(config.depth)
    draw = None if depth.per_sample else depth.draw(random.Random(_hash(config.seed, step, "depth")))
    if config.random_start or config.path_noise:
        model.disturbance = Disturbance(start=config.random_start, noise=config.path_noise)
    model.supervised = config.supervise
    try:
        if depth.per_sample:
            model.plan = depth_plan(depth, config.seed, step, ids)
        if draw is None:
            yield
            return
        # every step is taken: a sample that had settled before the tracked steps would learn nothing
        steps = model.steps if draw.steps is None else draw.steps
        backward = Phantom(draw.tracked) if draw.tracked is not None and draw.tracked < steps else None
        with model.run_as(steps=steps, tol=0.0, backward=backward):
            yield
    finally:
        model.disturbance, model.supervised, model.plan = None, 1, None


def depth_plan(depth: Depth, seed: int, step: int, ids: Sequence[str]) -> DepthPlan:
    """A depth for each sample, by its id: the same whoever shares the batch, and on however many processes."""
    drawn = [depth.draw(random.Random(_hash(seed, step, "depth", name))) for name in ids]
    known = [(each.steps, each.tracked) for each in drawn if each is not None]
    steps, tracked = zip(*known, strict=True)
    return DepthPlan(steps=torch.tensor(steps), tracked=torch.tensor(tracked))


SEEN_FIRST = 256
"""How many examples the size of what the first layers give is measured on."""


def scale_inputs(model: FusionModel, data: DataSet, config: TrainConfig) -> None:
    """Scale the first layers so that what they give has the root mean square that the recipe asks for.

    Weights are drawn for features that are dense. Of sparse or wide ones little comes through: states of length one
    drown it, and training takes long to find it. Measured on the first examples that training sees, padding left out.
    """
    some = epoch_order(config.seed, 0, len(data.splits["train"]))[:SEEN_FIRST]
    batch = data.collate([data.splits["train"][row] for row in some]).to(device_of(model))
    waiting: dict[nn.Module, RemovableHandle] = {}

    def scale(layer: nn.Module, given: tuple[Tensor], made: Tensor) -> Tensor:
        waiting.pop(layer).remove()
        assert isinstance(layer, nn.Linear)
        real = given[0].any(-1)  # padding is zero, and so is the mean of a sample that lacks the modality
        size = (made - layer.bias)[real].square().mean().sqrt()
        if size > 0:  # also false for NaN, where nothing was real
            layer.weight.mul_(config.scale_inputs / size)
        return layer(*given)

    layers = [module.project for module in model.modules() if isinstance(module, Injection)]
    if not layers:
        raise ValueError(
            f"scale_inputs scales the first layers that meq makes, and {type(model).__name__} has others in "
            "all places: leave it out"
        )
    waiting |= {layer: layer.register_forward_hook(scale) for layer in layers}
    try:
        with torch.no_grad(), held_still(model):
            model(batch.features, batch.masks)
    finally:
        for handle in waiting.values():  # of layers that were not called
            handle.remove()


def average_weights(model: nn.Module, optimiser: torch.optim.Optimizer, decay: float, step: int) -> None:
    """avg <- d avg + (1 - d) w, with d rising to `decay` over the first steps, when the weights are still far off.

    The averages lie in the optimiser's state, so that checkpoints hold them.
    """
    d = min(decay, (1 + step) / (10 + step))
    for weights in model.parameters():
        state = optimiser.state.get(weights)
        if state:  # empty for weights that never had a gradient
            average = state.setdefault("average", weights.detach().clone())
            average.lerp_(weights.detach(), 1 - d)


@contextmanager
def averaged(model: nn.Module, optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Within it, the model has the averages of its weights, where there are any."""
    kept = []
    with torch.no_grad():
        for weights in model.parameters():
            average = optimiser.state.get(weights, {}).get("average")
            if average is not None:
                kept.append((weights, weights.detach().clone()))
                weights.copy_(average)
    try:
        yield
    finally:
        with torch.no_grad():
            for weights, before in kept:
                weights.copy_(before)


def examples_per_update(config: TrainConfig, processes: int) -> int:
    return config.batch_size * processes * config.accumulate


def update_batches(
    data: DataSet, config: TrainConfig, accelerator: Accelerator, *, epoch: int, start: int
) -> Iterator[list[Batch]]:
    """The micro-batches of this process, for every update of an epoch from `start` on."""
    size, world, rank = config.batch_size, accelerator.num_processes, accelerator.process_index
    train, per_update = data.splits["train"], examples_per_update(config, world)
    order = epoch_order(config.seed, epoch, len(train))
    for position in range(start, len(train) // per_update):
        update = order[position * per_update : (position + 1) * per_update]
        micro = [update[(m * world + rank) * size :][:size] for m in range(config.accumulate)]
        yield [data.collate([train[row] for row in rows]).to(accelerator.device) for rows in micro]


def make_optimiser(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Matrices decay; biases, norms, stand-ins and scalars (mixing, learned damping) do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A linear warmup over the first share of all steps, then a decay to zero at the last: cosine, linear or none."""

    total_steps: int
    peak: float
    warmup: float = 0.05
    decay: str = "cosine"

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"there is no decay {self.decay!r}: {nearest(self.decay, DECAYS)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1), got {self.warmup}")

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 0; a function of the step alone, so resuming needs no state."""
        warm = round(self.warmup * self.total_steps)
        if step < warm:
            return self.peak * (step + 1) / warm
        share = (step - warm) / max(1, self.total_steps - warm)
        factor = {"cosine": 0.5 * (1 + math.cos(math.pi * share)), "linear": 1 - share, "constant": 1.0}[self.decay]
        return self.peak * factor
