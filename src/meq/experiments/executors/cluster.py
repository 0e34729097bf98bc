"""Runs of a study as tasks of Ray, on a cluster that is there or on one of this machine.

Data travels as paths: the study's folder, and what the data set and a feature store read, must be on a file system that
all nodes share, at the same place. Ray's own retries are off: a lost run is counted and told here, as it is for local
workers, and goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from meq.experiments.executors.board import Board
from meq.experiments.executors.capacity import GB, cores, memory_of_a_run
from meq.experiments.executors.packing import Packed, pack, unpack
from meq.experiments.executors.scheduling import Backlog, Ended, Job, Problem, Run, in_words, sharing
from meq.experiments.executors.telling import Teller
from meq.experiments.executors.worker import make_run
from meq.experiments.study import STUDY, Study, StudyError
from meq.files import sha256
from meq.training.environment import versions

LOOK = 0.5
"""Seconds between two looks at what the runs tell."""
GRACE = 15.0
"""Seconds that a task has to leave its run resumable before it is killed."""
INSTALL = "Ray is not installed: pip install 'meq[cluster]'"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Tasks of Ray, each with a run."""

    address: str | None = None
    """Of a cluster, such as 10.0.0.1:6379 or auto. Unless given: the one this process or machine belongs to, and if
    there is none, one that is started here and ended with the study."""
    workers: int | None = None
    """Runs at the same time; as many as the cluster has room for unless given."""
    cpus: int = 1
    """Cores of a run, and its threads of torch. The same number, the same bits."""
    gpus: float = 0
    memory: float | None = None
    """GB that a run needs; estimated unless given."""
    trusted: bool = False
    """Nodes beyond this machine may take part. Ray sends code and data as pickles: each side runs what the other sends,
    and on the way nothing is encrypted unless the cluster says so."""

    def work_off(self, job: Job) -> Generator[Ended, None, None]:
        if self.workers is not None and self.workers < 1:
            raise StudyError(f"{self.workers} workers can do nothing: give at least one")
        need = int(self.memory * GB) if self.memory else memory_of_a_run(job.study, job.prepared)
        with ExitStack() as open_things:
            ray = open_things.enter_context(_connected(self.address, self._local_cpus(job), trusted=self.trusted))
            asked = {"num_cpus": self.cpus, "num_gpus": self.gpus, "memory": need}
            nodes = _fitting_nodes(ray, asked)
            shared = open_things.enter_context(sharing(job.folder))
            board = Board(job)
            board.say(f"Ray: {nodes} with room for a run of {self.cpus} CPUs and {need / GB:.1f} GB")
            tasks = _Tasks(ray, job, board, asked, self.workers)
            tasks.share(pack(job.prepared, shared / "tensors"), shared)
            open_things.callback(tasks.stop)
            open_things.enter_context(board)
            yield from tasks.run()

    def _local_cpus(self, job: Job) -> int:
        """For a cluster of this machine: what is asked for, even if that is more than it has."""
        return max(cores(), self.cpus) if self.workers is None else self.cpus * min(self.workers, len(job.left))


@dataclass(frozen=True, kw_only=True)
class _Errand:
    """What a task has to know, whatever run it makes."""

    study: Study
    study_sha256: str
    folder: Path
    working_folder: Path
    version: str
    threads: int


class _Tasks:
    """Tasks of Ray, and which run each of them makes."""

    def __init__(self, ray: Any, job: Job, board: Board, asked: dict[str, Any], workers: int | None) -> None:
        self.ray, self.job, self.board, self.workers = ray, job, board, workers
        self.backlog = Backlog(job.study, job.left)
        self.task = ray.remote(**asked, max_retries=0, max_calls=0)(_do_errand)
        self.errand = _Errand(
            study=job.study,
            study_sha256=sha256(job.folder / STUDY),
            folder=job.folder.resolve(),
            working_folder=Path.cwd(),
            version=versions()["meq"],
            threads=asked["num_cpus"],
        )
        self.runs: dict[Any, Run] = {}
        self.began = 0

    def share(self, packed: Packed, shared: Path) -> None:
        """Put into Ray's memory what all tasks are given."""
        self.shared, self.packed = shared, self.ray.put(packed)

    def run(self) -> Iterator[Ended]:
        while self.backlog:
            self._submit()
            over, _ = self.ray.wait(list(self.runs), num_returns=1, timeout=LOOK)
            for task in over:
                yield from self._ended(task)
            self.board.refresh()

    def _submit(self) -> None:
        while self.workers is None or len(self.runs) < self.workers:
            run = self.backlog.take()
            if run is None:
                return
            self.began += 1
            told = self.shared / f"told-{self.began}"
            self.runs[self.task.remote(self.errand, self.packed, run, told)] = run
            self.board.begin(run, told)

    def _ended(self, task: Any) -> Iterator[Ended]:
        run, errors = self.runs.pop(task), self.ray.exceptions
        try:
            problem = self.ray.get(task)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError) as e:
            how = type(e).__name__
            if self.backlog.lost(run):
                self.board.leave(run)
                self.board.say(f"{in_words(run)}: its worker was lost ({how}); it goes on from its last checkpoint")
                return
            problem = Problem(words=f"lost: its worker ended {self.backlog.losses[run]} times, the last time by {how}")
        except errors.RayError as error:
            self.backlog.over(run)
            problem = Problem(words=f"could not be made: {error}")
        else:
            self.backlog.over(run)
        self.board.end(run, problem)
        yield Ended(run=run, problem=problem)

    def stop(self) -> None:
        """End all tasks; those that have begun note in their records that they were interrupted."""
        if not self.runs:
            return
        self.board.say("stopping the tasks; their runs are left so that they can go on")
        for task in self.runs:
            self.ray.cancel(task, force=False)
        _, left = self.ray.wait(list(self.runs), num_returns=len(self.runs), timeout=GRACE)
        for task in left:
            self.ray.cancel(task, force=True)


def _do_errand(errand: _Errand, packed: Packed, run: Run, told: Path) -> Problem | None:
    """In the task: the run, or why not."""
    import torch

    if problem := _unfit(errand):
        return Problem(words=problem)
    os.chdir(errand.working_folder)  # paths of the data may start from there
    torch.set_num_threads(errand.threads)
    return make_run(errand.study, errand.folder, run, unpack(packed), Teller(file=told))


def _unfit(errand: _Errand) -> str | None:
    """Why this node cannot make a run of the study."""
    node, file = socket.gethostname(), errand.folder / STUDY
    if not file.is_file() or sha256(file) != errand.study_sha256 or not errand.working_folder.is_dir():
        return (
            f"could not be made on {node}, which does not see {errand.folder} and {errand.working_folder} as this "
            "machine does: all nodes need a file system that they share, with the study and its data on it"
        )
    if errand.version != (here := versions()["meq"]):
        return f"could not be made on {node}: it has meq {here}, the study runs with {errand.version}"
    return None


def _fitting_nodes(ray: Any, asked: dict[str, Any]) -> str:
    """How many nodes could make a run; an error if none could, since Ray would wait for one for ever."""
    wanted = {"CPU": asked["num_cpus"], "GPU": asked["num_gpus"], "memory": asked["memory"]}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = sum(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes)
    if not fitting:
        offers = "; ".join(
            f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs, {node.get('memory', 0) / GB:.1f} GB"
            for node in nodes
        )
        raise StudyError(
            f"no node of the cluster has room for a run of {wanted['CPU']} CPUs, {wanted['GPU']} GPUs and "
            f"{wanted['memory'] / GB:.1f} GB; they have {offers}"
        )
    return f"{fitting} {'node' if fitting == 1 else 'nodes'}"


@contextmanager
def _connected(address: str | None, local_cpus: int, *, trusted: bool = False) -> Iterator[Any]:
    """Ray, connected to a cluster; what was started or connected here is ended here, and nothing else."""
    if not trusted:
        _refuse_elsewhere([_host(given) for given in (address, os.environ.get("RAY_ADDRESS")) if given])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise StudyError(INSTALL) from error
    connected = ray.is_initialized()
    if connected and address not in (None, "auto"):
        raise StudyError("this process is connected to a cluster of Ray already: leave out the address")
    if not connected:
        _connect(ray, address, local_cpus)
    try:
        if not trusted:  # a cluster that this machine belongs to may have other nodes
            _refuse_elsewhere([node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
        yield ray
    finally:
        if not connected:
            ray.shutdown()


def _refuse_elsewhere(hosts: Iterable[str]) -> None:
    """An error if one of them is another machine, before anything of the study is sent."""
    here = _own_names()
    elsewhere = sorted({host for host in hosts if host.lower() not in here})
    if elsewhere:
        raise StudyError(
            f"the cluster of Ray reaches beyond this machine: {', '.join(elsewhere[:4])}"
            f"{', ...' if len(elsewhere) > 4 else ''}. Code and data go there as pickles, which whoever controls those "
            "machines can read and answer with code that runs here. If you trust all of them, say so with "
            "--trust-cluster (trusted=True)"
        )


def _own_names() -> set[str]:
    """How this machine is called: its interfaces, its name, and what Ray takes for itself."""
    interfaces = [each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found]
    own = {"auto", "local", "localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()}
    return {name.lower() for name in (*own, *interfaces)}


def _host(address: str) -> str:
    """Of "10.0.0.1:6379", "ray://head:10001" or "[fe80::1]:6379"."""
    bare = address.rpartition("://")[2]
    if bare.startswith("["):
        return bare[1:].partition("]")[0]
    return bare.partition(":")[0] if bare.count(":") == 1 else bare


def _connect(ray: Any, address: str | None, local_cpus: int) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=address or "auto", **quiet)
    except ConnectionError as error:
        if address is not None or os.environ.get("RAY_ADDRESS"):
            where = address or os.environ["RAY_ADDRESS"]
            raise StudyError(f"there is no cluster of Ray at {where}: {error}") from error
        ray.init(address="local", num_cpus=local_cpus, include_dashboard=False, **quiet)
