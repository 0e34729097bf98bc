"""Several workers on this machine: as many as its cores and memory have room for, each a process of its own.

`follow` keeps any workers going, those of `meq.studies.cluster` too, and shows how far their runs have come.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn

import psutil  # type: ignore[import-untyped]
import torch
from rich.console import Console

from meq.encoders.store import FeatureStore
from meq.records import NoSpaceError, is_full
from meq.studies.build import Places, PreparedData, build_model, build_objective
from meq.studies.cost import PeakBytes
from meq.studies.display import StudyDisplay
from meq.studies.one_run import in_words
from meq.studies.study import Study, StudyError, run_place
from meq.studies.workers import (
    LOOK_SECONDS,
    RETRIES,
    Assignment,
    Job,
    RunEnd,
    claimed_by,
    ended_run,
    is_held,
    is_open,
    read_claim,
    release,
    run_worker,
    this_worker,
)
from meq.training.updates import sample_seeds

GRACE_SECONDS = 15.0
"""How long a worker may take to leave its run resumable before it is killed."""
FULL = 28
"""The exit code of a worker that met a full disk."""
DEVICES = "CUDA_VISIBLE_DEVICES"

# -- how many ----------------------------------------------------------------------------------------------------------

GB = 10**9
PROCESS = 0.6 * GB
"""Python and torch, before there is a model."""
PER_PARAMETER = 20
"""Bytes: weights, gradients, two moments of AdamW, and the copy that a checkpoint makes."""
SPARED = 0.9
"""Of the free memory: the rest is for whatever else the machine does."""


def cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def memory_of_a_run(study: Study, prepared: PreparedData) -> int:
    """Bytes, for the largest arm: estimated from one forward and backward pass of one example."""
    needs, seed = [], study.seeds[0]
    for arm in study.arms:
        data, config = prepared.seen_by(arm), study.config(arm.name, seed)
        model, objective = build_model(study, arm, data, seed), build_objective(arm, data)
        batch = data.collate([data.splits["train"][0]])
        parameters = sum(each.numel() for each in model.parameters())
        seeds = sample_seeds(seed, 0, batch.ids)
        with PeakBytes([*model.parameters(), *batch.features.values()]) as memory:
            output = model.train()(batch.features, batch.masks, seeds=seeds)
            objective(model, output, batch.target, seeds=seeds).total.backward()
        for_samples = max(0, memory.peak - 4 * parameters) * config.batch_size
        needs.append(int(PROCESS + PER_PARAMETER * parameters + for_samples))
    return max(needs)


def workers_for(need: int, runs: int, wanted: int | None) -> int:
    """As many as were asked for; otherwise one per core, as long as their memory and the runs suffice."""
    if wanted is not None:
        if wanted < 1:
            raise StudyError(f"{wanted} workers can do nothing: give at least one")
        return min(wanted, runs)
    fitting = int(SPARED * free_memory() // need)
    if fitting < 1:
        raise StudyError(
            f"a run needs about {need / GB:.1f} GB and {free_memory() / GB:.1f} GB are free: stop something else, "
            "give the memory that a run really needs (--memory), or the number of workers (--workers)"
        )
    return max(1, min(cores(), fitting, runs))


# -- keeping workers going ---------------------------------------------------------------------------------------------


class Workers(ABC):
    """Workers that `follow` keeps going, in whatever processes they are: at most so many at the same time."""

    def __init__(self, job: Job, *, most: int, threads: int, retries: int) -> None:
        self.job, self.most, self.threads, self.retries = job, most, threads, retries
        self.alive: dict[Any, Any] = {}
        """Those that have not ended; what stands in it is the subclass's."""
        self.began = 0

    def assignment(self) -> Assignment:
        """What the next worker is told."""
        self.began += 1
        return Assignment(
            study=self.job.study,
            folder=self.job.folder.resolve(),
            places=self.job.prepared.places,
            threads=self.threads,
            retries=self.retries,
            worker=f"{this_worker()} {self.began}",
        )

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def lost(self) -> list[tuple[str, str]]:
        """Those that ended without being asked, each with how it ended, once; wait a moment if there are none."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers; those with a run note in its record that it was interrupted."""


def follow(job: Job, workers: Workers) -> Generator[RunEnd, None, None]:
    """Keep workers going while there are runs for them; yield the runs as they end, and show those under way."""
    pending = list(job.left)
    display = StudyDisplay(job.study, job.folder, job.console, job.left)
    with display.bars:
        try:
            while pending:
                for worker, how in workers.lost():
                    run = release(job, worker)
                    whose = "a worker" if run is None else f"{in_words(run)}: its worker"
                    display.say(f"{whose} was lost ({how}); what it made goes on from its last checkpoint")
                claims = {run: claim for run in pending if (claim := read_claim(job.folder / run_place(*run)))}
                display.show([run for run, claim in claims.items() if claim.problem is None])
                for ended in [each for run in pending if (each := ended_run(job, run)) is not None]:
                    pending.remove(ended.run)
                    display.end(ended.run, ended.problem)
                    yield ended
                held = {run for run in claims if run in pending and is_held(job, run)}
                free = [run for run in pending if run not in held and is_open(job.study, job.folder, run)]
                idle = max(0, len(workers.alive) - len(held))
                for _ in range(min(workers.most - len(workers.alive), len(free) - idle)):
                    workers.start()
        finally:
            if pending:
                display.say("stopping the workers; their runs are left so that they can go on")
            workers.stop()


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes of this machine, each with a run at a time."""

    elsewhere: ClassVar[bool] = True
    workers: int | None = None
    """As many as there are physical cores, and memory, unless given."""
    threads: int | None = None
    """Of torch, in each worker; the cores shared out among them unless given. The same number, the same bits."""
    memory: float | None = None
    """GB that a run needs; estimated unless given."""
    retries: int = RETRIES

    def work_off(self, job: Job) -> Generator[RunEnd, None, None]:
        need = int(self.memory * GB) if self.memory else memory_of_a_run(job.study, job.prepared)
        count = workers_for(need, len(job.left), self.workers)
        threads = self.threads or max(1, cores() // count)
        words = f"{count} {'worker' if count == 1 else 'workers'} of {threads} "
        words += f"{'thread' if threads == 1 else 'threads'}, about {need / GB:.1f} GB for each run"
        job.console.print(words, highlight=False)
        yield from follow(job, _Processes(job, most=count, threads=threads, retries=self.retries))


def sharing_place(folder: Path) -> Path:
    return folder.resolve().with_name(f".{folder.resolve().name}.sharing")


@contextmanager
def shared_features(folder: Path, places: Places) -> Iterator[Places]:
    """Features in a store that all workers read: the user's, else one that is gone afterwards.

    It lies in a hidden folder beside the study's, which holds the workers' logs, too. Beside, since in the study's
    folder every file must be accounted for; there, since it is on the same file system.
    """
    place = sharing_place(folder)
    shutil.rmtree(place, ignore_errors=True)  # of a process that was killed; whoever is here holds the study's lock
    place.mkdir(mode=0o700)
    try:
        # float32: the bits that features have in memory
        yield (
            places if places.store else replace(places, store=FeatureStore(folder=place / "features", dtype="float32"))
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Processes(Workers):
    """By a number below `most`: the process, its worker's name and its log."""

    alive: dict[int, tuple[BaseProcess, str, Path]]

    def start(self) -> None:
        number = next(each for each in range(self.most) if each not in self.alive)
        given = self.assignment()
        log = sharing_place(self.job.folder) / f"log-{self.began}"
        context = multiprocessing.get_context("spawn")  # a forked torch may wait for threads that were not forked
        name = f"meq worker {number}"
        process = context.Process(target=_run_process, args=(given, number, log), daemon=True, name=name)
        process.start()
        self.alive[number] = (process, given.worker, log)

    def lost(self) -> list[tuple[str, str]]:
        wait([process.sentinel for process, _, _ in self.alive.values()], timeout=LOOK_SECONDS)
        found = []
        for number, (process, worker, log) in list(self.alive.items()):
            if process.is_alive():
                continue
            process.join()
            del self.alive[number]
            how = _how_it_ended(process.exitcode or 0, log)
            if process.exitcode == FULL:
                raise NoSpaceError(how)
            if (process.exitcode or 0) > 0 and claimed_by(self.job, worker) is None:
                raise StudyError(
                    f"a worker could not start: {how}. A script that runs a study in several processes must do so "
                    "under `if __name__ == '__main__':`"
                )
            if process.exitcode != 0:
                found.append((worker, how))
        return found

    def stop(self) -> None:
        for process, _, _ in self.alive.values():
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process, _, _ in self.alive.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self.alive.clear()


def _how_it_ended(code: int, log: Path) -> str:
    if code < 0:
        memory = ", which the system sends when memory runs out" if signal.Signals(-code).name == "SIGKILL" else ""
        return f"by signal {signal.Signals(-code).name}{memory}"
    said = log.read_text(errors="replace").strip() if log.is_file() else ""
    return f"with exit code {code}" + (f": {said.splitlines()[-1]}" if said else "")


def _run_process(given: Assignment, number: int, log: Path) -> None:
    """A worker until a signal says stop, or the process that started it is gone.

    What is printed goes to the log: the display belongs to that process. `number` decides which GPU is used.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; one of them decides
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _print_to(log)
    _take_a_device(number)
    with suppress(KeyboardInterrupt):
        try:
            run_worker(given, Console(file=sys.stdout, width=10_000))
        except Exception as error:
            if not is_full(error):
                raise
            print(error, flush=True)
            sys.exit(FULL)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A training that is interrupted says so in its record; only once, or it could not finish saying it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """If the process that started this one is gone, so is the study: this process interrupts itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _print_to(log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def _take_a_device(number: int) -> None:
    """One GPU for each worker, in turn; nothing has been asked of CUDA yet, so the choice still counts."""
    there = [str(each) for each in range(torch.cuda.device_count())]
    named = os.environ.get(DEVICES)
    devices = [each.strip() for each in named.split(",") if each.strip()] if named is not None else there
    if devices:
        os.environ[DEVICES] = devices[number % len(devices)]
