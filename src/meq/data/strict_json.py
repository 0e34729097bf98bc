"""JSON from files that somebody else may have written: one reader, one error, whatever is in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from meq.foreign import shown

MAX_DEPTH = 64
"""Lists and objects inside each other; what is deeper is no data of ours, and code that walks it would fall over."""

Hook = Callable[[dict[str, Any]], Any]


class JsonError(ValueError):
    """Why a text is not JSON that is read here; a sentence without its place, which the caller knows."""

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(shown(message, 200))
        self.line, self.column = line, column


def parse_json(text: str | bytes, *, hook: Hook | None = None, constants: bool = False) -> Any:
    """The value. A key that is there twice, and nesting deeper than MAX_DEPTH, are errors.

    `hook` may make something smaller of each object while it is read. `constants` lets NaN and Infinity through, which
    JSON does not know and Python writes.
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
    """Level by level, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for each in level for part in _parts(each) if isinstance(part, list | dict)]
        if not level:
            return
    raise JsonError(f"nested deeper than {MAX_DEPTH} levels")


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
