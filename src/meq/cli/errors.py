"""Errors as sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from meq.training.checkpoint import CheckpointError
from meq.training.fit import TrainingError

KNOWN = (ValueError, TypeError, OSError, ArithmeticError, ImportError, TrainingError, CheckpointError)


@contextmanager
def errors_in_words(debug: bool, *, hint: str | None = None) -> Iterator[None]:
    """One sentence instead of a traceback; what can be resumed says how."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted{'; ' + hint if hint else ''}", file=sys.stderr)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has left, as head does
        sys.stderr.close()
        raise typer.Exit(141) from None
    except KNOWN as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
