"""What a forward pass costs: time, FLOPs and memory, arm by arm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meq.core.options import checked_options, nearest
from meq.experiments.cost.live_memory import PeakBytes
from meq.models.base import FusionModel, Output
from meq.models.iterated import Iterated

Encode = Callable[[Any], Tensor]
"""A batch of what one modality's encoder reads, to its features (B N W)."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One arm's forward pass; times and FLOPs are per sample."""

    arm: str
    parameters: int
    """Trainable ones; frozen encoders are counted in `weight_bytes` only."""
    steps: int | None
    """How many the iteration may take; None for a model that does not iterate."""
    ms: float | None
    """Median of the timed passes; None on the meta device, where nothing is computed."""
    ms_low: float | None
    """The first quartile of the passes, and in `ms_high` the third."""
    ms_high: float | None
    flops: float
    """Two per multiply-add, under math attention; with the encoders where they were given."""
    weight_bytes: int
    """Weights and buffers, of the encoders too."""
    working_bytes: int
    """The most that a pass holds besides the weights and its input."""
    batch_size: int
    tokens: Mapping[str, int]
    encoded: bool
    """The encoders were part of the pass."""
    passes: int
    device: str
    threads: int

    @property
    def peak_bytes(self) -> int:
        """What the arm needs of a device that was empty before."""
        return self.weight_bytes + self.working_bytes


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Arms that were measured in turns, pass by pass: only ratios inside one such measurement can be trusted."""

    arms: tuple[Cost, ...]
    reference: str | None
    """The fastest arm that does not iterate, by FLOPs on the meta device; None if all of them iterate."""
    ms_ratio: Mapping[str, float]
    """By arm: the median over rounds of its time by the reference's in that round."""
    flops_ratio: Mapping[str, float]


@checked_options
def measure_cost(
    model: FusionModel,
    features: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    passes: int = 30,
    warmups: int = 5,
    encoders: Mapping[str, Encode] | None = None,
    raw: Mapping[str, Any] | None = None,
) -> Cost:
    """The cost of one model's forward pass, see `measure_costs`."""
    measured = measure_costs(
        {type(model).__name__: model}, features, masks, passes=passes, warmups=warmups, encoders=encoders, raw=raw
    )
    return measured.arms[0]


@checked_options
def measure_costs(
    models: Mapping[str, FusionModel],
    features: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    passes: int = 30,
    warmups: int = 5,
    encoders: Mapping[str, Encode] | None = None,
    raw: Mapping[str, Any] | None = None,
) -> Costs:
    """Time, FLOPs and memory of forward passes of several arms, on the device that they are on.

    Modalities in `encoders` are encoded from `raw` in every pass, the others come from `features`. The arms take turns,
    since machines are noisy. Memory is the allocator's on CUDA, elsewhere the peak of live tensor bytes.
    """
    if passes < 1 or warmups < 0 or not models:
        raise ValueError(f"needs a model, a pass and no negative warmups, got {len(models)}, {passes} and {warmups}")
    feed = Feed(features=features, masks=masks or {}, encoders=encoders or {}, raw=raw or {})
    with torch.no_grad(), evaluating(models.values()):
        seconds = _take_turns(models, feed, passes=passes, warmups=warmups)
        arms = tuple(_cost(arm, model, feed, seconds.get(arm, [])) for arm, model in models.items())
    single = [cost for cost in arms if cost.steps is None]
    reference = min(single, key=lambda cost: cost.flops if cost.ms is None else cost.ms).arm if single else None
    return Costs(
        arms=arms,
        reference=reference,
        ms_ratio=_time_ratios(seconds, reference),
        flops_ratio={cost.arm: cost.flops / base.flops for cost in arms for base in single if base.arm == reference},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Feed:
    """What goes into every pass."""

    features: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    encoders: Mapping[str, Encode]
    raw: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in self.encoders:
            if name not in self.raw:
                raise ValueError(f"{name!r} has an encoder and nothing to encode in `raw`: {nearest(name, self.raw)}")
        if not self.features and not self.encoders:
            raise ValueError("there is nothing to measure on: give features, or encoders and what they read")

    def __call__(self, model: FusionModel) -> Output:
        return model(self.encoded(), self.masks)

    def encoded(self) -> dict[str, Tensor]:
        return {**self.features, **{name: encode(self.raw[name]) for name, encode in self.encoders.items()}}

    def tensors(self) -> list[Tensor]:
        given = [*self.features.values(), *self.masks.values(), *self.raw.values()]
        return [each for each in given if isinstance(each, Tensor)]

    def weights(self) -> list[Tensor]:
        """Those of the encoders, as far as they can be seen."""
        parts = [getattr(encode, "model", encode) for encode in self.encoders.values()]
        return [tensor for part in parts if isinstance(part, nn.Module) for tensor in _weights(part)]


def chosen_device(asked: str | None) -> str:
    """The device that was asked for, if it is there; else an accelerator, else the CPU."""
    if asked is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=asked)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(f"there is no device {asked!r} here: {reason}") from error
    return asked


def count_pass(model: FusionModel, feed: Feed) -> int:
    """FLOPs of one pass of the whole batch, two per multiply-add."""
    # fused attention hides its products from the counter
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        feed(model)
    return counter.get_total_flops()


def _cost(arm: str, model: FusionModel, feed: Feed, seconds: Sequence[float]) -> Cost:
    made = feed.encoded()
    size = len(next(iter(made.values())))
    times = [1000 * each / size for each in seconds]
    low, middle, high = _quartiles(times)
    weights = [*_weights(model), *feed.weights()]
    device = _device(model)
    return Cost(
        arm=arm,
        parameters=model.count_parameters(),
        steps=model.steps if isinstance(model, Iterated) else None,
        ms=middle,
        ms_low=low,
        ms_high=high,
        flops=count_pass(model, feed) / size,
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in weights),
        working_bytes=_working_bytes(model, feed, weights),
        batch_size=size,
        tokens={name: x.shape[-2] if x.ndim > 2 else 1 for name, x in made.items()},
        encoded=bool(feed.encoders),
        passes=len(times),
        device=device.type,
        threads=torch.get_num_threads(),
    )


def _take_turns(models: Mapping[str, FusionModel], feed: Feed, *, passes: int, warmups: int) -> dict[str, list[float]]:
    """Seconds of each pass, by arm; none on the meta device."""
    devices = {_device(model) for model in models.values()}
    if len(devices) > 1:
        raise ValueError(f"arms that are compared must be on one device, got {sorted(map(str, devices))}")
    (device,) = devices
    if device.type == "meta":
        return {}
    seconds: dict[str, list[float]] = {arm: [] for arm in models}
    for turn in range(warmups + passes):
        for arm, model in models.items():
            taken = _seconds(lambda model=model: feed(model), device)  # type: ignore[misc]
            if turn >= warmups:
                seconds[arm].append(taken)
    return seconds


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _quartiles(times: Sequence[float]) -> Sequence[float | None]:
    if not times:
        return None, None, None
    return statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3


def _time_ratios(seconds: Mapping[str, Sequence[float]], reference: str | None) -> dict[str, float]:
    if reference is None:
        return {}
    return {
        arm: statistics.median(mine / base for mine, base in zip(taken, seconds[reference], strict=True))
        for arm, taken in seconds.items()
    }


def _working_bytes(model: FusionModel, feed: Feed, weights: Sequence[Tensor]) -> int:
    device = _device(model)
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        idle = torch.cuda.memory_allocated(device)
        feed(model)
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - idle
    with PeakBytes([*weights, *feed.tensors()]) as memory:
        feed(model)
    return memory.peak


def _weights(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def evaluating(models: Collection[nn.Module]) -> Iterator[None]:
    """Dropout off; every part's own mode comes back afterwards."""
    modes = {part: part.training for model in models for part in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
