"""Frozen dataclasses as strict JSON and back: nothing missing, nothing unknown, no NaN that JSON cannot spell.

A number that is not finite is written as {"not finite": "nan"}, "inf" or "-inf", so that any JSON parser reads the file
and no string can be taken for a number.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from meq.core.options import nearest
from meq.data.strict_json import JsonError, parse_json
from meq.foreign import shown

NOT_FINITE = "not finite"
LATER = "later"
SINCE = {LATER: True}
"""`field(default=..., metadata=SINCE)`: a field that files of older versions do not have, and then has its default."""
Kind = TypeVar("Kind")


class FormatError(ValueError):
    """JSON that does not say what it should; the message names the file and the field."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


def dumps(value: Any) -> str:
    """A dataclass or plain value as strict JSON, one field per line."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str | bytes, where: str) -> Any:
    """The plain values of strict JSON; a bare NaN and a key that is there twice are errors."""

    def number(found: dict[str, Any]) -> Any:
        return _not_finite(found[NOT_FINITE], where) if found.keys() == {NOT_FINITE} else found

    try:
        return parse_json(text, hook=number)
    except JsonError as error:
        place = f" (line {error.line}, column {error.column})" if error.line else ""
        raise FormatError(f"{where}: {error}{place}") from error


def _not_finite(word: Any, where: str) -> float:
    if word not in ("nan", "inf", "-inf"):
        raise FormatError(f'{where}: a number that is {NOT_FINITE} is "nan", "inf" or "-inf", not {word!r}')
    return float(word)


def plain(value: Any) -> Any:
    """What JSON can hold of a value; an error for what it cannot."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {NOT_FINITE: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a record holds plain values; {value!r} is a {type(value).__name__}")


def typed(kind: type[Kind], value: Any, where: str) -> Kind:
    """The plain value as an instance of a dataclass, checked field by field."""
    return _convert(kind, value, where, "")


def _key(key: Any) -> str:
    if not isinstance(key, str) or key == NOT_FINITE:
        raise TypeError(f"a record's keys are words other than {NOT_FINITE!r}, got {key!r}")
    return key


def _convert(kind: Any, value: Any, where: str, field: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in parts if part is not type(None))
        return None if value is None else _convert(inner, value, where, field)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where, field)
    if origin is tuple:
        rows = _expect(value, list, where, field, "a list")
        return tuple(_convert(parts[0], each, where, f"{field}[{row}]") for row, each in enumerate(rows))
    if origin is Mapping:
        entries = _expect(value, dict, where, field, "an object")
        return {key: _convert(parts[1], each, where, _below(field, key)) for key, each in entries.items()}
    return _scalar(kind, value, where, field)


def _dataclass(kind: Any, value: Any, where: str, field: str) -> Any:
    entries = _expect(value, dict, where, field, "an object")
    kinds = _hints(kind)
    older = {each.name for each in dataclasses.fields(kind) if each.metadata.get(LATER)}
    for name in kinds:
        if name not in entries and name not in older:
            raise FormatError(f"{where}: the field {_below(field, name)!r} is missing")
    for name in entries:
        if name not in kinds:
            raise FormatError(f"{where}: there is no field {_below(field, name)!r}: {nearest(name, kinds)}")
    made = {name: _convert(kinds[name], each, where, _below(field, name)) for name, each in entries.items()}
    try:
        return kind(**made)
    except (ValueError, TypeError) as error:
        raise FormatError(f"{where}: {error}") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _scalar(kind: Any, value: Any, where: str, field: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise FormatError(f"{where}: the field {field!r} is a number that no float can hold") from error
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return value if right else _expect(value, (), where, field, names[kind])


def _expect(value: Any, kind: Any, where: str, field: str, words: str) -> Any:
    if not isinstance(value, kind):
        shown = json.dumps(value, default=str)
        shown = shown if len(shown) < 60 else f"{shown[:57]}..."
        place = f"the field {field!r}" if field else "the file"
        raise FormatError(f"{where}: {place} should be {words}, is {shown}")
    return value


def _below(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
