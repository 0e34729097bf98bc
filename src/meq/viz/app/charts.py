"""Small curves along k as SVG that follows the page's colours; a marker stands at the step that is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meq.viz.letters import escaped, shortened

WIDTH, HEIGHT = 340, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 22, 24
"""Margins of the plotted part, in the same units."""
MOST_LETTERS = 200
"""Of the name of a curve."""
FLOOR = 1e-8
"""Residuals below this are drawn here: float32 knows nothing smaller."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A value per step, in a colour."""

    name: str
    colour: str
    values: Sequence[float]


def share_chart(title: str, curves: Sequence[Curve], steps: Sequence[int], *, read: int, k: int) -> str:
    """Curves between 0 and 1."""
    ticks = {value: f"{value:g}" for value in (0.0, 0.5, 1.0)}
    return _chart(title, curves, steps, ticks=ticks, read=read, k=k)


def log_chart(title: str, curves: Sequence[Curve], steps: Sequence[int], *, read: int, k: int) -> str:
    """Positive values on a logarithmic axis of whole decades."""
    logs = [Curve(name=each.name, colour=each.colour, values=[_log(v) for v in each.values]) for each in curves]
    known = [value for each in logs for value in each.values if math.isfinite(value)] or [0.0]
    low, high = math.floor(min(known) + 1e-9), math.ceil(max(known) - 1e-9)
    high = max(high, low + 1)
    stride = max(1, math.ceil((high - low) / 3))
    return _chart(
        title, logs, steps, ticks={float(v): f"1e{v}" for v in range(low, high + 1, stride)}, read=read, k=k, top=high
    )


def value_chart(title: str, curves: Sequence[Curve], steps: Sequence[int], *, read: int, k: int) -> str:
    """Values of any size, for a model that answers with a number."""
    known = [value for each in curves for value in each.values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    middle = (low + high) / 2
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    return _chart(title, curves, steps, ticks={v: f"{v:.3g}" for v in (low, middle, high)}, read=read, k=k)


def _chart(
    title: str,
    curves: Sequence[Curve],
    steps: Sequence[int],
    *,
    ticks: Mapping[float, str],
    read: int,
    k: int,
    top: float | None = None,
) -> str:
    frame = _Frame(first=steps[0], last=max(steps[-1], steps[0] + 1), low=min(ticks), high=top or max(ticks))
    parts = [
        f'<text class="title" x="{LEFT}" y="13">{escaped(title)}</text>',
        *(_level(frame, value, word) for value, word in ticks.items()),
        *(_step_name(frame, step) for step in _named_steps(steps)),
        f'<line class="read" x1="{frame.x(read):.1f}" x2="{frame.x(read):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
        *(_polyline(frame, each, steps) for each in curves),
        # The page moves it: --k is set where the step is chosen.
        f'<line class="now" x1="{frame.x(0):.1f}" x2="{frame.x(0):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
        f'style="transform: translateX(calc(var(--k, {k}) * {frame.stride:.3f}px))"/>',
    ]
    names = ", ".join(shortened(each.name, MOST_LETTERS) for each in curves)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escaped(f"{title} along the steps: {names}")}">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, kw_only=True)
class _Frame:
    first: int
    last: int
    low: float
    high: float

    @property
    def stride(self) -> float:
        return (WIDTH - LEFT - RIGHT) / (self.last - self.first)

    def x(self, step: float) -> float:
        return LEFT + (step - self.first) * self.stride

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)


def _level(frame: _Frame, value: float, word: str) -> str:
    y = frame.y(value)
    line = f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escaped(word)}</text>'


def _step_name(frame: _Frame, step: int) -> str:
    return f'<text x="{frame.x(step):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{step}</text>'


def _named_steps(steps: Sequence[int]) -> list[int]:
    stride = max(1, math.ceil(len(steps) / 8))
    return list(steps[::stride])


def _polyline(frame: _Frame, curve: Curve, steps: Sequence[int]) -> str:
    """Broken where a value is not finite."""
    runs: list[list[str]] = [[]]
    for step, value in zip(steps, curve.values, strict=True):
        if math.isfinite(value):
            runs[-1].append(f"{frame.x(step):.1f},{frame.y(value):.1f}")
        elif runs[-1]:
            runs.append([])
    lines = "".join(f'<polyline points="{" ".join(run)}" style="stroke: {curve.colour}"/>' for run in runs if run)
    return f"<g><title>{escaped(curve.name, MOST_LETTERS)}</title>{lines}</g>"


def _log(value: float) -> float:
    return math.log10(max(value, FLOOR)) if math.isfinite(value) else math.nan
