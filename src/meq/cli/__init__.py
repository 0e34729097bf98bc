"""The command line: it parses and calls. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from meq.lazy import make_lazy
from meq.registry import load_plugins

if TYPE_CHECKING:
    from meq.cli.root import app
else:
    make_lazy(__name__)

__all__ = ["app", "main"]


WAITING = {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
"""Threads of OpenMP that wait spin for a moment and then sleep, for GNU's runtime (rounds) and for LLVM's and Intel's
(milliseconds): on a busy machine they would take the processor from whom they wait for. Not at once: on an idle one
most waits are short, and waking up takes longer. A runtime reads it once, when torch is imported; processes that a
command starts inherit it."""
ASKED = (*WAITING, "OMP_WAIT_POLICY", "KMP_LIBRARY")
"""Who sets one of these has said how threads wait, in words of one runtime or the other: nothing is added."""


def main() -> None:
    if not any(name in os.environ for name in ASKED):
        os.environ.update(WAITING)
    try:
        load_plugins()  # before the commands, whose help lists what is registered
    except ImportError as error:
        sys.exit(f"error: {error}")
    from meq.cli.root import app

    app()
