"""The ways to run a study, by name."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from meq.core.options import nearest
from meq.experiments.executors.cluster import Cluster
from meq.experiments.executors.local import Local
from meq.experiments.executors.one_run import do_run
from meq.experiments.executors.scheduling import Backlog, Ended, Executor, Job, in_words, is_out_of_memory, problem_of
from meq.experiments.study import StudyError

NAMES = ("serial", "local", "ray")


@dataclass(frozen=True, kw_only=True)
class Serial:
    """One run after the other, in this process; an error that is no failed training ends the study."""

    def work_off(self, job: Job) -> Generator[Ended, None, None]:
        runs, backlog = list(job.study.runs()), Backlog(job.study, job.left)
        while (run := backlog.take()) is not None:
            job.console.print(f"run {runs.index(run) + 1} of {len(runs)}: {in_words(run)}")
            problem = None
            try:
                do_run(job.study, job.folder, run, prepared=job.prepared, console=job.console)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                problem = problem_of(error)  # smaller arms may fit
                job.console.print(f"{in_words(run)}: {problem}", markup=False, highlight=False, soft_wrap=True)
            backlog.over(run)
            yield Ended(run=run, problem=problem)


def choose_executor(
    on: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    memory: float | None = None,
    trusted: bool = False,
) -> Executor:
    """The executor of that name; an option that it does not have is an error."""
    if on not in NAMES:
        raise StudyError(f"a study cannot be run on {on!r}: {nearest(on, NAMES)}")
    given = {name: value for name, value in (("workers", workers), ("memory", memory)) if value is not None}
    if on == "serial" and given:
        raise StudyError(
            f"--{next(iter(given))} makes sense with --on local or --on ray: runs are made in this process"
        )
    if address is not None and on != "ray":
        raise StudyError("--address is that of a cluster: it makes sense with --on ray")
    if trusted and on != "ray":
        raise StudyError("--trust-cluster speaks of a cluster: it makes sense with --on ray")
    if memory is not None and memory <= 0:
        raise StudyError(f"a run cannot need {memory} GB of memory")
    if on == "local":
        return Local(workers=workers, memory=memory)
    return Serial() if on == "serial" else Cluster(address=address, workers=workers, memory=memory, trusted=trusted)
