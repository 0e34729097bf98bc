"""How long a user waits before anything happens: help, a small table checked, the first import.

    python benchmarks/start_up.py

starts processes of their own and adds up their CPU time (user and system), in interleaved rounds; every case runs once
before, so that compiled files and the disk's cache are warm. Writes `benchmarks/results/speed_start_up.json` in about
two minutes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import speed

ROWS = 200
TABLE = "table.csv"


def child(folder: Path, *arguments: str) -> None:
    """A Python process; one that fails would be fast for nothing."""
    subprocess.run([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=True)


def children_seconds(case: Callable[[], Any]) -> float:
    """CPU time of the processes that a case starts and waits for."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    case()
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def write_table(folder: Path) -> None:
    rows = [f"sentence number {row},{row / 7},{row % 5},{'yes' if row % 2 else 'no'}" for row in range(ROWS)]
    (folder / TABLE).write_text("\n".join(["words,size,count,y", *rows]) + "\n", encoding="utf-8")


def measure(rounds: int) -> list[speed.Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder)
        columns = ["--text", "words", "--vector", "size", "--vector", "count", "--label", "y"]
        cases = {
            "help": partial(child, folder, "-m", "meq", "--help"),
            "check": partial(child, folder, "-m", "meq", "data", "check", TABLE, *columns),
            "torch": partial(child, folder, "-c", "import torch"),
            "meq": partial(child, folder, "-c", "import meq"),
            "model": partial(child, folder, "-c", "import meq; meq.MutualEquilibrium"),
        }
        seconds = speed.interleaved(cases, rounds, children_seconds)
    return [
        speed.Line(number=10, what="`meq --help`", limit=0.5, unit="s", **speed.quartiles(seconds["help"])),
        speed.Line(
            number=10,
            what=f"`meq data check` of a table with {ROWS} rows",
            limit=1.5,
            unit="s",
            **speed.quartiles(seconds["check"]),
        ),
        speed.Line(
            number=10,
            what="`import meq` by `import torch`",
            limit=1.5,
            note="nothing heavy is imported before a name is used",
            **speed.ratios(seconds, "meq", "torch"),
        ),
        speed.Line(
            number=10,
            what="`import meq; meq.MutualEquilibrium` by `import torch`",
            limit=1.5,
            **speed.ratios(seconds, "model", "torch"),
        ),
    ]


if __name__ == "__main__":
    speed.run_lines("How long meq takes to start.", "start_up", 15, measure)
