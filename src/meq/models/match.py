"""Fair comparisons: choose the size of an arm so that its parameters, or its FLOPs, meet those of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meq.models.base import FusionModel
from meq.options import checked_options

Build = Callable[[int], FusionModel]


@dataclass(frozen=True, kw_only=True)
class Match:
    """What was chosen, and what it reached."""

    size: int
    reached: int
    target: int
    unit: str

    @property
    def error(self) -> float:
        """(reached - target) / target"""
        return (self.reached - self.target) / self.target

    def __str__(self) -> str:
        return f"size {self.size}: {self.reached:,} {self.unit} for a target of {self.target:,} ({self.error:+.3%})"


@checked_options
def match_parameters(
    build: Build, target: int, *, part: str = "model", tolerance: float = 0.002, low: int = 1, high: int = 65536
) -> Match:
    """The size whose model, or block, comes nearest to `target` parameters.

    `build(size)` makes the model; its count must grow with the size, e.g. `lambda h: Concat(widths, 3, hidden=h)`. It
    is only ever called on the meta device, so that no weights are allocated.
    """

    def count(size: int) -> int:
        with torch.device("meta"):
            return build(size).count_parameters(part)

    return _closest(count, target, tolerance, low, high, unit=f"parameters of the {part}")


@checked_options
def match_flops(
    build: Build, target: int, features: Mapping[str, Tensor], *, tolerance: float = 0.1, low: int = 1, high: int = 256
) -> Match:
    """The size, usually a depth, whose forward pass on features of these shapes comes nearest to `target` FLOPs."""
    return _closest(lambda size: count_flops(build, size, features), target, tolerance, low, high, unit="FLOPs")


def count_flops(build: Build, size: int, features: Mapping[str, Tensor]) -> int:
    """FLOPs of one forward pass, all K steps of a model that iterates included, counted on the meta device."""
    with torch.device("meta"):
        model = build(size).eval()
    inputs = {name: torch.empty_like(x, device="meta") for name, x in features.items()}
    # fused attention hides its products from the counter
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(inputs)
    return counter.get_total_flops()


def _closest(uncached: Callable[[int], int], target: int, tolerance: float, low: int, high: int, *, unit: str) -> Match:
    """Bisect a growing measure, between two sizes found by doubling: a large model is slow to measure."""
    measure = cache(uncached)
    below = above = low
    while above < high and measure(above) < target:
        below, above = above, min(2 * above, high)
    if not measure(low) * (1 - tolerance) <= target <= measure(above) * (1 + tolerance):
        raise ValueError(
            f"no size reaches {target:,} {unit}: size {low} has {measure(low):,} and size {above} has "
            f"{measure(above):,}. Change what else the arm is made of, or the range"
        )
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if measure(middle) <= target else (below, middle)
    size = min((below, above), key=lambda each: abs(measure(each) - target))
    found = Match(size=size, reached=measure(size), target=target, unit=unit)
    if abs(found.error) > tolerance:
        raise ValueError(f"no size comes within {tolerance:.1%} of {target:,} {unit}; the nearest is {found}")
    return found
