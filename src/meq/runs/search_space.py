"""What `meq tune` draws from: ranges by name, drawn by seed and trial alone; light enough for the help.

    parse_space(["learning_rate=1e-4:1e-2", "dim=32,64"])

The first trial is what `meq train` does by itself, so that the best one found is never worse on dev.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meq.options import nearest, real_number, whole_number
from meq.records import JsonError, parse_json
from meq.training.arms import ARMS, PAPER, SHAPE
from meq.training.config import SMALL, TrainConfig
from meq.training.depth import FAST

TRIALS = 20
HOW = "write NAME=LOW:HIGH for numbers between these, drawn by their logarithm, or NAME=A,B,C for one of these"
RECIPE = ("learning_rate", "weight_decay", "depth")
"""What a trial changes in the training; the rest is the model's shape, or a penalty's weight."""
PENALTIES: Mapping[str, str] = {"lambda_j": "jacobian-range", "lambda_f": "residual-correction"}
OF_ITERATION = ("steps", "depth", *PENALTIES)
"""What a model that does not iterate has none of."""


@dataclass(frozen=True)
class LogUniform:
    """A number between two positive ones, its logarithm uniform, to three digits."""

    low: float
    high: float

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            real_number("the end of a range", end, wanted="must be positive and finite", low=math.ulp(0.0))
        if not self.low < self.high:
            raise ValueError(f"a range goes from its lower end to its upper one, got {self}")

    def draw(self, share: float) -> float:
        """The number at that share of the way, from 0 to 1."""
        return float(f"{math.exp(math.log(self.low) + share * math.log(self.high / self.low)):.3g}")

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}"


@dataclass(frozen=True)
class OneOf:
    """One of several values, all as likely."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"there is nothing to choose from: {HOW}")

    def draw(self, share: float) -> Any:
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Range = LogUniform | OneOf
SPACE: Mapping[str, Range] = {
    "learning_rate": LogUniform(1e-4, 1e-2),
    "weight_decay": OneOf((0.0, 0.01, 0.1)),
    "dim": OneOf((32, 64, 128)),
    "steps": OneOf((4, 8, 12)),
    "dropout": OneOf((0.0, 0.1, 0.3)),
    "lambda_j": OneOf((0.0, 0.1, 0.5)),
    "lambda_f": OneOf((0.0, 0.1, 0.3)),
    "depth": OneOf(("fixed", FAST, "uniform(2, 8)")),
}
"""What is searched unless ranges are given; a given one takes the place of its namesake."""


def space_for(arm: str, given: Mapping[str, Any] | None = None) -> dict[str, Range]:
    """The ranges that an arm has use for, the given ones in place of the usual ones.

    A range is a `LogUniform`, a pair of numbers (its ends), a list of values, or one value, which is then fixed.
    """
    if arm not in ARMS:
        raise ValueError(f"there is no arm {arm!r} to tune: {nearest(arm, ARMS)}")
    options = ARMS[arm].options
    known = [name for name in SPACE if name in RECIPE or name in options or name in PENALTIES]
    if "solver" not in options:
        known = [name for name in known if name not in OF_ITERATION]
    for name in given or {}:
        if name not in known:
            raise ValueError(f"`space` has no {name!r} for the arm {arm!r}: {nearest(name, known)}")
    ranges = {name: _range(value) for name, value in (given or {}).items()}
    return {name: ranges.get(name, SPACE[name]) for name in known}


def _range(value: Any) -> Range:
    if isinstance(value, LogUniform | OneOf):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return LogUniform(*value)
    return OneOf(tuple(value)) if isinstance(value, list | tuple) else OneOf((value,))


def parse_space(written: Sequence[str]) -> dict[str, Range]:
    """["learning_rate=1e-4:1e-2", "dim=32,64"] as ranges; a depth with commas of its own stands alone."""
    found: dict[str, Range] = {}
    for each in written:
        name, equals, text = each.partition("=")
        if not equals or not text:
            raise ValueError(f"{HOW}, got {each!r}")
        name = name.strip().replace("-", "_")
        low, colon, high = text.partition(":")
        if colon:
            found[name] = LogUniform(_number(low, each), _number(high, each))
        else:
            found[name] = OneOf(tuple(_value(part) for part in ([text] if "(" in text else text.split(","))))
    return found


def _number(text: str, written: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{HOW}, got {written!r}") from error


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except JsonError:
        return text.strip()


def drawn_settings(space: Mapping[str, Range], trial: int, *, seed: int, first: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trial, counted from 1; they depend on the space, the seed and the number alone.

    The first trial has those of `first`, where the space does not forbid them.
    """
    whole_number("trial", trial)
    # of `random`, only random() promises the same numbers in every version of Python
    shares = {name: random.Random(f"{seed}/{trial}/{name}").random() for name in space}
    found = {name: each.draw(shares[name]) for name, each in space.items()}
    if trial > 1:
        return found
    return {name: first[name] if _allows(each, first.get(name)) else found[name] for name, each in space.items()}


def _allows(each: Range, value: Any) -> bool:
    if isinstance(each, OneOf):
        return value in each.values
    return value is not None and each.low <= value <= each.high


def usual_settings(config: TrainConfig = SMALL, shape: Mapping[str, Any] = SHAPE) -> dict[str, Any]:
    """What `meq train` does unless it is told otherwise."""
    weights = {name: PAPER[penalty]["weight"] for name, penalty in PENALTIES.items()}
    return {**{name: getattr(config, name) for name in RECIPE}, **SHAPE, **shape, **weights}
