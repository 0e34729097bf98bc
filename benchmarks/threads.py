"""What a second thread costs on a busy machine, and brings on an idle one, by how OpenMP's threads wait.

    python benchmarks/threads.py

times updates (forward and backward) in processes of their own, with one and with two threads, in the environment that
the command line sets, where waiting threads sleep, and without it, where they spin: while a busy process for every
core runs beside them, and while none does. Wall time in interleaved rounds; writes
`benchmarks/results/speed_threads.json` in about three minutes. The second part means something on a machine that is
idle otherwise: every line says how busy it was before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

import speed

from meq.cli import WAITING

UPDATES = 2
"""Per process and round."""
TIMED = """
import sys, time
import torch, meq
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
model = meq.MutualEquilibrium({"image": 128, "text": 128}, 3, 128, heads=8, steps=10, tol=0)
features = {name: torch.randn(32, 16, 128) for name in ("image", "text")}
target = torch.randint(3, (32,))
for line in sys.stdin:
    begin = time.perf_counter()
    for _ in range(int(line)):
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(features).logits, target).backward()
    print(time.perf_counter() - begin, flush=True)
"""
SLEEPING, SPINNING = "waiting threads sleep soon", "waiting threads spin"
WHAT = "width 128, 16 + 16 tokens, batch 32, K = 10"


class Updates:
    """A process that makes updates when it is told to, with so many threads."""

    def __init__(self, threads: int, waiting: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "GOMP_"))
        }
        environment |= WAITING if waiting == SLEEPING else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TIMED, str(threads)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self) -> float:
        """Wall seconds of the updates."""
        told, said = _pipe(self.process.stdin), _pipe(self.process.stdout)
        told.write(f"{UPDATES}\n")
        told.flush()
        return float(said.readline())

    def __enter__(self) -> Updates:
        return self

    def __exit__(self, *error: object) -> None:
        _pipe(self.process.stdin).close()
        _pipe(self.process.stdout).close()
        self.process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def load() -> Iterator[None]:
    """A busy process for every core that this one may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def seconds_of_rounds(rounds: int) -> dict[str, list[float]]:
    """Wall seconds by case, such as "2, waiting threads sleep"."""
    with ExitStack() as stack:
        cases = {
            f"{threads}, {waiting}": stack.enter_context(Updates(threads, waiting))
            for waiting in (SLEEPING, SPINNING)
            for threads in (1, 2)
        }
        return speed.interleaved(cases, rounds, lambda case: float(case()))


def measure(rounds: int) -> list[speed.Line]:
    note = f"load average before: {os.getloadavg()[0]:.1f}"
    idle = seconds_of_rounds(rounds)
    with load():
        loaded = seconds_of_rounds(rounds)

    def line(what: str, limit: float | None, seconds: dict[str, list[float]], case: str, base: str) -> speed.Line:
        return speed.Line(
            number=1, what=f"wall time, {what}: {WHAT}", limit=limit, note=note, **speed.ratios(seconds, case, base)
        )

    two = "two threads by one thread"
    return [
        line(f"{two}, under load, as the command line sets it", 1.2, loaded, f"2, {SLEEPING}", f"1, {SLEEPING}"),
        line(f"{two}, under load, spinning", None, loaded, f"2, {SPINNING}", f"1, {SPINNING}"),
        line("two threads that sleep soon by two that spin, idle", 1.05, idle, f"2, {SLEEPING}", f"2, {SPINNING}"),
        line(f"{two}, idle, as the command line sets it", None, idle, f"2, {SLEEPING}", f"1, {SLEEPING}"),
    ]


if __name__ == "__main__":
    speed.run_lines("What a second thread costs or brings.", "threads", 7, measure)
