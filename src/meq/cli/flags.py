"""From Python's words to those of the command line: an error about `batch_size` speaks of --batch-size.

Messages are written for Python. What makes a name recognisable as an option of the command that was given: it has an
underscore, it stands in backticks, it has a value (dim=64), or the sentence begins with it ("epochs must be at least
1"). Where a message names both, as in "on_bad='skip', or --skip-bad", the flag alone is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

VALUE = r"(?:'[^']*'|\"[^\"]*\"|[\w.]+)"
BOTH = (
    (re.compile(rf"\b\w+={VALUE},? or (--[\w-]+)"), r"\1"),
    (re.compile(rf"(--[\w-]+) \(\w+={VALUE}\)"), r"\1"),
)
VERBS = "must|cannot|lies|should"
RUNNING: ContextVar[Any] = ContextVar("the command that is running", default=None)


@contextmanager
def running(command: Any) -> Iterator[None]:
    """Messages speak of the options of this command for as long as the block lasts."""
    token = RUNNING.set(command)
    try:
        yield
    finally:
        RUNNING.reset(token)


def in_flags(words: str) -> str:
    """The message with every option of the command that is running named as it is typed."""
    for pattern, flag in BOTH:
        words = pattern.sub(flag, words)
    flags = flags_of(RUNNING.get())
    if not flags:
        return words
    known = "|".join(sorted(flags, key=len, reverse=True))
    underscored = "|".join(name for name in known.split("|") if "_" in name) or "(?!)"
    begins = rf"^({known})(?= (?:-?[\d.]+ )?(?:{VERBS})\b)"
    for place in (rf"`({known})`", begins, rf"(?<![\w/.'\"-])({underscored})(?![\w/.'\"(-])"):
        words = re.sub(place, lambda match: flags[match[1]], words)
    words = re.sub(rf"(?<![\w.-])({known})=(?={VALUE})", lambda match: f"{flags[match[1]]} ", words)
    return words


def flags_of(command: Any) -> Mapping[str, str]:
    """The options of a command: from the names that Python has for them, plurals too, to what is typed."""
    flags: dict[str, str] = {}
    for option in () if command is None else command.params:
        typed = next((name for name in option.opts if name.startswith("--")), None)
        if typed is not None:
            names = {option.name, typed[2:].replace("-", "_")}
            flags |= dict.fromkeys([*names, *(f"{name}s" for name in names)], typed)
    return flags
