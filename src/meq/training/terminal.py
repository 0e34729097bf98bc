"""What a user sees of a run on the terminal, and how Ctrl-C and SIGTERM end it: after the update under way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meq.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WORDS = b"\nstopping after this update, with a checkpoint; Ctrl-C once more ends at once\n"
AGAIN_SECONDS = 0.5
"""What comes sooner is the same Ctrl-C, sent by the terminal and passed on by a launcher."""
COLUMNS = ("loss", "metric", "|J|", "residual", "gate", "cross/self", "radius")


class LiveBar:
    """Shows epoch, step and the numbers in COLUMNS as they become known; silent on all processes but the first."""

    def __init__(self, total: int, *, shown: bool, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.shown, self.numbers = shown, dict.fromkeys(COLUMNS, "-")
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self.console,
            disable=not (shown and self.console.is_terminal),
        )
        self.task = self.bar.add_task("", total=total, epoch=0, numbers="")

    def __enter__(self) -> LiveBar:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def update(self, step: int, epoch: int, **numbers: float) -> None:
        """`numbers` by column; underscores stand for what a keyword cannot spell."""
        names = {"jacobian": "|J|", "cross_self": "cross/self"}
        self.numbers |= {names.get(name, name): f"{value:.3g}" for name, value in numbers.items()}
        text = "  ".join(f"{name} {value}" for name, value in self.numbers.items())
        self.bar.update(self.task, completed=step, epoch=epoch, numbers=text)

    def end_epoch(self, epoch: int) -> None:
        if self.shown and not self.console.is_terminal:
            self.say(f"epoch {epoch}: " + "  ".join(f"{name} {value}" for name, value in self.numbers.items()))

    def say(self, message: str) -> None:
        if self.shown:
            self.bar.console.print(message, highlight=False, markup=False, soft_wrap=True)


class StopRequests:
    """While it is entered, the first Ctrl-C or SIGTERM is noted, and a second Ctrl-C raises Interrupted at once.

    Python handles signals in its main thread only: elsewhere nothing is noted. A signal that is ignored, as a shell has
    it for what it starts in the background, stays ignored. The handlers that were there come back at the end.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self.noted: int | None = None
        self.shown = shown
        self._since = 0.0
        self._at_once = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Around work that need not be finished: a request raises Interrupted here."""
        if self.noted is not None:
            raise Interrupted(self.noted)
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self.noted is not None and number == signal.SIGINT and time.monotonic() - self._since > AGAIN_SECONDS
        if again or self._at_once:
            raise Interrupted(number)
        if self.noted is not None:
            return
        self.noted, self._since = number, time.monotonic()
        if self.shown:
            os.write(2, WORDS)  # print may be what was interrupted, and cannot be called within itself
