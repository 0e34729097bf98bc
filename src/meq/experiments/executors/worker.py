"""A process that makes runs, one after the other, as it is told through a pipe."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from meq.experiments.build import Prepared
from meq.experiments.executors.one_run import do_run
from meq.experiments.executors.packing import Packed, unpack
from meq.experiments.executors.scheduling import Problem, Run, problem_of
from meq.experiments.executors.telling import Teller
from meq.experiments.study import Study

READY = "ready"
DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker has to know, whatever run it makes."""

    study: Study
    folder: Path
    packed: Packed
    threads: int
    number: int
    """Among the workers: it decides which GPU is used, where there are several."""
    log: Path
    """For what libraries print: the display belongs to the process that started this one."""


def work(pipe: Connection, assignment: Assignment) -> None:
    """Receive (run, file to tell in), send (run, problem or None); until the pipe ends, or a signal says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; one of them decides
    signal.signal(signal.SIGTERM, _interrupt)
    _print_to(assignment.log)
    _take_a_device(assignment.number)
    torch.set_num_threads(assignment.threads)
    with suppress(KeyboardInterrupt, BrokenPipeError):
        prepared = unpack(assignment.packed)
        pipe.send(READY)
        tasks = _tasks(pipe)
        while (task := tasks.get()) is not None:
            run, told = task
            pipe.send((run, make_run(assignment.study, assignment.folder, run, prepared, Teller(file=told))))


def make_run(study: Study, folder: Path, run: Run, prepared: Prepared, teller: Teller) -> Problem | None:
    """What kept the run from having a record; None if it has one."""
    try:
        do_run(study, folder, run, prepared=prepared, console=teller.console(), bar=teller.bar)
    except Exception as error:
        return problem_of(error)
    return None


def _tasks(pipe: Connection) -> queue.Queue[tuple[Run, Path] | None]:
    """What comes through the pipe. If its other end is gone, so is the study: this process ends as if told to."""
    tasks: queue.Queue[tuple[Run, Path] | None] = queue.Queue()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                tasks.put(pipe.recv())
        tasks.put(None)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    return tasks


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A training that is interrupted says so in its record; only once, or it could not finish saying it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


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
