"""Which run is next, and what those who work runs off have in common."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from meq.errors import is_memory, told
from meq.experiments.build import Prepared
from meq.experiments.study import Study, StudyError
from meq.files import is_full

Run = tuple[str, int]
"""An arm and a seed."""
RETRIES = 2
"""How often a run goes on after its worker was lost: what kills a worker every time is the run itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """The runs of a study that are still to be made."""

    study: Study
    folder: Path
    prepared: Prepared
    left: Sequence[Run]
    console: Console


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a run has no record that is over, in words."""

    words: str
    stops: bool = False
    """The other runs would meet the same: a full disk. The study stops, and no run is made after this one."""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run to which nothing more will happen: it has a record, or a problem."""

    run: Run
    problem: Problem | None = None
    """Why there is no record; a training that failed has one."""


class Executor(Protocol):
    """A way to make runs: one after the other, in processes, on a cluster."""

    def work_off(self, job: Job) -> Generator[Ended, None, None]:
        """Make the runs, each after the one that it needs; closing the generator stops what is under way."""
        ...


class Backlog:
    """Runs to be made, in the study's order. One that needs another waits until that one is over or given up."""

    def __init__(self, study: Study, left: Sequence[Run]) -> None:
        self.study, self.waiting = study, list(left)
        self.under_way: set[Run] = set()
        self.losses: Counter[Run] = Counter()

    def __bool__(self) -> bool:
        return bool(self.waiting or self.under_way)

    def take(self) -> Run | None:
        """The first one that can begin; None if all of them have to wait."""
        for run in self.waiting:
            need = self.study.needs(*run)
            if need not in self.waiting and need not in self.under_way:
                self.waiting.remove(run)
                self.under_way.add(run)
                return run
        if self.waiting and not self.under_way:
            names = ", ".join(sorted({arm for arm, _ in self.waiting}))
            raise StudyError(f"{self.study.name!r}: the arms {names} wait for each other")
        return None

    def over(self, run: Run) -> None:
        self.under_way.remove(run)

    def lost(self, run: Run) -> bool:
        """Its worker is gone; whether it is to be tried once more."""
        self.losses[run] += 1
        self.under_way.remove(run)
        again = self.losses[run] <= RETRIES
        if again:
            self.waiting.insert(0, run)
        return again


def in_words(run: Run) -> str:
    return f"{run[0]}, seed {run[1]}"


def problem_of(error: Exception) -> Problem:
    """What kept a run from its record. It is left so that it can go on, and is no result."""
    if is_out_of_memory(error):
        return Problem(
            words="the device has not enough memory for it; it is not counted as failed. Stop what else uses the "
            "device, or make fewer runs at a time (--workers), and the same command goes on with it. If it never fits, "
            "take --quick, or make the study in Python with a smaller batch_size and more accumulate, in another folder"
        )
    return Problem(words=f"could not be made: {told(error)}", stops=is_full(error))


def is_out_of_memory(error: BaseException | None) -> bool:
    """In the error itself, or in what it was raised from."""
    while error is not None:
        if is_memory(error):
            return True
        error = error.__cause__
    return False


def sharing_place(folder: Path) -> Path:
    return folder.resolve().with_name(f".{folder.resolve().name}.sharing")


@contextmanager
def sharing(folder: Path) -> Iterator[Path]:
    """A hidden folder beside the study's, for what its processes share while they run; it is gone afterwards.

    Beside, since in the study's folder every file must be accounted for; there, since it is on the same file system.
    """
    place = sharing_place(folder)
    shutil.rmtree(place, ignore_errors=True)  # of a process that was killed; whoever is here holds the study's lock
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
