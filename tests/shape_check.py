"""The run-time type checker of the tests: an int may stand where a float is asked for, as everywhere in Python."""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def outer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the calls of functions that stand in modules and classes.

    A function inside a function is made again by every call, and so its checks would be: a hundred times the work of
    many a call. What such a function is handed comes from the one around it, which is checked.
    """
    return function if "<locals>" in getattr(function, "__qualname__", "") else _check(function)
