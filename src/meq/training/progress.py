"""The live line of a run: a bar on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
