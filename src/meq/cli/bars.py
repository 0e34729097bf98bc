"""Progress bars for work whose size is known."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Bars:
    """A bar with the time left for each thing that is done; a line at its end where there is no terminal."""

    def __init__(self, console: Console, *, shown: bool) -> None:
        self.console, self.shown = console, shown
        self.tasks: dict[str, TaskID] = {}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not (shown and console.is_terminal),
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
            self.console.print(f"{what}: {done:,} of {total:,}", highlight=False, markup=False, soft_wrap=True)
