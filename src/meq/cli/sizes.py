"""The option `--encoders clip,bert` of what is measured: `meq cost` and the study `cost`."""

from __future__ import annotations

from typing import Annotated

import typer

SizedEncoders = Annotated[
    str | None,
    typer.Option(
        "--encoders",
        metavar="NAMES",
        help="Encoders of real size with random weights as part of the pass: clip, bert, or clip,bert.",
    ),
]


def names_in(words: str | None) -> tuple[str, ...]:
    """The names between commas."""
    return () if words is None else tuple(name.strip() for name in words.split(","))
