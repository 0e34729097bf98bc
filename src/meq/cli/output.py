"""What commands say besides their results: on standard error, so that results can be piped."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from meq.records import dumps

RECORD = "record.json"


def say(*lines: str, console: Console | None = None) -> None:
    """Lines as they are, unwrapped: beside the result, unless they are told where to go."""
    for line in lines:
        (console or Console(stderr=True)).print(line, highlight=False, markup=False, soft_wrap=True)


def print_result(found: Any, *, as_json: bool) -> None:
    """The result of a command, as the text it makes of itself, or as JSON for machines."""
    print(dumps(found).rstrip() if as_json else found)


class Bars:
    """A bar with the time left for each thing that is done; a line at its end where there is no terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        self.console, self.shown = Console(stderr=True), shown
        self.tasks: dict[str, TaskID] = {}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not (shown and self.console.is_terminal),
        )

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total)
        self.bars.update(self.tasks[what], completed=done, total=total)
        if done == total and self.shown and not self.console.is_terminal:
            say(f"{what}: {done:,} of {total:,}", console=self.console)


def typed_command() -> list[str]:
    """What was typed after `meq`, where that is known."""
    return sys.argv[1:] if Path(sys.argv[0]).stem in ("meq", "__main__") else []


def same_command(untyped: str) -> str:
    """What was typed, where that is known, and else these words."""
    typed = typed_command()
    return shlex.join(["meq", *typed]) if typed else untyped


def resume_command(data: str, out: Path) -> str:
    """The command that goes on with this run: what was typed, with --resume if the training itself had begun."""
    typed = typed_command()
    begun = (out / RECORD).is_file()
    if not typed:
        return f"meq train {data} --out {out}{' --resume' if begun else ''}, and the same options"
    place = [] if any(each == "--out" or each.startswith("--out=") for each in typed) else ["--out", str(out)]
    resume = [] if "--resume" in typed or not begun else ["--resume"]
    return shlex.join(["meq", *typed, *place, *resume])


TYPED = {"image": "PICTURE.png", "text": '"TEXT"', "audio": "SOUND.wav"}
"""How a content of one example is given, by its kind."""


def next_commands(out: Path, data: str, *, kinds: Sequence[str], iterates: bool) -> list[str]:
    """What to type after training a run that reads contents of those kinds, in their order.

    Numbers come in tables only, and what does not iterate has no steps to look at.
    """
    run = shlex.quote(str(out))
    example = " ".join(TYPED.get(kind, "") for kind in kinds)
    alone = all(kind in TYPED for kind in kinds)
    return [
        f"meq evaluate {run}",
        f"meq predict {run} new{Path(data.removesuffix('.gz')).suffix or '.csv'} -o answers.csv",
        *([f"meq predict {run} {example}"] if alone else []),
        *([f"meq diagnose {run}"] if iterates else []),
        *([f"meq explain {run} {example}"] if alone and iterates else []),
        f"meq report {run}",
    ]
