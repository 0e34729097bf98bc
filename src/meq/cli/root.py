"""The front page: commands in the order of a user's way, grouped as the chapters of a book."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import core
from typer.core import TyperCommand, TyperGroup

from meq.cli.errors import errors_in_words
from meq.cli.flags import running
from meq.version import __version__

PANELS = ("Data", "Train", "Use", "Understand", "Laboratory")
HELP = "Mutual equilibrium: multimodal learning by coupled fixed points, from your table to answers and explanations."


class Page(TyperCommand):
    """A command whose help is shown as it is written, and whose errors are told in words, wherever they come from."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = as_written(self.help)
        for each in self.params:
            if isinstance(written := getattr(each, "help", None), str):
                each.help = as_written(written)  # type: ignore[attr-defined]

    def invoke(self, ctx: Any) -> Any:
        with running(self), errors_in_words(bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


def as_written(words: str | None) -> str | None:
    """Help is read as markup, which takes the brackets of 'meq[offline]' for a style, unless it is printed plainly."""
    return words if words is None or not getattr(core, "HAS_RICH", True) else escape(words)


class Contents(TyperGroup):
    """Commands in the order they were registered in, sub-applications among them."""

    order: list[str] = []  # noqa: RUF012, filled once, when the commands are registered

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=self.order.index)


class Book:
    """The application, chapter by chapter."""

    def __init__(self) -> None:
        self.app = typer.Typer(
            cls=Contents, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=HELP
        )
        self.app.callback()(_root)

    def add(self, panel: str, name: str, command: Callable[..., Any] | typer.Typer) -> None:
        """Register a command, or an application with commands of its own, under a heading."""
        if panel not in PANELS:
            raise ValueError(f"there is no panel {panel!r}, only {', '.join(PANELS)}")
        Contents.order.append(name)
        if isinstance(command, typer.Typer):
            for each in command.registered_commands:
                each.cls = Page
            self.app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            self.app.command(name, cls=Page, rich_help_panel=panel)(command)


def _version(asked: bool) -> None:
    if asked:
        print(f"meq {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
