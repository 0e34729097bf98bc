"""What a measure holds of a data set that lies in a store: the same memory, however many examples there are.

    python benchmarks/store_memory.py

fills two stores in a temporary folder (about 0.6 GB), of 10,000 and of 50,000 examples with random features and soft
labels over as many answers as VQA v2 has, and takes the measures `steps` and `fixed-point` of an untrained model on
each, in a process of its own on one thread. Writes `benchmarks/results/store_memory.json` in some minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from feature_store import RandomFeatures
from PIL import Image

import meq
from meq.data.content import DrawnPicture
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows, plain_example
from meq.data.metrics import SOFT_ACCURACY
from meq.encoders import encode
from meq.encoders.contract import Tokens
from meq.studies.build import PreparedData
from meq.studies.measures.contract import Measure, TrainedModel
from meq.studies.measures.fixed_point import FixedPoint
from meq.studies.measures.steps import Steps
from meq.studies.study import ArmConfig

COUNTS = (10_000, 50_000)
ANSWERS, WIDTH, TOKENS, STEPS = 3_129, 32, 4, 2
ALL_LOGITS = 4 * ANSWERS * (2 * STEPS + 1)
"""Bytes per example that keeping the logits of every step would take."""


class FewFeatures(RandomFeatures):
    width = WIDTH

    def _tokens(self) -> Tokens:
        x = torch.randn(TOKENS, WIDTH, generator=self.generator)
        return Tokens(features=x, boxes=torch.zeros(TOKENS, 4), spans=torch.zeros(TOKENS, 2, dtype=torch.long))


def generated(count: int) -> DataSet:
    def make(row: int) -> Example:
        picture = DrawnPicture(f"{row}", partial(Image.new, "RGB", (1, 1), (row // 65536, row // 256 % 256, row % 256)))
        target = np.zeros(ANSWERS, dtype=np.float32)
        target[row % ANSWERS] = 1.0
        return plain_example(id=f"{row}", content={"image": picture, "text": f"{row}"}, target=target, facts={})

    return DataSet(
        name="random",
        splits={"dev": Rows(range(count), make)},
        modalities={"image": IMAGE, "text": TEXT},
        labels=tuple(map(str, range(ANSWERS))),
        head="labels",
        metric=SOFT_ACCURACY,
    )


def stored(folder: Path, count: int) -> DataSet:
    return encode(generated(count), {kind: FewFeatures(kind) for kind in ("image", "text")}, store=folder / str(count))


def peak(folder: Path, count: int, which: str) -> dict[str, float]:
    """Of this process: memory before the measure is taken, and at most."""
    torch.set_num_threads(1)
    data = stored(folder, count)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"heads": 2, "steps": STEPS, "head": "labels", "head_width": 32}
    model = meq.MutualEquilibrium(data.widths, ANSWERS, WIDTH, **shape).eval()
    arm: Any = ArmConfig(name="meq", model="meq")
    trained = TrainedModel(model=model, data=data, arm=arm, record=None, prepared=PreparedData(data=data))  # type: ignore[arg-type]
    measures: dict[str, Measure[Any]] = {
        "steps": Steps(split="dev"),
        "fixed-point": FixedPoint(split="dev", horizon=2 * STEPS, radii=1),
    }
    before = most_held()
    measures[which].take(trained)
    return {"before_kb": before, "peak_kb": most_held()}


def most_held() -> int:
    """Kilobytes, since this program began; getrusage would count its parent's, too. Linux alone tells."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def measure(rounds: int) -> dict[str, Any]:
    cases: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for count in COUNTS:
            stored(Path(place), count)
        for which in ("steps", "fixed-point"):
            for count in COUNTS:
                command = [sys.executable, __file__, "--one", place, str(count), which]
                runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(rounds)]
                cases.setdefault(which, {})[str(count)] = max(runs, key=lambda run: run["peak_kb"])
    return {"answers": ANSWERS, "steps": STEPS, "cases": cases, "all_logits_bytes": ALL_LOGITS}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(peak(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
    else:
        record.run("What a measure holds of a data set that lies in a store.", "store_memory", 1, measure)
