"""What a forward pass costs, arm by arm: time, FLOPs and memory; and what one more step of the iteration adds."""

from __future__ import annotations

import copy
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from meq.core.operator import held_still
from meq.core.solution import Stop
from meq.models.base import FusionModel, Output
from meq.models.iterated import IteratedModel
from meq.options import checked_options, nearest

STEPS = (1, 2, 5, 10, 20)
CAP = 100
"""Where a run to tolerance is given up."""
WARMUPS = 5
"""And not more than there are timed passes."""
TOLERANCE = 1e-3
"""Of a run to tolerance, where the model has none of its own."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Feed:
    """What goes into every pass: features, and what is encoded from `raw` in each of them."""

    features: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    encoders: Mapping[str, Encode] = field(default_factory=dict)
    """By modality."""
    raw: Mapping[str, Any] = field(default_factory=dict)

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


def measure_cost(model: FusionModel, feed: Feed, *, passes: int = 30, warmups: int = 5) -> Cost:
    """The cost of one model's forward pass, see `measure_costs`."""
    return measure_costs({type(model).__name__: model}, feed, passes=passes, warmups=warmups).arms[0]


@checked_options
def measure_costs(models: Mapping[str, FusionModel], feed: Feed, *, passes: int = 30, warmups: int = 5) -> Costs:
    """Time, FLOPs and memory of forward passes of several arms, on the device that they are on.

    The arms take turns, since machines are noisy. Memory is the allocator's on CUDA, elsewhere the peak of live tensor
    bytes.
    """
    if passes < 1 or warmups < 0 or not models:
        raise ValueError(f"needs a model, a pass and no negative warmups, got {len(models)}, {passes} and {warmups}")
    with torch.no_grad(), held_still(*models.values()):
        seconds = _take_turns(models, feed, passes=passes, warmups=warmups)
        arms = tuple(_cost(arm, model, feed, seconds.get(arm, [])) for arm, model in models.items())
    single = [cost for cost in arms if cost.steps is None]
    reference = min(single, key=lambda cost: cost.flops if cost.ms is None else cost.ms).arm if single else None
    return Costs(
        arms=arms,
        reference=reference,
        ms_ratio={
            arm: statistics.median(mine / other for mine, other in zip(taken, seconds[reference], strict=True))
            for arm, taken in seconds.items()
        }
        if reference is not None
        else {},
        flops_ratio={cost.arm: cost.flops / base.flops for cost in arms for base in single if base.arm == reference},
    )


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
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75)).tolist() if times else (None, None, None)
    weights = [*_weights(model), *feed.weights()]
    device = _device(model)
    return Cost(
        arm=arm,
        parameters=model.count_parameters(),
        steps=model.steps if isinstance(model, IteratedModel) else None,
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
            _wait(device)
            start = time.perf_counter()
            feed(model)
            _wait(device)
            if turn >= warmups:
                seconds[arm].append(time.perf_counter() - start)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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


# -- over the number of steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
    """value(K) = base + per_step K, by least squares."""

    per_step: float
    base: float
    """At K = 0."""
    deviation: float
    """How far an increment between two neighbouring K lies from `per_step`, at most."""


@dataclass(frozen=True, kw_only=True)
class ToleranceRun:
    """Steps until the samples settled, when the tolerance decides and not the depth; up to a cap."""

    tolerance: float
    cap: int
    samples: int
    mean_steps: float
    most_steps: int
    capped: float
    """The share of samples that had not settled at the cap."""
    diverged: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The cost over the number of steps."""

    points: tuple[Cost, ...]
    flops: Line
    ms: Line | None
    to_tolerance: ToleranceRun | None
    """None on the meta device."""

    @property
    def memory_growth(self) -> float:
        """(most - least) / least of the working memory over K; K = 1 is left out.

        A single step starts from the injection itself, and so holds one state less than any later one.
        """
        held = [point.working_bytes for point in self.points if point.steps != 1]
        return (max(held) - min(held)) / min(held)


@checked_options
def sweep_steps(model: IteratedModel, feed: Feed, *, steps: Sequence[int] = STEPS, passes: int = 30) -> Sweep:
    """The cost at each number of steps, all of them taken, and how many it takes to settle."""
    if len(set(steps)) < 2 or sorted(set(steps)) != list(steps):
        raise ValueError(f"a sweep needs two or more growing numbers of steps, got {list(steps)}")
    depths = {f"K={count}": at_depth(model, count) for count in steps}
    points = measure_costs(depths, feed, passes=passes, warmups=min(WARMUPS, passes)).arms
    times = [point.ms for point in points if point.ms is not None]
    return Sweep(
        points=points,
        flops=fit_line(steps, [point.flops for point in points]),
        ms=fit_line(steps, times) if times else None,
        to_tolerance=_to_tolerance(model, feed) if times else None,
    )


def at_depth(model: IteratedModel, steps: int, *, tol: float = 0.0) -> IteratedModel:
    """The same model, weights shared, read at another depth; without a tolerance it takes every step."""
    twin = copy.copy(model)
    twin.steps, twin.tol = steps, tol
    return twin


def fit_line(steps: Sequence[int], values: Sequence[float]) -> Line:
    """Least squares in fractions, so that what is constant comes out as constant to the last digit."""
    x, y = [Fraction(step) for step in steps], [Fraction(value) for value in values]
    mean_x, mean_y = sum(x, Fraction()) / len(x), sum(y, Fraction()) / len(y)
    spread = sum(((a - mean_x) ** 2 for a in x), Fraction())
    slope = sum(((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)), Fraction()) / spread
    increments = [(b2 - b1) / (a2 - a1) for (a1, b1), (a2, b2) in pairwise(zip(x, y, strict=True))]
    return Line(
        per_step=float(slope),
        base=float(mean_y - slope * mean_x),
        deviation=float(max(abs(increment - slope) for increment in increments)),
    )


def _to_tolerance(model: IteratedModel, feed: Feed) -> ToleranceRun:
    tolerance = model.tol or TOLERANCE
    with torch.no_grad(), held_still(model):
        solution = feed(at_depth(model, CAP, tol=tolerance)).solution
    assert solution is not None
    stops = solution.stop
    return ToleranceRun(
        tolerance=tolerance,
        cap=CAP,
        samples=len(stops),
        mean_steps=float(solution.steps.double().mean()),
        most_steps=int(solution.steps.max()),
        capped=sum(stop is Stop.BUDGET for stop in stops) / len(stops),
        diverged=sum(stop is Stop.DIVERGED for stop in stops) / len(stops),
    )


# -- memory on devices that do not count it ----------------------------------------------------------------------------


class PeakBytes(TorchDispatchMode):
    """`with PeakBytes(idle) as memory: ...`, then `memory.peak`: the most bytes that were live at once.

    It sees the results of operations, on any device, the meta device included; what an operation needs inside itself it
    does not see. Tensors in `idle` were there before: they, and views of them, count for nothing.
    """

    def __init__(self, idle: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        # kept alive, so that no new storage can come to lie at the address of one of them
        self._idle = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in idle)}
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in self._idle:
            return

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)
