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
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from meq.cli.flags import in_flags
from meq.errors import Terminated, in_words, is_memory, is_users, terminable, where
from meq.version import __version__

USER, BUG, INTERRUPTED, PIPE, TERMINATED = 1, 70, 130, 141, 143
CLICK = typer.BadParameter.__mro__[2]  # ClickException: of click, or of the copy that newer versions of typer bring
CONTROL = (typer.Exit, typer.Abort, CLICK)
"""What the command line itself raises: exit codes, and mistakes in the command that are shown with its usage."""


@contextmanager
def errors_in_words(debug: bool, *, hint: str | None = None) -> Iterator[None]:
    """One sentence instead of a traceback, unless the error is ours; what can be resumed says how."""
    try:
        with terminable():
            yield
    except CONTROL:
        raise
    except KeyboardInterrupt as error:
        raise typer.Exit(_interrupted(error, hint)) from None
    except BrokenPipeError:
        _let_go_of_output()
        raise typer.Exit(PIPE) from None
    except Exception as error:
        if not is_users(error):
            _report_bug(error)
            raise typer.Exit(BUG) from error
        if debug:
            raise
        further = f"; {hint}" if hint and is_memory(error) else ""
        print(f"error: {in_flags(in_words(error))}{further}", file=sys.stderr)
        raise typer.Exit(USER) from None


def _interrupted(error: KeyboardInterrupt, hint: str | None) -> int:
    terminated = isinstance(error, Terminated)
    print(f"\n{'terminated' if terminated else 'interrupted'}{'; ' + hint if hint else ''}", file=sys.stderr)
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
