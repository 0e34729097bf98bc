"""What the benchmarks of speed share: cases in interleaved rounds, and lines with a target that is met or not.

A script of this kind writes `results/speed_<name>.json` by `run_lines`; the page puts the lines of all of them into
one table, in the order of their numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import record


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was measured, and what it has to reach."""

    number: int
    """Of the aim it belongs to; lines of one aim stand together."""
    what: str
    """In words, with the sizes: what is divided by what, or timed."""
    found: float
    limit: float | None
    """The most that `found` may be; None for a line that is shown beside others and not judged."""
    unit: str = ""
    """Empty for a ratio; otherwise such as "s" or "ms"."""
    lower: float | None = None
    """The first quartile over rounds, and in `upper` the third."""
    upper: float | None = None
    note: str = ""


def cpu_seconds(case: Callable[[], Any]) -> float:
    begin = time.process_time()
    case()
    return time.process_time() - begin


def interleaved(
    cases: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[Callable[[], Any]], float] = cpu_seconds
) -> dict[str, list[float]]:
    """Seconds of every case in every round; each round begins with another one, and one more warms up."""
    names = list(cases)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        clock(cases[name])
    for index in range(rounds):
        turn = index % len(names)  # so that no case always follows the same one
        for name in names[turn:] + names[:turn]:
            seconds[name].append(clock(cases[name]))
    return seconds


def quartiles(values: list[float]) -> dict[str, float]:
    """As `Line` has them."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {"found": middle, "lower": lower, "upper": upper}


def ratios(seconds: Mapping[str, list[float]], case: str, base: str) -> dict[str, float]:
    """The median over rounds of one case's time by another's in the same round, with its quartiles."""
    return quartiles([one / other for one, other in zip(seconds[case], seconds[base], strict=True)])


def run_lines(description: str, name: str, rounds: int, measure: Callable[[int], list[Line]]) -> None:
    """As `record.run`, for lines."""
    record.run(description, f"speed_{name}", rounds, lambda count: {"lines": [asdict(line) for line in measure(count)]})
