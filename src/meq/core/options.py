"""Names that do not exist are errors, and the error names the nearest one that does."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

Checked = TypeVar("Checked")
SHOWN = 30
"""How many known names a message lists: a table may have thousands of columns."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name if there is one, and the list, cut where it is long."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]!r}? " if close else ""
    more = f" and {len(known) - SHOWN:,} more" if len(known) > SHOWN else ""
    return f"{guess}Known: {', '.join(known[:SHOWN]) or 'none'}{more}."


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
