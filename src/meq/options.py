"""Names that do not exist are errors, and the error names the nearest one that does."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Checked = TypeVar("Checked")
SHOWN = 30
"""How many known names a message lists: a table may have thousands of columns."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name if there is one, and the list, cut where it is long."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]!r}? " if close else ""
    more = f" and {len(known) - SHOWN:,} more" if len(known) > SHOWN else ""
    return f"{guess}Known: {', '.join(known[:SHOWN]) or 'none'}{more}."


def letters_apart(a: str, b: str) -> int:
    """How many letters have to be changed, added or left out to make `b` of `a`; two swapped ones count as two."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def whole_number(label: str, value: Any, *, least: int = 1) -> int:
    """The value as an int, or an error: a whole number of at least `least`. NumPy's whole numbers are welcome."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{label} must be a whole number of at least {least}, got {value!r:.80}")
    return number


def real_number(label: str, value: Any, *, wanted: str, low: float = -math.inf, high: float = math.inf) -> float:
    """The value as a float in [low, high), or an error that says what it must be."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers is a RuntimeError
        number = math.nan
    if not (math.isfinite(number) and low <= number < high):
        raise ValueError(f"{label} {wanted}, got {value!r:.80}")
    return number


def switch(label: str, value: Any) -> bool:
    """The value, if it is True or False: the string "false" would be as good as True."""
    if not isinstance(value, bool):
        raise ValueError(f"{label} must be True or False, got {value!r:.80}")
    return value


def wrong_object(label: str, value: Any, known: Mapping[str, str], example: str) -> str:
    """A name or a class came where one of meq's objects belongs; `known` maps names to what to write."""
    if inspect.isclass(value):
        return f"{label} must be an object such as {example}, got the class {value.__name__}: write {value.__name__}()"
    if isinstance(value, str):
        close = difflib.get_close_matches(value.lower(), known, n=1, cutoff=0.5)
        write = f"write {label.split('(')[0]}={known[close[0]]}" if close else f"known are {', '.join(known.values())}"
        return f"{label} must be an object such as {example}, got the string {value!r:.80}: {write}"
    return f"{label} must be an object such as {example}, got {type(value).__name__}"


def tolerance(label: str, value: Any) -> float:
    return real_number(label, value, wanted="must be 0 (take every step) or a positive number", low=0.0)


def by_part(options: Mapping[str, Any], parts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{"seed": 1, "model.hidden": 64} as {"data": {"seed": 1}, "model": {"hidden": 64}}: `parts` are the known ones.

    A name without a part is that of an option of the data set. A part may be written with hyphens or underscores.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        part, dot, option = name.partition(".")
        part = part.replace("_", "-") if dot else "data"
        if part not in ("data", *parts):
            raise ValueError(f"`set` {name}: there is no part {part!r}: {nearest(part, ['data', *parts])}")
        found.setdefault(part, {})[option if dot else name] = value
    return found


def checked_options(target: Checked) -> Checked:
    """Decorate a function or class so that a mistyped keyword is answered with the nearest known one."""
    if inspect.isclass(target):
        target.__init__ = _checked(target.__init__, target.__name__)  # type: ignore[method-assign]
        return target
    return _checked(target, target.__name__)  # type: ignore[attr-defined]


def _checked(function: Any, label: str) -> Any:
    known = frozenset(inspect.signature(function).parameters) - {"self"}

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in known:
                raise TypeError(f"{label}() has no option {name!r}: {nearest(name, known)}")
        return function(*args, **options)

    return call
