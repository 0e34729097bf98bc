"""Options of data sets, as `--set NAME=VALUE` gives them: names and values are judged before a file is opened."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from meq.core.options import nearest
from meq.data.findings import DataError

WORDS: Mapping[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"},
    type(None): "null",
}


def check_option_values(
    options: Mapping[str, Any], read: Callable[..., Any], label: str, *, without: Sequence[str] = ()
) -> None:
    """An error for an option that `read` does not have, or whose value is of another kind than its annotation says.

    `without` are parameters that are given in another way: a folder, or the columns of a table.
    """
    names = [name for name in inspect.signature(read).parameters if name not in without]
    kinds = get_type_hints(read)
    for name, value in options.items():
        if name not in names:
            raise DataError(f"{label} has no option {name!r}: {nearest(name, names)}")
        if not fits(value, kinds.get(name, Any)):
            raise DataError(f"the option {name!r} of {label} must be {described(kinds[name])}, got {value!r:.100}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a plain value is of an annotated kind; what is no kind of plain value is let through."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(x, inner[1]) for k, x in value.items())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str) and all(fits(x, inner[0]) for x in value)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, Path | str if kind is Path else kind) if kind in WORDS else True


def described(kind: Any) -> str:
    """A kind in words: "a whole number, or null"."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return ", or ".join(described(each) for each in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f'names with {described(inner[1]).removeprefix("a ")}s, as in {{"train": 0.8, "dev": 0.2}}'
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f'a list of {described(inner[0]).removeprefix("a ")}s, as in ["a", "b"]'
    return WORDS.get(kind, str(getattr(kind, "__name__", kind)))
