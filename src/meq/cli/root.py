"""The front page: commands in the order of a user's way, grouped as the chapters of a book."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import core
from typer.core import TyperCommand, TyperGroup

from meq.cli.calibrate import calibrate
from meq.cli.compare import compare
from meq.cli.data import data_app, encode
from meq.cli.errors import errors_in_words, running
from meq.cli.importance import importance
from meq.cli.serve import export, serve
from meq.cli.study import demo, study_app
from meq.cli.train import evaluate, train
from meq.cli.tune import tune
from meq.cli.understand import audit, cost, diagnose, explain, report
from meq.cli.use import app_command, predict, quantise
from meq.registry import PLUGINS, load_plugins
from meq.version import __version__

CHAPTERS: Mapping[str, Mapping[str, Callable[..., Any] | typer.Typer]] = {
    "Data": {"data": data_app, "encode": encode},
    "Train": {"train": train, "compare": compare, "tune": tune, "evaluate": evaluate},
    "Use": {
        **{"calibrate": calibrate, "predict": predict, "quantise": quantise},
        **{"export": export, "serve": serve, "app": app_command},
    },
    "Understand": {
        **{"explain": explain, "importance": importance, "diagnose": diagnose},
        **{"audit": audit, "cost": cost, "report": report},
    },
    "Laboratory": {"study": study_app, "demo": demo},
}
ALIASES = {"analyze": diagnose}
"""Older names, which go on working and are not listed."""
HELP = "Mutual equilibrium: multimodal learning by coupled fixed points, from your table to answers and explanations."


class Page(TyperCommand):
    """A command whose help is shown as it is written, and whose errors speak of its own options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = as_written(self.help)
        for each in self.params:
            if isinstance(written := getattr(each, "help", None), str):
                each.help = as_written(written)  # type: ignore[attr-defined]

    def invoke(self, ctx: Any) -> Any:
        with running(self):
            return super().invoke(ctx)


def as_written(words: str | None) -> str | None:
    """Help is read as markup, which takes the brackets of 'meq[offline]' for a style, unless it is printed plainly."""
    return words if words is None or not getattr(core, "HAS_RICH", True) else escape(words)


class Contents(TyperGroup):
    """Commands in the order of the chapters, applications with commands of their own among them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for chapter in CHAPTERS.values() for name in chapter]


def _version(asked: bool) -> None:
    if asked:
        print(f"meq {__version__}")
        raise typer.Exit


def _load_plugins(ctx: typer.Context, modules: list[str] | None) -> None:
    """Name the modules in the environment, where processes that the command starts find them, and import them."""
    before = os.environ.get(PLUGINS)

    def restore() -> None:
        os.environ.pop(PLUGINS, None)
        if before is not None:
            os.environ[PLUGINS] = before

    if modules:
        os.environ[PLUGINS] = ",".join([*([before] if before else []), *modules])
        ctx.call_on_close(restore)
    try:
        with errors_in_words(False):
            load_plugins()
    except typer.Exit:
        restore()  # the command does not begin, and nothing is closed
        raise


def _root(
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            callback=_load_plugins,
            help=f"Import a module of yours that registers data sets, encoders, ...; repeatable. Also: {PLUGINS}.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app = typer.Typer(
    cls=Contents,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # every command inherits it
    help=HELP,
)
app.callback()(_root)
for _chapter, _commands in CHAPTERS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            for _each in _command.registered_commands:
                _each.cls = Page
            app.add_typer(_command, name=_name, rich_help_panel=_chapter)
        else:
            app.command(_name, cls=Page, rich_help_panel=_chapter)(_command)
for _name, _command in ALIASES.items():
    app.command(_name, cls=Page, hidden=True)(_command)
