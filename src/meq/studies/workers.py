"""Who makes the runs of a study: this process, several of them, or workers on machines that share its folder.

A run's folder and its lock are the queue. A worker takes the first run that is neither over nor locked and whose needs
are over, makes it, and looks for the next (`work`). Meanwhile a claim lies in the run's folder. The system releases the
lock of a worker that dies, but its claim stays: whoever takes the run after it sees how often that has happened,
and goes on from the last checkpoint, or gives the run up. What kept a run from its record is written in the claim, too.
So workers need to tell each other nothing, and `follow` knows from claims and records how far they have come.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from rich.console import Console

from meq.encoders.store import FeatureStore
from meq.errors import is_memory, told
from meq.records import BusyError, alone, dumps, is_full, loads, typed, write_bytes
from meq.studies.build import Places, PreparedData, prepare_data
from meq.studies.measures.contract import is_measured
from meq.studies.one_run import do_run, in_words, recorded
from meq.studies.study import Run, Study, StudyError, run_place

CLAIM = "worker.json"
RETRIES = 2
"""How often a run goes on after its worker was lost: what kills a worker every time is the run itself."""
LOOK_SECONDS = 0.3
"""Between two looks at the study's folder."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """The runs of a study that are still to be made."""

    study: Study
    folder: Path
    prepared: PreparedData
    left: Sequence[Run]
    console: Console


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """A run to which nothing more will happen: it has a record, or a problem."""

    run: Run
    problem: str | None = None
    """Why there is no record; a training that failed has one."""


class Executor(Protocol):
    """A way to make runs: one after the other, in processes, on a cluster."""

    elsewhere: ClassVar[bool]
    """Other processes make them, and read the features that this one has made from a store."""

    def work_off(self, job: Job) -> Generator[RunEnd, None, None]:
        """Make the runs, each after the one that it needs; closing the generator stops what is under way."""
        ...


# -- claims ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The note in a run's folder: which worker makes it, or why the run was given up."""

    worker: str
    """Empty once that worker is known to have ended."""
    lost: int = 0
    """Workers that died while they made this run."""
    problem: str | None = None
    """Why there is no record, in words."""


def read_claim(place: Path) -> Claim | None:
    try:
        content = (place / CLAIM).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not content:  # just made, where there are no locks
        return Claim(worker="unknown")
    return typed(Claim, loads(content, str(place / CLAIM)), str(place / CLAIM))


def clear_claims(study: Study, folder: Path) -> None:
    """Remove the claims of killed workers and of runs that were given up, so that all of them are tried again."""
    for run in study.runs():
        place = folder / run_place(*run)
        if (place / CLAIM).is_file():
            with suppress(BusyError), alone(place, "a worker has it"):
                (place / CLAIM).unlink(missing_ok=True)


def is_settled(study: Study, folder: Path, run: Run) -> bool:
    """Whether a run has failed, or has its record and all measures."""
    place = folder / run_place(*run)
    record = recorded(place)
    if record is None or not record.over:
        return False
    return not record.scored or all(is_measured(place, name) for name in study.measures)


def has_ended(study: Study, folder: Path, run: Run) -> bool:
    """Whether a run is settled, or was given up."""
    claim = read_claim(folder / run_place(*run))
    return (claim is not None and claim.problem is not None) or is_settled(study, folder, run)


def is_open(study: Study, folder: Path, run: Run) -> bool:
    """Whether a run can be begun, or gone on with, if no other process holds it.

    A run whose need was given up is tried: it says what it lacks.
    """
    need = study.needs(*run)
    return not has_ended(study, folder, run) and (need is None or has_ended(study, folder, need))


def check_needs(study: Study) -> None:
    """An error if there is no run to begin with."""
    for arm in study.arms:
        chain, name = [arm.name], arm.floor_from
        while name is not None:
            if name in chain:
                raise StudyError(f"{study.name!r}: the arms {', '.join(sorted(chain))} wait for each other")
            chain.append(name)
            name = study.arm(name).floor_from


# -- a worker ----------------------------------------------------------------------------------------------------------


def work(
    job: Job, *, worker: str, retries: int = RETRIES, tolerant: bool = True, wait_for_others: bool = True
) -> Iterator[RunEnd]:
    """Make one run after the other; yields every run once it has ended, whoever made it.

    While other processes make what is left, this one waits: the run of one that dies is free again. Without
    `wait_for_others` it returns instead. A full disk is always raised, since other runs would meet it, too. Any other
    error is the run's problem; unless `tolerant` it is raised as well, but for memory that ran out: others may fit.
    """
    pending = list(job.left)
    waiting = False
    while pending:
        ended = None
        for run in pending:
            ended = ended_run(job, run) or _take(job, run, worker, retries, tolerant)
            if ended is not None:
                break  # and begin with the first: it may be open by now
        if ended is not None:
            waiting = False
            pending.remove(ended.run)
            yield ended
        elif not wait_for_others:
            return
        else:
            if not waiting:
                job.console.print(f"other processes make the {len(pending)} runs that are left", highlight=False)
            waiting = True
            time.sleep(LOOK_SECONDS)


def ended_run(job: Job, run: Run) -> RunEnd | None:
    """Whether a run has ended, as its folder shows it."""
    claim = read_claim(job.folder / run_place(*run))
    if claim is not None and claim.problem is not None:
        return RunEnd(run=run, problem=claim.problem)
    if not is_settled(job.study, job.folder, run):
        return None
    # its worker may still be at the very end of the run; the claim of one that was killed there says nothing
    return RunEnd(run=run) if claim is None or not is_held(job, run) else None


def is_held(job: Job, run: Run) -> bool:
    """Whether the process that claimed a run is still there."""
    try:
        with alone(job.folder / run_place(*run), "a worker has it"):
            return False
    except BusyError:
        return True


def _take(job: Job, run: Run, worker: str, retries: int, tolerant: bool) -> RunEnd | None:
    """Make a run; None if that is not for this process to do."""
    place = job.folder / run_place(*run)
    if not is_open(job.study, job.folder, run):
        return None
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(alone(place, f"another process is at work on the run in {place}"))
        except BusyError:
            return None
        if not is_open(job.study, job.folder, run):  # another process was faster
            return None
        before = read_claim(place)
        if not locked and not _claimed_alone(place, before):
            return None
        claim = Claim(worker=worker, lost=0 if before is None else before.lost + 1)
        if claim.lost > retries:
            return _give_up(place, run, claim, f"lost: its worker ended {claim.lost} times while it was made")
        return _make(job, run, claim, tolerant)


def _claimed_alone(place: Path, before: Claim | None) -> bool:
    """On a file system without locks the claim is the lock, which no system releases: `release` has to."""
    if before is not None:
        return not before.worker
    try:
        (place / CLAIM).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _make(job: Job, run: Run, claim: Claim, tolerant: bool) -> RunEnd:
    """With the run's lock. A claim is left behind by a process that is killed, and by a run that is given up."""
    place, runs = job.folder / run_place(*run), list(job.study.runs())
    job.console.print(f"run {runs.index(run) + 1} of {len(runs)}: {in_words(run)}")
    try:
        _write_claim(place, claim)
        do_run(job.study, job.folder, run, prepared=job.prepared, console=job.console)
    except BaseException as error:
        if isinstance(error, Exception) and not is_full(error) and (tolerant or is_out_of_memory(error)):
            return _give_up(place, run, claim, problem_of(error))
        (place / CLAIM).unlink(missing_ok=True)
        raise
    (place / CLAIM).unlink(missing_ok=True)
    return RunEnd(run=run)


def _give_up(place: Path, run: Run, claim: Claim, problem: str) -> RunEnd:
    _write_claim(place, replace(claim, problem=problem))
    return RunEnd(run=run, problem=problem)


def _write_claim(place: Path, claim: Claim) -> None:
    write_bytes(place / CLAIM, dumps(claim).encode())


def problem_of(error: Exception) -> str:
    """What kept a run from its record. It is left so that it can go on, and is no result."""
    if is_out_of_memory(error):
        return (
            "the device has not enough memory for it; it is not counted as failed. Stop what else uses the "
            "device, or make fewer runs at a time (--workers), and the same command goes on with it. If it never fits, "
            "take --quick, or make the study in Python with a smaller batch_size and more accumulate, in another folder"
        )
    return f"could not be made: {told(error)}"


def is_out_of_memory(error: BaseException | None) -> bool:
    """In the error itself, or in what it was raised from."""
    while error is not None:
        if is_memory(error):
            return True
        error = error.__cause__
    return False


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker in another process has to know."""

    study: Study
    folder: Path
    places: Places
    threads: int
    retries: int
    worker: str


def run_worker(given: Assignment, console: Console) -> None:
    """In that process: runs, until none is left for it."""
    torch.set_num_threads(given.threads)
    job = job_of_worker(given.study, given.folder, given.places, console)
    for _ in work(job, worker=given.worker, retries=given.retries, wait_for_others=False):
        pass


def job_of_worker(study: Study, folder: Path, places: Places, console: Console) -> Job:
    """All runs of the study, in a process that was started to make some of them.

    The features of its data are in the store already; what its measures encode besides stays with this process.
    """
    prepared = prepare_data(study.data, places)
    if isinstance(places.store, FeatureStore):
        prepared = replace(prepared, places=replace(places, store=None))
    return Job(study=study, folder=folder, prepared=prepared, left=list(study.runs()), console=console)


def claimed_by(job: Job, worker: str) -> Run | None:
    """The run that a worker has, or had when it ended, as long as no other one has taken it."""
    claims = ((run, read_claim(job.folder / run_place(*run))) for run in job.left)
    return next((run for run, claim in claims if claim is not None and claim.worker == worker), None)


def release(job: Job, worker: str) -> Run | None:
    """The run that a worker had when it ended: from now on it is nobody's."""
    run = claimed_by(job, worker)
    if run is not None:
        place = job.folder / run_place(*run)
        with suppress(BusyError), alone(place, "another worker has it"):
            claim = read_claim(place)
            if claim is not None and claim.worker == worker:
                _write_claim(place, replace(claim, worker=""))
    return run


# -- one process -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Serial:
    """One run after the other, in this process; an error that is no failed training ends the study."""

    elsewhere: ClassVar[bool] = False

    def work_off(self, job: Job) -> Generator[RunEnd, None, None]:
        for ended in work(job, worker=this_worker(), tolerant=False):
            if ended.problem is not None:
                words = f"{in_words(ended.run)}: {ended.problem}"
                job.console.print(words, markup=False, highlight=False, soft_wrap=True)
            yield ended


def this_worker() -> str:
    return f"{socket.gethostname()} {os.getpid()}"
