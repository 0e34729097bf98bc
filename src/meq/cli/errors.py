"""Errors as sentences, in the words of the command line, and the codes that commands end with.

| code | meaning |
|---|---|
| 0 | done |
| 1 | an error that a sentence explains; of commands that check, such as `meq data check`: something is wrong |
| 2 | a command or an option that does not exist, or cannot have that value |
| 70 | a bug in meq: a sentence, and the traceback to report |
| 130 | Ctrl-C |
| 141 | the reader of the output has left, as head does |
| 143 | SIGTERM |
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from meq.cli.flags import in_flags
from meq.errors import in_words, is_memory, is_users, terminable, where
from meq.version import __version__

USER, BUG, INTERRUPTED, PIPE, TERMINATED = 1, 70, 130, 141, 143
CLICK: type[Exception] = typer.BadParameter.__mro__[2]
"""ClickException, of click or of the copy that typer brings."""
CONTROL = (typer.Exit, typer.Abort, CLICK)
"""What the command line itself raises: exit codes, and mistakes in the command that are shown with its usage."""


@contextmanager
def errors_in_words(debug: bool, *, hint: str | Callable[[], str] | None = None) -> Iterator[None]:
    """One sentence instead of a traceback, unless the error is ours; what can be resumed says how.

    A hint that depends on how far the work has come is a function, called when it is needed.
    """
    try:
        with terminable():
            yield
    except CONTROL:
        raise
    except KeyboardInterrupt as error:
        raise typer.Exit(_interrupted(error, _further(hint))) from None
    except BrokenPipeError:
        _let_go_of_output()
        raise typer.Exit(PIPE) from None
    except Exception as error:
        if not is_users(error):
            _report_bug(error)
            raise typer.Exit(BUG) from None  # `from` a StopIteration, a context manager would pass on that one
        if debug:
            raise
        further = _further(hint) if is_memory(error) else ""
        print(f"error: {in_flags(in_words(error))}{further}", file=sys.stderr)
        raise typer.Exit(USER) from None


def _further(hint: str | Callable[[], str] | None) -> str:
    """The way on, as the end of a sentence."""
    words = hint() if callable(hint) else hint
    return f"; {words}" if words else ""


def _interrupted(error: KeyboardInterrupt, further: str) -> int:
    """A run that was asked to stop raises an interruption of its own kind, with the number of the signal."""
    terminated = getattr(error, "number", signal.SIGINT) == signal.SIGTERM
    print(f"\n{'terminated' if terminated else 'interrupted'}{further}", file=sys.stderr)
    return TERMINATED if terminated else INTERRUPTED


def _report_bug(error: Exception) -> None:
    print(f"error: this is a bug in meq, please report it with the lines below: {where(error)}", file=sys.stderr)
    print(f"meq {__version__}, Python {platform.python_version()}, {platform.platform()}", file=sys.stderr)
    print("".join(traceback.format_exception(error)), end="", file=sys.stderr)


def _let_go_of_output() -> None:
    """Python flushes its output at the end, and would complain once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # a stream of a test, or one that is closed
            continue
