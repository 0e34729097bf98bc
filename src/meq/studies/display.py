"""How far all runs of a study have come, by their records: a bar for each on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from meq.studies.one_run import in_words, recorded
from meq.studies.study import Run, Study, run_place
from meq.training.record import RunRecord

VITALS = {"jacobian_norm": "|J|", "residual": "residual", "radius": "radius"}


class StudyDisplay:
    """Follows runs that are made in other processes."""

    def __init__(self, study: Study, folder: Path, console: Console, runs: Sequence[Run]) -> None:
        self.folder, self.console, self.count = folder, console, len(runs)
        self.tasks: dict[Run, TaskID] = {}
        before = {run: record for run in runs if (record := recorded(folder / run_place(*run))) is not None}
        self.epochs = {run: len(record.curves) for run, record in before.items()}
        self.alarms = {run: len(record.alarms) for run, record in before.items()}
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
        self.all = self.bars.add_task(study.name, total=self.count, state=self._counted(), numbers="")

    def say(self, words: str) -> None:
        self.console.print(words, highlight=False, markup=False, soft_wrap=True)

    def show(self, under_way: Iterable[Run]) -> None:
        """The runs that workers have now; what is new in their records is said."""
        under_way = list(under_way)
        for run in [run for run in self.tasks if run not in under_way]:
            self.bars.remove_task(self.tasks.pop(run))
        done = float(self.ended)
        for run in under_way:
            if run not in self.tasks:
                self.tasks[run] = self.bars.add_task(escape(in_words(run)), total=None, state="starting", numbers="")
                if not self.console.is_terminal:
                    self.say(f"{in_words(run)}: begins")
            done += self._show_run(run)
        self.bars.update(self.all, completed=done, state=self._counted())

    def end(self, run: Run, problem: str | None) -> None:
        """Nothing more will happen to it."""
        record = recorded(self.folder / run_place(*run))
        if record is not None:
            self._say_news(run, record)
        if run in self.tasks:
            self.bars.remove_task(self.tasks.pop(run))
        self.ended += 1
        self.bars.update(self.all, completed=self.ended, state=self._counted())
        self.say(f"{in_words(run)}: {problem or _result(record)} ({self._counted()})")

    def _show_run(self, run: Run) -> float:
        """Returns how much of it is done."""
        record = recorded(self.folder / run_place(*run))
        if record is None:
            return 0.0
        self._say_news(run, record)
        epochs, total = len(record.curves), int(record.config["epochs"])
        state = "measuring" if record.over else f"epoch {epochs} of {total}"
        numbers = _numbers(record, epochs - 1) if epochs else ""
        self.bars.update(self.tasks[run], completed=epochs, total=total, state=state, numbers=numbers)
        return epochs / max(total, 1)

    def _say_news(self, run: Run, record: RunRecord) -> None:
        """Epochs, where there are no bars that show them, and alarms everywhere."""
        for alarm in record.alarms[self.alarms.get(run, 0) :]:
            self.say(f"{in_words(run)}: ALARM, {alarm['kind']} at epoch {alarm['epoch']}: {alarm['message']}")
        if not self.console.is_terminal:
            for place in range(self.epochs.get(run, 0), len(record.curves)):
                self.say(f"{in_words(run)}: epoch {record.curves[place]['epoch']}: {_numbers(record, place)}")
        self.alarms[run], self.epochs[run] = len(record.alarms), len(record.curves)

    def _counted(self) -> str:
        return f"{self.ended} of {self.count} runs"


def _numbers(record: RunRecord, place: int) -> str:
    """What is known of an epoch: loss, metric, and how the iteration does."""
    curve = record.curves[place]
    found: dict[str, Any] = {"loss": curve["train_loss"], "metric": curve[record.metric]}
    for vitals in (each for each in record.vitals if each["epoch"] == curve["epoch"]):
        found |= {title: vitals[name] for name, title in VITALS.items() if vitals.get(name) is not None}
    return "  ".join(f"{name} {value:.3g}" for name, value in found.items())


def _result(record: RunRecord | None) -> str:
    if record is None or record.error is not None:
        return "failed"  # whoever keeps the study says why
    score = f", {record.metric} {record.selected.value:.4g} on dev" if record.selected.value is not None else ""
    return f"{record.status} after {record.wall_seconds:.0f} s{score}"
