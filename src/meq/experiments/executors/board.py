"""How far all runs of a study have come, in one display: a line for each on a terminal, plain lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from meq.experiments.executors.scheduling import Job, Problem, Run, in_words
from meq.experiments.executors.telling import Listener
from meq.experiments.study import run_place
from meq.training.record import RunRecord, read_record


@dataclass(kw_only=True)
class _Shown:
    """A run that is under way."""

    listener: Listener
    task: TaskID
    done: float = 0.0
    """Of all its updates."""


class Board:
    """Follows runs in other processes by what they tell."""

    def __init__(self, job: Job) -> None:
        self.job, self.console = job, job.console
        self.shown: dict[Run, _Shown] = {}
        self.ended = 0
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=600,  # runs differ in speed: a short memory would make the time left jump
        )
        self.all = self.bars.add_task(job.study.name, total=len(job.left), state=self._count(), numbers="")

    def __enter__(self) -> Board:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def say(self, words: str) -> None:
        self.console.print(words, highlight=False, markup=False, soft_wrap=True)

    def begin(self, run: Run, told: Path) -> None:
        """A worker has it."""
        task = self.bars.add_task(escape(in_words(run)), total=None, state="starting", numbers="")
        self.shown[run] = _Shown(listener=Listener(file=told), task=task)
        if not self.console.is_terminal:
            self.say(f"{in_words(run)}: begins")

    def refresh(self) -> None:
        """Show what was told since the last time."""
        for run, shown in self.shown.items():
            for told in shown.listener.heard():
                self._show(run, shown, told)
        self._count_all()

    def leave(self, run: Run) -> None:
        """Its worker is gone, for whatever reason."""
        self.refresh()
        self.bars.remove_task(self.shown.pop(run).task)

    def end(self, run: Run, problem: Problem | None = None) -> None:
        """Nothing more will happen to it."""
        self.leave(run)
        self.ended += 1
        self._count_all()
        words = problem.words if problem else self._result(read_record(self.job.folder / run_place(*run)))
        self.say(f"{in_words(run)}: {words} ({self._count()})")

    def _show(self, run: Run, shown: _Shown, told: dict[str, Any]) -> None:
        if "say" in told:
            words = told["say"]
            self.say(words if words.startswith(in_words(run)) else f"{in_words(run)}: {words}")
        elif "epoch" in told:
            if not self.console.is_terminal:
                self.say(f"{in_words(run)}: {told['epoch']}")
        else:
            shown.done = told["step"] / max(told["of"], 1)
            state = f"epoch {told['now']}, step {told['step']} of {told['of']}"
            numbers = told["numbers"]
            self.bars.update(shown.task, completed=told["step"], total=told["of"], state=state, numbers=numbers)

    def _count_all(self) -> None:
        done = self.ended + sum(shown.done for shown in self.shown.values())
        self.bars.update(self.all, completed=done, state=self._count())

    def _count(self) -> str:
        return f"{self.ended} of {len(self.job.left)} runs"

    def _result(self, record: RunRecord) -> str:
        if record.error is not None:
            return "failed"  # whoever keeps the study says why
        score = f", {record.metric} {record.selected.value:.4g} on dev" if record.selected.value is not None else ""
        return f"{record.status} after {record.wall_seconds:.0f} s{score}"
