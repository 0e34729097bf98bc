"""How deep each update of training goes: the number of steps, and through how many of them gradients flow.

A model that is always read at the same K learns a state that is right at K and may drift away afterwards. One that is
read at depths it cannot foresee, or long after it could have been done, learns a state that keeps.

    TrainConfig(depth="settle(2, 8, free=40, tracked=4)")

A depth is written as its name with its numbers, on the command line as in Python. What an update draws depends on the
seed and the step alone, so that a resumed run and one of several processes draw the same. With per_sample=True every
sample of an update has a depth of its own, which depends on its id besides.
"""

from __future__ import annotations

import ast
import functools
import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from meq.options import nearest, real_number, switch, whole_number


@dataclass(frozen=True, kw_only=True)
class DepthDraw:
    """The depth of one update."""

    steps: int | None
    """All steps from the start; None for the model's own K."""
    tracked: int | None
    """The last so many of them carry gradients; None for all."""


FAST = "fixed(tracked=3)"
"""Gradients through the last three steps alone: what `meq train --fast` does."""
UNSAID = (("per_sample", False), ("steps", None), ("tracked", None))


@dataclass(frozen=True)
class Depth(ABC):
    """A distribution of depths."""

    name: ClassVar[str]
    per_sample = False
    """Whether every sample of an update has a depth of its own."""

    @abstractmethod
    def draw(self, random_numbers: random.Random) -> DepthDraw | None:
        """The depth of one update, or of one sample; None for the model's own K and its own way of taking gradients."""

    def __str__(self) -> str:
        """As `parse_depth` reads it."""
        values = [(each.name, getattr(self, each.name)) for each in fields(self)]
        # left out where it is not set, so that runs of older versions are resumed
        values = [(name, value) for name, value in values if (name, value) not in UNSAID]
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in values)})" if values else self.name


@dataclass(frozen=True)
class Fixed(Depth):
    """Always the same number of steps: the model's own K, as in the paper, unless another one is given.

    With `tracked` only the last so many carry gradients, which is faster and takes less memory.
    """

    steps: int | None = None
    tracked: int | None = field(default=None, kw_only=True)
    name = "fixed"

    def __post_init__(self) -> None:
        for name in ("steps", "tracked"):
            if getattr(self, name) is not None:
                whole_number(f"fixed: {name}", getattr(self, name))

    def draw(self, random_numbers: random.Random) -> DepthDraw | None:
        if self.steps is None and self.tracked is None:
            return None
        return DepthDraw(steps=self.steps, tracked=self.tracked)


@dataclass(frozen=True)
class Uniform(Depth):
    """Every number of steps from `low` to `high` as often as any other, all of them with gradients."""

    low: int
    high: int
    per_sample: bool = field(default=False, kw_only=True)
    name = "uniform"

    def __post_init__(self) -> None:
        _check_range(self.name, self.low, self.high)
        switch("uniform: per_sample", self.per_sample)

    def draw(self, random_numbers: random.Random) -> DepthDraw:
        steps = random_numbers.randint(self.low, self.high)
        return DepthDraw(steps=steps, tracked=steps)


@dataclass(frozen=True)
class Poisson(Depth):
    """1 + Poisson(rate) steps, log rate normal around log(mean - 1): mostly near the mean, now and then far beyond.

    Recurrent-depth models are trained so. The last `tracked` steps carry gradients.
    """

    mean: float
    spread: float = 0.5
    """Standard deviation of log rate."""
    tracked: int = 8
    per_sample: bool = field(default=False, kw_only=True)
    name = "poisson"

    def __post_init__(self) -> None:
        real_number("poisson: mean", self.mean, wanted="must be greater than 1", low=1 + 1e-9)
        real_number("poisson: spread", self.spread, wanted="must be 0 or a positive number", low=0.0)
        whole_number("poisson: tracked", self.tracked)
        switch("poisson: per_sample", self.per_sample)

    def draw(self, random_numbers: random.Random) -> DepthDraw:
        # E[rate] = mean - 1
        rate = math.exp(random_numbers.gauss(math.log(self.mean - 1) - self.spread**2 / 2, self.spread))
        steps = 1 + _poisson(rate, random_numbers)
        return DepthDraw(steps=steps, tracked=min(steps, self.tracked))


@dataclass(frozen=True)
class Settle(Depth):
    """Half of the updates from the start, half of them late, so that states that were reached are also kept.

    From the start: `low` to `high` steps, all with gradients. Late: 1 to `free` steps without gradients, then `tracked`
    with. `late` is the share of late updates.
    """

    low: int
    high: int
    free: int = 40
    tracked: int = 4
    late: float = 0.5
    per_sample: bool = field(default=False, kw_only=True)
    name = "settle"

    def __post_init__(self) -> None:
        _check_range(self.name, self.low, self.high)
        whole_number("settle: free", self.free)
        whole_number("settle: tracked", self.tracked)
        real_number("settle: late", self.late, wanted="is a share, from 0 to 1", low=0.0, high=1 + 1e-9)
        switch("settle: per_sample", self.per_sample)

    def draw(self, random_numbers: random.Random) -> DepthDraw:
        if random_numbers.random() < self.late:
            return DepthDraw(steps=random_numbers.randint(1, self.free) + self.tracked, tracked=self.tracked)
        steps = random_numbers.randint(self.low, self.high)
        return DepthDraw(steps=steps, tracked=steps)


DEPTHS: dict[str, type[Depth]] = {each.name: each for each in (Fixed, Uniform, Poisson, Settle)}


def parse_depth(text: str | Depth) -> Depth:
    """ "settle(2, 8, free=40)" as the depth it stands for; an error says what is wrong with it."""
    if isinstance(text, Depth):
        return text
    if not isinstance(text, str):
        raise TypeError(f"depth must be a text such as 'uniform(2, 8)', got {text!r:.80}")
    return _parsed(text)


@functools.lru_cache(maxsize=64)  # every update asks for the same one
def _parsed(text: str) -> Depth:
    try:
        tree = ast.parse(text.strip().lower(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"depth must be written as in 'uniform(2, 8)', got {text!r:.80}") from error
    call = tree if isinstance(tree, ast.Call) else None
    name = call.func if call is not None else tree
    if not isinstance(name, ast.Name):
        raise ValueError(f"depth must be written as in 'uniform(2, 8)', got {text!r:.80}")
    if name.id not in DEPTHS:
        raise ValueError(f"there is no depth {name.id!r}: {nearest(name.id, DEPTHS)}")
    kind = DEPTHS[name.id]
    known, numbers = ([each.name for each in fields(kind) if not (each.kw_only and only)] for only in (False, True))
    arguments = [] if call is None else call.args
    if len(arguments) > len(numbers):
        raise ValueError(f"depth {name.id!r} takes {', '.join(numbers) or 'no numbers'}, got {text!r:.80}")
    given = dict(zip(numbers, arguments, strict=False))
    for keyword in [] if call is None else call.keywords:
        if keyword.arg not in known:
            raise ValueError(f"depth {name.id!r} has no option {keyword.arg!r}: {nearest(str(keyword.arg), known)}")
        given[keyword.arg] = keyword.value
    switches = [each.name for each in fields(kind) if isinstance(each.default, bool)]
    values = {
        option: _value(f"depth {name.id!r}: {option}", node, option not in switches) for option, node in given.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        missing = [each for each in ("low", "high", "mean") if each in known and each not in values]
        raise ValueError(f"depth {name.id!r} needs {' and '.join(missing)}, as in 'uniform(2, 8)'") from error


def _value(label: str, node: ast.expr, number: bool) -> Any:
    """What stands in the text: a number, or True or False, which are written in small letters by now."""
    if not number and isinstance(node, ast.Name) and node.id in ("true", "false"):
        return node.id == "true"
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not number:
        wanted = "a number" if number else "True or False"
        raise ValueError(f"{label} must be {wanted}, got {ast.unparse(node)!r:.40}")
    return value


def _check_range(name: str, low: int, high: int) -> None:
    whole_number(f"{name}: low", low)
    whole_number(f"{name}: high", high)
    if high < low:
        raise ValueError(f"{name}: high must not be below low, got {low} to {high}")


def _poisson(rate: float, random_numbers: random.Random) -> int:
    """Counts arrivals until the time is over; the rates here are small."""
    count, left = 0, rate - random_numbers.expovariate(1.0)
    while left > 0:
        count, left = count + 1, left - random_numbers.expovariate(1.0)
    return count
