"""What a run in another process tells the one that looks after the study, through a file that both can see.

A file rather than a pipe: a worker on another machine writes to the study's file system in any case, and a worker that
is killed cannot leave half a message in anybody's way.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from io import TextIOBase
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from meq.training.progress import LiveBar

SECONDS = 0.5
"""Between two lines about the step that a run has come to."""


@dataclass(kw_only=True)
class Teller:
    """Writes lines of JSON: {"say": ...}, {"epoch": ...} or {"step": ..., "of": ..., "now": ..., "numbers": ...}."""

    file: Path
    last: float = field(default=0.0, init=False)

    def tell(self, **what: Any) -> None:
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    def say(self, words: str) -> None:
        self.tell(say=words)

    def step(self, step: int, total: int, epoch: int, numbers: str) -> None:
        """Not more often than somebody could read it."""
        if step == total or time.monotonic() - self.last > SECONDS:
            self.last = time.monotonic()
            self.tell(step=step, of=total, now=epoch, numbers=numbers)

    def console(self) -> Console:
        """A console whose lines are told."""
        return Console(file=cast(IO[str], _Lines(self)), width=10_000, force_terminal=False, color_system=None)

    def bar(self, total: int) -> LiveBar:
        """A training's live line, told instead of shown."""
        return _ToldBar(total, self)


@dataclass(kw_only=True)
class Listener:
    """Reads what was told since it was last asked."""

    file: Path
    place: int = field(default=0, init=False)

    def heard(self) -> list[dict[str, Any]]:
        try:
            with open(self.file, "rb") as file:
                file.seek(self.place)
                new = file.read()
        except FileNotFoundError:  # nothing was told yet
            return []
        whole, end, _ = new.rpartition(b"\n")  # the last line may still be in writing
        self.place += len(whole) + len(end)
        return [json.loads(line) for line in whole.splitlines()]


class _Lines(TextIOBase):
    """A text file that tells each line."""

    def __init__(self, teller: Teller) -> None:
        self.teller, self.begun = teller, ""

    def write(self, text: str, /) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            self.teller.say(line)
        return len(text)


class _ToldBar(LiveBar):
    """Steps and epochs go to the teller, messages to its console."""

    def __init__(self, total: int, teller: Teller) -> None:
        super().__init__(total, shown=True, console=teller.console())
        self.total, self.teller = total, teller

    def update(self, step: int, epoch: int, **numbers: float) -> None:
        super().update(step, epoch, **numbers)
        self.teller.step(step, self.total, epoch, self._words())

    def end_epoch(self, epoch: int) -> None:
        self.teller.tell(epoch=f"epoch {epoch}: {self._words()}")

    def _words(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self.numbers.items() if value != "-")
