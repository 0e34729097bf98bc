"""What a forward pass costs, arm by arm: time, FLOPs and memory; and what one more step of the iteration adds."""

from __future__ import annotations

import copy
import statistics
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from meq.devices import device_of
from meq.models.anytime import Anytime
from meq.models.base import FusionModel, Output
from meq.models.iterated import IteratedModel
from meq.models.quantise import LEAST_WEIGHTS, quantise
from meq.options import checked_options, nearest, whole_number
from meq.records import SINCE

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
    cpu_ms: float | None = field(default=None, metadata=SINCE)
    """Median of the passes in CPU time of the process, all its threads; None where it was not measured."""
    rounds: int = field(default=1, metadata=SINCE)
    """How often the arms were gone through as a whole."""
    way: str = field(default="", metadata=SINCE)
    """In words, how this row is computed otherwise than the model itself; empty for the model itself."""
    mean_steps: float | None = field(default=None, metadata=SINCE)
    """Where samples stop by themselves: how many steps they took."""

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


def measure_cost(model: FusionModel, feed: Feed, *, passes: int = 30, warmups: int = 5, rounds: int = 1) -> Cost:
    """The cost of one model's forward pass, see `measure_costs`."""
    return measure_costs({type(model).__name__: model}, feed, passes=passes, warmups=warmups, rounds=rounds).arms[0]


@checked_options
def measure_costs(
    models: Mapping[str, FusionModel],
    feed: Feed,
    *,
    passes: int = 30,
    warmups: int = 5,
    rounds: int = 1,
    ways: Mapping[str, str] | None = None,
) -> Costs:
    """Time, FLOPs and memory of forward passes of several arms, on the device that they are on.

    The arms take turns, since machines are noisy: `passes` times in every one of the `rounds`, each of which begins
    with another arm. Memory is the allocator's on CUDA, elsewhere the peak of live tensor bytes. `ways` says of some
    arms in what they are not the model itself.
    """
    if passes < 1 or warmups < 0 or not models:
        raise ValueError(f"needs a model, a pass and no negative warmups, got {len(models)}, {passes} and {warmups}")
    whole_number("rounds", rounds)
    with torch.no_grad(), held_still(*models.values()):
        clocks = _take_turns(models, feed, passes=passes, warmups=warmups, rounds=rounds)
        arms = tuple(_cost(arm, model, feed, clocks.get(arm, [])) for arm, model in models.items())
    arms = tuple(replace(cost, rounds=rounds, way=(ways or {}).get(cost.arm, "")) for cost in arms)
    seconds = {arm: [wall for wall, _ in taken] for arm, taken in clocks.items()}
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


def count_pass(model: FusionModel, feed: Feed) -> int:
    """FLOPs of one pass of the whole batch, two per multiply-add."""
    # fused attention hides its products from the counter
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        feed(model)
    return counter.get_total_flops()


def _cost(arm: str, model: FusionModel, feed: Feed, clocks: Sequence[tuple[float, float]]) -> Cost:
    made = feed.encoded()
    size = len(next(iter(made.values())))
    times = [1000 * wall / size for wall, _ in clocks]
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75)).tolist() if times else (None, None, None)
    weights = [*_weights(model), *feed.weights()]
    device = device_of(model)
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
        cpu_ms=statistics.median(1000 * cpu / size for _, cpu in clocks) if clocks else None,
        mean_steps=_mean_steps(model, feed),
    )


def _mean_steps(model: FusionModel, feed: Feed) -> float | None:
    """Of samples that stop by themselves."""
    if not isinstance(model, IteratedModel) or model.anytime is None:
        return None
    solution = feed(model).solution
    return None if solution is None else float(solution.steps.double().mean())


def _take_turns(
    models: Mapping[str, FusionModel], feed: Feed, *, passes: int, warmups: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each pass, on the wall and of the processor, by arm; none on the meta device."""
    devices = {device_of(model) for model in models.values()}
    if len(devices) > 1:
        raise ValueError(f"arms that are compared must be on one device, got {sorted(map(str, devices))}")
    (device,) = devices
    if device.type == "meta":
        return {}
    seconds: dict[str, list[tuple[float, float]]] = {arm: [] for arm in models}
    for turn in range(warmups + rounds * passes):
        first = max(0, turn - warmups) // passes % len(models)  # so that no arm always follows the same one
        for arm in [*models][first:] + [*models][:first]:
            _wait(device)
            start, start_cpu = time.perf_counter(), time.process_time()
            feed(models[arm])
            _wait(device)
            if turn >= warmups:
                seconds[arm].append((time.perf_counter() - start, time.process_time() - start_cpu))
    return seconds


def _wait(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def _working_bytes(model: FusionModel, feed: Feed, weights: Sequence[Tensor]) -> int:
    device = device_of(model)
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
    ways: tuple[Cost, ...] = field(default=(), metadata=SINCE)
    """The model computed in other ways, measured in turns with the points."""

    @property
    def memory_growth(self) -> float:
        """(most - least) / least of the working memory over K; K = 1 is left out.

        A single step starts from the injection itself, and so holds one state less than any later one.
        """
        held = [point.working_bytes for point in self.points if point.steps != 1]
        return (max(held) - min(held)) / min(held)


@checked_options
def sweep_steps(
    model: IteratedModel,
    feed: Feed,
    *,
    steps: Sequence[int] = STEPS,
    passes: int = 30,
    rounds: int = 1,
    ways: Mapping[str, tuple[FusionModel, str]] | None = None,
) -> Sweep:
    """The cost at each number of steps, all of them taken, and how many it takes to settle.

    `ways` are other ways of the same model that are measured with them, by name: the model, and in words what it is.
    """
    if len(set(steps)) < 2 or sorted(set(steps)) != list(steps):
        raise ValueError(f"a sweep needs two or more growing numbers of steps, got {list(steps)}")
    depths: dict[str, FusionModel] = {f"K={count}": at_depth(model, count) for count in steps}
    others = {name: made for name, (made, _) in (ways or {}).items()}
    words = {name: said for name, (_, said) in (ways or {}).items()}
    found = measure_costs(
        {**depths, **others}, feed, passes=passes, warmups=min(WARMUPS, passes), rounds=rounds, ways=words
    ).arms
    points = found[: len(depths)]
    times = [point.ms for point in points if point.ms is not None]
    return Sweep(
        points=points,
        flops=fit_line(steps, [point.flops for point in points]),
        ms=fit_line(steps, times) if times else None,
        to_tolerance=_to_tolerance(model, feed) if times else None,
        ways=found[len(depths) :],
    )


def at_depth(model: IteratedModel, steps: int, *, tol: float = 0.0) -> IteratedModel:
    """The same model, weights shared, read at another depth; without a tolerance it takes every step."""
    twin = copy.copy(model)
    twin.steps, twin.tol, twin.anytime = steps, tol, None
    return twin


# -- other ways of computing a model -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model can be computed otherwise: what it makes of the model on this feed, and in words what that is."""

    make: Callable[[FusionModel, Feed], tuple[FusionModel, str] | None]
    """None for a model that has no such way."""


def read_early(model: FusionModel, feed: Feed) -> tuple[FusionModel, str] | None:
    """Every sample stops by its residual, at the one that half of them have left half way.

    When a trained model stops is a matter of its training and of its calibration. This threshold stands for no model:
    it makes samples stop early, some sooner than others, so that the price and the gain of that can be seen.
    """
    if not isinstance(model, IteratedModel) or model.steps < 2 or model.anytime is not None:
        return None
    with torch.no_grad(), held_still(model):
        solution = feed(at_depth(model, model.steps)).solution
    assert solution is not None
    largest = torch.stack(list(solution.residuals.values())).nan_to_num(-1).amax(0)  # steps by samples
    threshold = float(largest[model.steps // 2].median())
    if not threshold > 0:
        return None
    twin = at_depth(model, model.steps)
    twin.anytime = Anytime("residual", threshold)
    words = (
        f"samples stop at a residual of {threshold:.3g}, which half of them have at half of the {model.steps} steps; "
        "when a trained model stops is a matter of its calibration"
    )
    return twin, words


def in_int8(model: FusionModel, feed: Feed) -> tuple[FusionModel, str] | None:
    """Its large linear layers in int8, see `quantise`; None where there is none."""
    gains = any(type(part) is nn.Linear and part.weight.numel() >= LEAST_WEIGHTS for part in model.modules())
    if device_of(model).type != "cpu" or model.int8 is not None or not gains:
        return None
    words = f"linear layers of at least {LEAST_WEIGHTS:,} weights in int8, inputs rounded token by token"
    return quantise(model), words


EARLY, INT8 = "read early", "int8"
WAYS: Mapping[str, Way] = {EARLY: Way(make=read_early), INT8: Way(make=in_int8)}
"""By name, as it stands behind the arm's; what costs are shown of besides the models themselves."""


def other_ways(
    name: str, model: FusionModel, feed: Feed, *, but: Collection[str] = ()
) -> dict[str, tuple[FusionModel, str]]:
    """A model in all the ways it has, by name, `but` some; none on the meta device, where no sample is looked at."""
    if device_of(model).type == "meta":
        return {}
    found = {f"{name}, {way}": each.make(model, feed) for way, each in WAYS.items() if way not in but}
    return {way: made for way, made in found.items() if made is not None}


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
