"""Runs of a study in several processes of this machine.

A worker that dies, as one does that the system kills for its memory, costs what its run did since the last checkpoint:
another worker goes on from there.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from meq.experiments.executors.board import Board
from meq.experiments.executors.capacity import GB, cores, memory_of_a_run, workers_for
from meq.experiments.executors.packing import Packed, pack
from meq.experiments.executors.scheduling import Backlog, Ended, Job, Problem, Run, in_words, sharing
from meq.experiments.executors.worker import READY, Assignment, work
from meq.experiments.study import StudyError

LOOK = 0.3
"""Seconds between two looks at what the workers tell."""
GRACE = 15.0
"""Seconds that a worker has to leave its run resumable before it is killed."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes of this machine, each with a run at a time."""

    workers: int | None = None
    """As many as there are physical cores, and memory, unless given."""
    threads: int | None = None
    """Of torch, in each worker; the cores shared out among them unless given. The same number, the same bits."""
    memory: float | None = None
    """GB that a run needs; estimated unless given."""

    def work_off(self, job: Job) -> Generator[Ended, None, None]:
        need = int(self.memory * GB) if self.memory else memory_of_a_run(job.study, job.prepared)
        count = workers_for(need, len(job.left), self.workers)
        threads = self.threads or max(1, cores() // count)
        board = Board(job)
        board.say(
            f"{count} {'worker' if count == 1 else 'workers'} of {threads} "
            f"{'thread' if threads == 1 else 'threads'}, about {need / GB:.1f} GB for each run"
        )
        with ExitStack() as open_things:
            shared = open_things.enter_context(sharing(job.folder))
            packed = pack(job.prepared, shared / "tensors")
            pool = _Pool(job, board, packed, shared, count, threads)
            open_things.callback(pool.stop)
            open_things.enter_context(board)
            yield from pool.run()


@dataclass(kw_only=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    number: int
    log: Path
    run: Run | None = None
    ready: bool = False


class _Pool:
    """Workers, and which run each of them has."""

    def __init__(self, job: Job, board: Board, packed: Packed, shared: Path, count: int, threads: int) -> None:
        self.job, self.board, self.packed, self.shared = job, board, packed, shared
        self.count, self.threads, self.began = count, threads, 0
        self.backlog = Backlog(job.study, job.left)
        self.workers: list[_Worker] = []

    def run(self) -> Iterator[Ended]:
        while self.backlog:
            self._share_out()
            busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self.workers}
            for pipe in wait(list(busy), timeout=LOOK):
                yield from self._hear(busy[pipe])
            self.board.refresh()

    def _share_out(self) -> None:
        """Give every idle worker a run, and start another one for the next while there may be more."""
        while True:
            idle = next((worker for worker in self.workers if worker.run is None), None)
            if idle is None and len(self.workers) >= self.count:
                return
            run = self.backlog.take()
            if run is None:
                return
            worker = idle or self._start()
            worker.run = run
            self.began += 1
            told = self.shared / f"told-{self.began}"
            self.board.begin(run, told)
            try:
                worker.pipe.send((run, told))
            except OSError:
                continue  # it died while it was idle: its pipe says so to whoever waits for it

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a forked torch may wait for threads that were not forked
        ours, theirs = context.Pipe()
        taken = {worker.number for worker in self.workers}
        number = next(each for each in range(self.count) if each not in taken)
        assignment = Assignment(
            study=self.job.study,
            folder=self.job.folder,
            packed=self.packed,
            threads=self.threads,
            number=number,
            log=self.shared / f"log-{number}-{self.began}",
        )
        process = context.Process(target=work, args=(theirs, assignment), daemon=True, name=f"meq worker {number}")
        process.start()
        theirs.close()  # or its end would not be noticed
        self.workers.append(_Worker(process=process, pipe=ours, number=number, log=assignment.log))
        return self.workers[-1]

    def _hear(self, worker: _Worker) -> Iterator[Ended]:
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._bury(worker)
            return
        if message == READY:
            worker.ready = True
            return
        run, problem = message
        worker.run = None
        self.backlog.over(run)
        self.board.end(run, problem)
        yield Ended(run=run, problem=problem)

    def _bury(self, worker: _Worker) -> Iterator[Ended]:
        """A worker is gone; its run goes on elsewhere, unless it was lost too often."""
        self.workers.remove(worker)
        _end(worker, GRACE)
        how = _how_it_ended(worker)
        if not worker.ready and (worker.process.exitcode or 0) > 0:
            raise StudyError(
                f"a worker could not start: {how}. A script that runs a study in several processes must do so under "
                "`if __name__ == '__main__':`"
            )
        if worker.run is None:
            return
        run = worker.run
        if self.backlog.lost(run):
            self.board.leave(run)
            self.board.say(f"{in_words(run)}: its worker was lost ({how}); it goes on from its last checkpoint")
            return
        problem = Problem(words=f"lost: its worker ended {self.backlog.losses[run]} times, the last time {how}")
        self.board.end(run, problem)
        yield Ended(run=run, problem=problem)

    def stop(self) -> None:
        """End all workers; those with a run note in its record that it was interrupted."""
        if any(worker.run for worker in self.workers):
            self.board.say("stopping the workers; their runs are left so that they can go on")
        for worker in self.workers:
            worker.process.terminate()
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            _end(worker, max(0.0, deadline - time.monotonic()))


def _end(worker: _Worker, patience: float) -> None:
    worker.process.join(patience)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.pipe.close()


def _how_it_ended(worker: _Worker) -> str:
    code = worker.process.exitcode or 0
    if code < 0:
        memory = ", which the system sends when memory runs out" if -code == signal.SIGKILL else ""
        return f"by signal {signal.Signals(-code).name}{memory}"
    said = worker.log.read_text(errors="replace").strip() if worker.log.is_file() else ""
    return f"with exit code {code}" + (f": {said.splitlines()[-1]}" if said else "")
