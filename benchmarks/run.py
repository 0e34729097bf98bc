"""Measure the engine beside TorchDEQ and hand-written loops, keep the record, and render docs/benchmarks.md.

`make bench` runs this in an environment that has TorchDEQ. The harness defines the work and the clock (CPU time of one
thread, so that other work on the machine adds noise but no bias); 25 rounds take some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import record
import render
import torch

import meq

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", type=Path, required=True, help="coupled_block.py, the comparison harness")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path, default=render.RESULTS / "coupled_block.json")
    asked = parser.parse_args()
    record.keep({"about": about(), **measure(asked.harness, asked.rounds)}, asked.out)


def measure(harness: Path, rounds: int) -> dict[str, Any]:
    """The harness's own record, with the engine's cases plugged in."""
    paths = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        options = ["--rounds", str(rounds), "--threads", "1", "--extra", "coupled_block_cases", "--out", str(out)]
        subprocess.run([sys.executable, str(harness), *options], env=environment, check=True)
        return json.loads(out.read_text(encoding="utf-8"))


def about() -> dict[str, str]:
    """What was measured, and on what; never whose machine it was."""
    try:
        torchdeq = metadata.version("torchdeq")
    except metadata.PackageNotFoundError:
        sys.exit("TorchDEQ is not installed here, and a comparison without it says nothing: use `make bench`")
    return {
        "meq": meq.__version__,
        "torch": torch.__version__,
        "torchdeq": torchdeq,
        "python": platform.python_version(),
        "cpu": cpu_model(),
    }


def cpu_model() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
