"""The command line: it parses and calls. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from meq.lazy import make_lazy
from meq.registry import load_plugins

if TYPE_CHECKING:
    from meq.cli.root import app
else:
    make_lazy(__name__)

__all__ = ["app", "main"]


def main() -> None:
    try:
        load_plugins()  # before the commands, whose help lists what is registered
    except ImportError as error:
        sys.exit(f"error: {error}")
    from meq.cli.root import app

    app()
