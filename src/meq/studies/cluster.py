"""Workers as tasks of Ray, on a cluster that is there or on one of this machine.

Data travels as paths: the study's folder, and what the data set and a feature store read, must be on a file system that
all nodes share, at the same place. Ray's own retries are off: a lost worker is replaced here, as it is on one machine,
and its run goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil  # type: ignore[import-untyped]
from rich.console import Console

from meq.errors import needs
from meq.records import sha256
from meq.studies.local import GB, GRACE_SECONDS, Workers, cores, follow, memory_of_a_run, workers_for
from meq.studies.study import STUDY, StudyError
from meq.studies.workers import LOOK_SECONDS, RETRIES, Assignment, Job, RunEnd, run_worker
from meq.training.record import versions


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Tasks of Ray, each of which makes one run after the other."""

    elsewhere: ClassVar[bool] = True
    address: str | None = None
    """Of a cluster, such as 10.0.0.1:6379 or auto. Unless given: the one this process or machine belongs to, and if
    there is none, one that is started here and ended with the study."""
    workers: int | None = None
    """Runs at the same time; as many as the cluster has room for unless given."""
    cpus: int = 1
    """Cores of a run, and its threads of torch. The same number, the same bits."""
    gpus: float | None = None
    """Of a run; 1 unless given where the cluster has any, else 0."""
    memory: float | None = None
    """GB that a run needs; estimated unless given."""
    trusted: bool = False
    """Nodes beyond this machine may take part. Ray sends code and data as pickles: each side runs what the other sends,
    and on the way nothing is encrypted unless the cluster says so."""
    retries: int = RETRIES

    def work_off(self, job: Job) -> Generator[RunEnd, None, None]:
        need = int(self.memory * GB) if self.memory else memory_of_a_run(job.study, job.prepared)
        most = len(job.left) if self.workers is None else workers_for(need, len(job.left), self.workers)
        # for a cluster of this machine: what is asked for, even if that is more than it has
        local_cpus = max(cores(), self.cpus) if self.workers is None else self.cpus * most
        with connected(self.address, local_cpus, trusted=self.trusted) as ray:
            gpus = gpus_of_a_run(ray.nodes()) if self.gpus is None else self.gpus
            asked = {"num_cpus": self.cpus, "num_gpus": gpus, "memory": need}
            nodes = _fitting_nodes(ray, asked)
            devices = f", {gpus:g} GPUs" if gpus else ""
            words = f"Ray: {nodes} with room for a run of {self.cpus} CPUs{devices} and {need / GB:.1f} GB"
            job.console.print(words, highlight=False)
            yield from follow(job, _Tasks(ray, job, asked, most=most, retries=self.retries))


@dataclass(frozen=True, kw_only=True)
class Home:
    """What a node has to share with the machine that runs the study."""

    study_sha256: str
    working_folder: Path
    version: str


class _Tasks(Workers):
    """By task of Ray: its worker's name. Those for which there is no room yet wait in Ray's queue."""

    alive: dict[Any, str]

    def __init__(self, ray: Any, job: Job, asked: dict[str, Any], *, most: int, retries: int) -> None:
        super().__init__(job, most=most, threads=asked["num_cpus"], retries=retries)
        self.ray = ray
        self.task = ray.remote(**asked, max_retries=0, max_calls=0)(work_as_task)
        self.home = Home(study_sha256=sha256(job.folder / STUDY), working_folder=Path.cwd(), version=versions()["meq"])

    def start(self) -> None:
        given = self.assignment()
        self.alive[self.task.remote(given, self.home)] = given.worker

    def lost(self) -> list[tuple[str, str]]:
        if not self.alive:
            time.sleep(LOOK_SECONDS)
            return []
        found, errors = [], self.ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError)
        for task in self.ray.wait(list(self.alive), num_returns=1, timeout=LOOK_SECONDS)[0]:
            worker = self.alive.pop(task)
            try:
                self.ray.get(task)
            except errors.RayTaskError as error:  # raised in the task: its words are those of the error there
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except lost as error:
                found.append((worker, type(error).__name__))
            except errors.RayError as error:
                raise StudyError(f"Ray could not run a worker: {error}") from error
        return found

    def stop(self) -> None:
        if not self.alive:
            return
        for task in self.alive:
            self.ray.cancel(task, force=False)
        _, left = self.ray.wait(list(self.alive), num_returns=len(self.alive), timeout=GRACE_SECONDS)
        for task in left:
            self.ray.cancel(task, force=True)


def work_as_task(given: Assignment, home: Home) -> None:
    refuse_unfit(given.folder, home)
    os.chdir(home.working_folder)  # paths of the data may start from there
    run_worker(given, Console(quiet=True))


def refuse_unfit(folder: Path, home: Home) -> None:
    """An error if this node cannot make runs of the study."""
    node, file = socket.gethostname(), folder / STUDY
    if not file.is_file() or sha256(file) != home.study_sha256 or not home.working_folder.is_dir():
        raise StudyError(
            f"runs cannot be made on {node}, which does not see {folder} and {home.working_folder} as this "
            "machine does: all nodes need a file system that they share, with the study and its data on it"
        )
    if home.version != (here := versions()["meq"]):
        raise StudyError(f"runs cannot be made on {node}: it has meq {here}, the study runs with {home.version}")


def gpus_of_a_run(nodes: Sequence[Mapping[str, Any]]) -> int:
    """One where a node that is alive has any: a run that asked for none would not see it."""
    return int(any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in nodes))


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
def connected(address: str | None, local_cpus: int, *, trusted: bool = False) -> Iterator[Any]:
    """Ray, connected to a cluster; what was started or connected here is ended here, and nothing else."""
    if not trusted:
        _refuse_elsewhere([_host(given) for given in (address, os.environ.get("RAY_ADDRESS")) if given])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise StudyError(needs("ray", "a cluster")) from error
    joined = ray.is_initialized()
    if joined and address not in (None, "auto"):
        raise StudyError("this process is connected to a cluster of Ray already: leave out the address")
    if not joined:
        _connect(ray, address, local_cpus)
    try:
        if not trusted:  # a cluster that this machine belongs to may have other nodes
            _refuse_elsewhere([node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
        yield ray
    finally:
        if not joined:
            ray.shutdown()


def _refuse_elsewhere(hosts: Iterable[str]) -> None:
    """An error if one of them is another machine, before anything of the study is sent."""
    interfaces = [each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found]
    known_to_ray = ("auto", "local", "localhost", "127.0.0.1", "::1", "0.0.0.0")
    here = {name.lower() for name in (*known_to_ray, socket.gethostname(), *interfaces)}
    elsewhere = sorted({host for host in hosts if host.lower() not in here})
    if elsewhere:
        raise StudyError(
            f"the cluster of Ray reaches beyond this machine: {', '.join(elsewhere[:4])}"
            f"{', ...' if len(elsewhere) > 4 else ''}. Code and data go there as pickles, which whoever controls those "
            "machines can read and answer with code that runs here. If you trust all of them, say so with "
            "--trust-cluster (trusted=True)"
        )


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
