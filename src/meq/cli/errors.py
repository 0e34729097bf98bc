"""Errors as sentences, in the words of the command line, and the codes that commands end with.

| code | meaning |
|---|---|
| 0 | done |
| 1 | an error that a sentence explains; one of a plugin; of commands that check, such as `meq data check`: a finding |
| 2 | a command or an option that does not exist, or cannot have that value |
| 70 | a bug in meq: a sentence, and the traceback to report |
| 130 | Ctrl-C |
| 141 | the reader of the output has left, as head does |
| 143 | SIGTERM |

Messages are written for Python: an error about `batch_size` is told as one about --batch-size. What makes a name
recognisable as an option of the command that was given: it has an underscore, it stands in backticks, it has a value
(dim=64), or the sentence begins with it ("epochs must be at least 1"). Where a message names both, as in
"on_bad='skip', or --skip-bad", the flag alone is left.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import typer

from meq.errors import in_words, is_memory, is_users, terminable, where
from meq.registry import plugin_names
from meq.version import __version__

USER, BUG, INTERRUPTED, PIPE, TERMINATED = 1, 70, 130, 141, 143
CLICK: type[Exception] = typer.BadParameter.__mro__[2]
"""ClickException, of click or of the copy that typer brings."""
CONTROL = (typer.Exit, typer.Abort, CLICK)
"""What the command line itself raises: exit codes, and mistakes in the command that are shown with its usage."""

VALUE = r"(?:'[^']*'|\"[^\"]*\"|[\w.]+)"
BOTH = (
    (re.compile(rf"\b\w+={VALUE},? or (--[\w-]+)"), r"\1"),
    (re.compile(rf"(--[\w-]+) \(\w+={VALUE}\)"), r"\1"),
)
VERBS = "must|cannot|lies|should"
RUNNING: ContextVar[Any] = ContextVar("the command that is running", default=None)


@contextmanager
def errors_in_words(debug: bool) -> Iterator[None]:
    """One sentence instead of a traceback, unless the error is ours; every command runs in such a block."""
    try:
        with terminable():
            yield
    except CONTROL:
        raise
    except KeyboardInterrupt as error:
        # a run that was asked to stop raises an interruption of its own kind, with the number of the signal
        terminated = getattr(error, "number", signal.SIGINT) == signal.SIGTERM
        print(f"\n{'terminated' if terminated else 'interrupted'}{_way_on(error)}", file=sys.stderr)
        raise typer.Exit(TERMINATED if terminated else INTERRUPTED) from None
    except BrokenPipeError:
        _let_go_of_output()
        raise typer.Exit(PIPE) from None
    except Exception as error:
        if not is_users(error):
            code = _report_bug(error)
            raise typer.Exit(code) from None  # `from` a StopIteration, a context manager would pass on that one
        if debug:
            raise
        further = _way_on(error) if is_memory(error) else ""
        print(f"error: {in_flags(in_words(error))}{further}", file=sys.stderr)
        raise typer.Exit(USER) from None


@contextmanager
def resumable(way_on: str | Callable[[], str]) -> Iterator[None]:
    """Whoever interrupts this block, or runs out of memory in it, is told how to go on.

    Words that depend on how far the work has come are a function, called when they are needed.
    """
    try:
        yield
    except BaseException as error:
        error.way_on = way_on  # type: ignore[attr-defined]
        raise


def _way_on(error: BaseException) -> str:
    """What `resumable` says of the block that the error comes from, as the end of a sentence."""
    words = getattr(error, "way_on", "")
    return f"; {words() if callable(words) else words}" if words else ""


def _report_bug(error: Exception) -> int:
    """A traceback, and whose it is: a plugin's, if the error came out of its code, or ours. Returns the exit code."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    plugin = next((name for name in plugin_names() if f"{modules[-1]}.".startswith(f"{name}.")), None)
    if plugin is not None:
        print(f"error: the plugin {plugin} failed; its author may need the lines below", file=sys.stderr)
    else:
        print(f"error: this is a bug in meq, please report it with the lines below: {where(error)}", file=sys.stderr)
    print(f"meq {__version__}, Python {platform.python_version()}, {platform.platform()}", file=sys.stderr)
    print("".join(traceback.format_exception(error)), end="", file=sys.stderr)
    return BUG if plugin is None else USER


def _let_go_of_output() -> None:
    """Python flushes its output at the end, and would complain once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # a stream of a test, or one that is closed
            continue


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
