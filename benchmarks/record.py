"""What the benchmarks share: options, versions, records that appear whole, and the page that is rendered from them."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import render
import torch

import meq


def run(description: str, name: str, rounds: int, measure: Callable[[int], dict[str, Any]]) -> None:
    """Measure on one thread, write `results/<name>.json`, render docs/benchmarks.md again."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--output", type=Path, default=render.RESULTS / f"{name}.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "meq": meq.__version__}
    result = {"versions": versions, "threads": 1, "rounds": options.rounds, **measure(options.rounds)}
    keep(result, options.output)


def keep(result: dict[str, Any], path: Path) -> None:
    """The record, and the page if it is the committed one."""
    write_whole(path, json.dumps(result, indent=1) + "\n")
    if path.resolve().parent == render.RESULTS.resolve():
        write_whole(render.PAGE, render.render())


def write_whole(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
