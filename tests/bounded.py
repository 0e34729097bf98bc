"""Something that may take forever or all memory, tried in a process of its own that may have neither."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

MEGABYTES = 600
"""Beyond what the process has already: the limits of meq let a picture take about so much."""
SECONDS = 2.0

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded by what Linux offers for it")


@dataclass(frozen=True)
class Outcome:
    """What came of it: the class and message of the error, or neither."""

    error: str | None
    message: str
    seconds: float
    peak_megabytes: float


def attempt(action: Callable[[], Any], *, megabytes: int = MEGABYTES, seconds: float = SECONDS) -> Outcome:
    """Run it in a fork of this process. Longer than `seconds` ends in a signal, which is no outcome but a failure."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in the parent, which the child never uses
        child = os.fork()
    if child == 0:
        _run(action, writing, megabytes, seconds)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    _, status = os.waitpid(child, 0)
    if not told:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        pytest.fail(f"not over after {seconds} s, or crashed: {signal.Signals(number).name if number else status}")
    outcome: Outcome = pickle.loads(told)
    return outcome


def _run(action: Callable[[], Any], writing: int, megabytes: int, seconds: float) -> None:
    """In the child, which never returns."""
    try:
        # its own time, since other processes may need the machine; and more by the clock, for those that only wait
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 5 * seconds)
        room = _kilobytes("VmSize") * 1024 + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        start, before = time.perf_counter(), _kilobytes("VmRSS")
        error, message = None, ""
        try:
            action()
        except BaseException as caught:
            error, message = type(caught).__name__, str(caught)
        taken = time.perf_counter() - start
        os.write(writing, pickle.dumps(Outcome(error, message, taken, (_kilobytes("VmHWM") - before) / 1024)))
    finally:
        os._exit(0)


def _kilobytes(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{field}:"))
