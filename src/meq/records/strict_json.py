"""JSON that is read strictly, and frozen dataclasses as such JSON and back, those with tensors included.

The reader is for files that somebody else may have written: a key that is there twice, endless nesting, a bare NaN are
errors, and one kind of error. A number that is not finite is written as {"not finite": "nan"}, "inf" or "-inf", so that
any JSON parser reads the file and no string can be taken for a number. A tensor is written as lists of its numbers, and
read as float64, int64 or bool, as its annotation says.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from meq.errors import shown
from meq.options import nearest
from meq.records.files import write_bytes

MAX_DEPTH = 64
"""Lists and objects inside each other; what is deeper is no data of ours, and code that walks it would fall over."""

Hook = Callable[[dict[str, Any]], Any]


class JsonError(ValueError):
    """Why a text is not strict JSON. The message does not name the file: the caller knows it."""

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(shown(message, 200))
        self.line, self.column = line, column


def parse_json(text: str | bytes, *, hook: Hook | None = None, constants: bool = False) -> Any:
    """Parse JSON; a duplicate key, and nesting deeper than MAX_DEPTH, are errors.

    `hook` replaces each object as it is read. `constants` allows NaN and Infinity, which Python writes although JSON
    does not know them.
    """

    def refuse(constant: str) -> None:
        raise JsonError(f"{constant} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) < len(pairs):
            key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise JsonError(f"the key {key!r} is there twice")
        return found if hook is None else hook(found)

    text = _decoded(text) if isinstance(text, bytes) else text
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=None if constants else refuse)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error.msg}", line=error.lineno, column=error.colno) from error
    except RecursionError as error:
        raise JsonError(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        if type(error) is not ValueError:  # ours, or one of the hook's own
            raise
        raise JsonError("it holds a number of thousands of digits") from error
    if text.count("[") + text.count("{") > MAX_DEPTH:  # fewer brackets cannot nest deeper
        _check_depth(value)
    return value


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start} (0x{content[error.start]:02x})") from error


def _check_depth(value: Any) -> None:
    """Goes down level by level, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for each in level for part in _parts(each) if isinstance(part, list | dict)]
        if not level:
            return
    raise JsonError(f"nested deeper than {MAX_DEPTH} levels")


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


# -- dataclasses as JSON -----------------------------------------------------------------------------------------------

SCHEMA = 1
"""The format of all files so far, written as their field `schema`; files of a newer format are refused."""
NOT_FINITE = "not finite"
LATER = "later"
SINCE = {LATER: True}
"""`field(default=..., metadata=SINCE)`: files of older versions do not have this field, and get its default."""
Kind = TypeVar("Kind")


class FormatError(ValueError):
    """A file whose content is not what it should be; the message names the file and the field."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


def dumps(value: Any) -> str:
    """A dataclass or plain value as strict JSON, one field per line."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str | bytes, where: str) -> Any:
    """The plain values of strict JSON; a bare NaN and a duplicate key are errors. `where` names the file in errors."""

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
    """Dataclasses, mappings, sequences, tensors and enums as the values that JSON has; else a TypeError."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        # a path only as a field, whose annotation makes it a path again
        return {name: str(each) if isinstance(each, Path) else plain(each) for name, each in fields.items()}
    if isinstance(value, Mapping):
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {NOT_FINITE: str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, bool | int | float | str):
        return value
    if (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        return plain(_numbers(value))
    raise TypeError(f"a record holds plain values; {value!r} is a {type(value).__name__}")


def typed(kind: type[Kind], value: Any, where: str) -> Kind:
    """A dataclass from plain values, checked field by field: the inverse of `plain`."""
    return _convert(kind, value, where, "")


def write_dataclass(path: Path, value: Any) -> None:
    """Write a dataclass as strict JSON; the file appears whole or not at all."""
    write_bytes(path, dumps(value).encode())


def read_dataclass(kind: type[Kind], path: Path) -> Kind:
    """Read what `write_dataclass` wrote; an error names a field that is missing, unknown or of another type."""
    return versioned(kind, loads(path.read_bytes(), str(path)), str(path))


def versioned(kind: type[Kind], value: Any, where: str) -> Kind:
    """`typed`, after a check that the field `schema` is a format that this version of meq reads."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema is None:
        raise FormatError(f"{where}: the field 'schema' is missing: not a file of meq, or one from before version 1")
    if type(schema) is int and schema > SCHEMA:
        raise FormatError(f"{where}: written in format {schema}, this version of meq reads up to {SCHEMA}; upgrade meq")
    if type(schema) is not int or schema < 1:
        raise FormatError(f"{where}: the field 'schema' is {schema!r}, this version of meq reads up to {SCHEMA}")
    if "schema" not in _hints(cast("Any", kind)):
        value = {name: each for name, each in value.items() if name != "schema"}
    return typed(kind, value, where)


def _key(key: Any) -> str:
    if not isinstance(key, str) or key == NOT_FINITE:
        raise TypeError(f"a record's keys are words other than {NOT_FINITE!r}, got {key!r}")
    return key


def _convert(kind: Any, value: Any, where: str, field: str) -> Any:
    """The value as the annotation `kind` asks for; `field` is its path in the file, for errors."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _union(parts, value, where, field)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where, field)
    if origin is tuple:
        return _tuple(parts, value, where, field)
    if origin is Sequence:
        return _tuple((*parts, ...), value, where, field)
    if kind is Path:
        return Path(_scalar(str, value, where, field))
    if origin in (Mapping, dict):
        entries = _expect(value, dict, where, field, "an object")
        return {key: _convert(parts[1], each, where, _below(field, key)) for key, each in entries.items()}
    if _is_tensor(kind):
        return _tensor(kind, value, where, field)
    if isinstance(kind, type) and issubclass(kind, Enum):
        values = [each.value for each in kind]
        if value not in values:
            raise FormatError(f"{where}: the field {field!r} cannot be {value!r:.80}: {nearest(str(value), values)}")
        return kind(value)
    return _scalar(kind, value, where, field)


def _union(parts: tuple[Any, ...], value: Any, where: str, field: str) -> Any:
    """`Kind | None`; of several kinds, a text, a number or None that is one of them."""
    if type(value) in parts:
        return value
    kinds = [part for part in parts if part is not type(None)]
    if len(kinds) > 1:
        raise FormatError(f"{where}: the field {field!r} is of no kind that files hold")
    return _convert(kinds[0], value, where, field)


def _tuple(parts: tuple[Any, ...], value: Any, where: str, field: str) -> tuple[Any, ...]:
    rows = _expect(value, list, where, field, "a list")
    kinds = [parts[0]] * len(rows) if parts[1:] == (...,) else list(parts)
    if len(rows) != len(kinds):
        raise FormatError(f"{where}: the field {field!r} should be a list of {len(kinds)}, has {len(rows)}")
    return tuple(
        _convert(kind, each, where, f"{field}[{row}]") for row, (kind, each) in enumerate(zip(kinds, rows, strict=True))
    )


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


# -- tensors -----------------------------------------------------------------------------------------------------------


def _is_tensor(kind: Any) -> bool:
    """`Tensor`, or a jaxtyping shape of one; torch is loaded by then, since an annotation names it."""
    torch = sys.modules.get("torch")
    return torch is not None and getattr(kind, "array_type", kind) is torch.Tensor


def _numbers(tensor: Any) -> Any:
    """Nested lists with all digits; a complex number is a pair."""
    import torch

    tensor = tensor.detach().cpu()
    return torch.view_as_real(tensor).tolist() if tensor.is_complex() else tensor.tolist()


def _tensor(kind: Any, value: Any, where: str, field: str) -> Any:
    """float64, int64, bool or complex128, by the jaxtyping name of the annotation."""
    import torch

    family = "Float" if kind is torch.Tensor else kind.dtype.__name__
    try:
        if family in ("Int", "Bool"):
            tensor = torch.tensor(value) if value else torch.tensor(value, dtype=torch.long)
            if tensor.numel() and tensor.dtype is not (torch.bool if family == "Bool" else torch.long):
                raise ValueError(f"it holds {str(tensor.dtype).removeprefix('torch.')}")
            tensor = tensor.bool() if family == "Bool" else tensor.long()
        else:
            tensor = torch.tensor(value, dtype=torch.float64)
            tensor = torch.view_as_complex(tensor) if family == "Complex" else tensor
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise FormatError(f"{where}: the field {field!r} is no tensor of {family}: {error!s:.100}") from error
    axes = getattr(kind, "dim_str", "").split()
    if not tensor.numel() and tensor.ndim < len(axes):  # an empty list does not say how many axes there were
        tensor = tensor.reshape([int(axis) if axis.isdigit() else 0 for axis in axes])
    if axes and "*" not in kind.dim_str and tensor.ndim != len(axes):
        raise FormatError(f"{where}: the field {field!r} has {tensor.ndim} axes instead of {kind.dim_str.strip()!r}")
    return tensor
