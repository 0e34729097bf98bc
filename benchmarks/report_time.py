"""What a report of a small run takes, and how often its contents are encoded.

    python benchmarks/report_time.py

draws a table of 60 pictures and captions, trains on it as `meq train` does by default, with the encoders that came with
pip where they are installed and with the built-in ones, and writes its report in processes of their own. Then it
trains, scores, answers, reports and explains in one process, and counts what encoders were asked for.
"""

from __future__ import annotations

import csv
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from speed import Line, quartiles, run_lines

from meq.data.content import Content, fingerprint_of
from meq.data.request import DataRequest
from meq.encoders import Tokens
from meq.encoders.builtin import Patches, Words
from meq.encoders.catalogue import OFFLINE, offline_is_installed
from meq.runs.explain import Explainer
from meq.runs.load import load_run
from meq.runs.showcase import prepare_showcase
from meq.runs.train_on import train_on
from meq.training.config import TrainConfig

ROWS, SIZE = 60, (128, 96)
LIMIT_SECONDS = 15.0
COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (30, 60, 220)}
BUILT_IN = {"image": "patches", "text": "words"}
REQUEST: dict[str, Any] = {"images": ("photo",), "texts": ("caption",), "label": "y"}


def write_table(folder: Path) -> Path:
    """Is the colour that the caption names that of the picture?"""
    (folder / "photos").mkdir()
    random, names, rows = np.random.default_rng(0), list(COLOURS), []
    for row in range(ROWS):
        picture = Image.fromarray(random.integers(180, 250, (SIZE[1], SIZE[0], 3), dtype=np.uint8))
        picture.paste(COLOURS[names[row % 3]], (10 + row % 30, 10, 70 + row % 40, 80))
        picture.save(folder / "photos" / f"{row}.png")
        said = names[(row // 6) % 3]
        answer = "yes" if names[row % 3] == said else "no"
        rows.append([f"photos/{row}.png", f"it is {said}, number {row} of the table", answer])
    with (folder / "photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["photo", "caption", "y"], *rows])
    return folder / "photos.csv"


def meq_seconds(*arguments: str) -> float:
    """CPU time of a command in a process of its own, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "meq", *arguments]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report_seconds(folder: Path, table: Path, encoders: dict[str, str], rounds: int) -> list[float]:
    """Each of a run that nobody has looked at yet."""
    named = [part for kind, name in encoders.items() for part in (f"--{kind}-encoder", name)]
    columns = ["--image", "photo", "--text", "caption", "--label", "y"]
    run = folder / f"run-{encoders['image']}"
    meq_seconds("train", str(table), *columns, *named, "--out", str(run))
    seconds = []
    for _ in range(rounds):
        shutil.rmtree(run / "analysis", ignore_errors=True)
        seconds.append(meq_seconds("report", str(run), "--out", str(folder / "report.html")))
    return seconds


def encoded_twice(folder: Path, table: Path) -> tuple[int, int]:
    """From training to an explanation: contents that were encoded, and those that were encoded more than once."""
    counts: Counter[bytes] = Counter()

    def counting(original: Callable[..., list[Tokens]]) -> Callable[..., list[Tokens]]:
        def call(self: Any, contents: Sequence[Content]) -> list[Tokens]:
            counts.update(fingerprint_of(each) for each in contents)
            return original(self, contents)

        return call

    kinds: tuple[type[Any], ...] = (Patches, Words)
    originals = [kind.__call__ for kind in kinds]
    for kind, original in zip(kinds, originals, strict=True):
        kind.__call__ = counting(original)
    try:
        config = TrainConfig(epochs=1, batch_size=16, learning_rate=1e-3)
        request = DataRequest(data=str(table), **REQUEST)
        run = train_on(request, folder / "counted", encoders=BUILT_IN, config=config)
        run.evaluate()
        run.predict_table(table)
        prepare_showcase(folder / "counted")
        explainer = Explainer(load_run(folder / "counted"))
        explainer([explainer.pair(table.parent / "photos" / "0.png", "it is red, number 0 of the table")])
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.__call__ = original
    return len(counts), sum(count > 1 for count in counts.values())


def measure(rounds: int) -> list[Line]:
    lines = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        table = write_table(folder)
        cases = {"built-in encoders": BUILT_IN}
        if all(offline_is_installed(kind) for kind in BUILT_IN):
            cases = {"the encoders of `meq[offline]`": {kind: OFFLINE[kind] for kind in BUILT_IN}, **cases}
        for words, encoders in cases.items():
            seconds = report_seconds(folder, table, encoders, rounds)
            what = f"a report of a {ROWS}-row run, CPU time, {words}"
            lines.append(Line(number=13, what=what, limit=LIMIT_SECONDS, unit="s", **quartiles(seconds)))
        several, twice = encoded_twice(folder, table)
        what = f"of {several} contents, those encoded twice by train, evaluate, predict, report and explain together"
        lines.append(Line(number=13, what=what, found=twice, limit=0))
    return lines


if __name__ == "__main__":
    run_lines("A report of a small run, and what is encoded for it.", "report_time", 3, measure)
