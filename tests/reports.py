"""One tiny study and one tiny run on a hostile table, trained once for all tests of reports."""

from __future__ import annotations

import atexit
import csv
import shutil
import tempfile
from functools import cache
from pathlib import Path

from PIL import Image
from rich.console import Console

from meq.data.request import DataRequest
from meq.runs import train_on
from meq.runs.showcase import ShowcaseOptions, look_for_report
from meq.studies import ArmConfig, DataConfig, Study, run_study
from meq.training.config import TrainConfig
from meq.viz.report import write_report

SHAPE = {"dim": 8, "heads": 2, "head_width": 8}
ITERATED = {**SHAPE, "steps": 2, "hidden": 16}
TRAIN = TrainConfig(epochs=2, batch_size=16, learning_rate=1e-3, monitor_samples=4, radius_samples=1)
FEW = ShowcaseOptions(examples=1, samples=1, limit=12, eigenvalues=3)
SCRIPT = "<script>document.title = 'owned'</script>"
LABELS = ("<b>yes</b>", 'no" onload="x')


NASTY = (
    "<script>document.title = 'owned'</script>",
    '"><img src=http://127.0.0.1:9/x onerror="document.title=\'owned\'">',
    "javascript:document.title='owned'",
    "\u202eevil\u2066 \x1b[31mred\x07 $x_1$ \\frac{",
    "endless" * 15_000,
    "</title></style></svg>--><svg onload=\"document.title='owned'\">",
)
"""Labels of somebody who wishes the reader ill."""
UNSEEN = set("\x00\x07\x1b\u202e\u2066")


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="meq-reports-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def tiny_study() -> Path:
    """Two arms, two seeds, measures; only to be read."""
    study = Study(
        name="tiny-report",
        question=f"Do two arms & two seeds fit on a page? {NASTY[0]} {NASTY[3]} {NASTY[4]}",
        data=DataConfig(name="scenes", options={"train": 36, "dev": 18, "test": 18}),
        arms=(
            ArmConfig(name="meq", model="meq", options=ITERATED, penalties={"residual-correction": {"weight": 0.3}}),
            ArmConfig(name="concat", model="concat", options=SHAPE),
        ),
        seeds=(0, 1),
        reference="meq",
        train=TRAIN,
        measures={"steps": {"by": "kind"}, "coupling": {"samples": 4}},
    )
    run_study(study, _folder() / "study", console=Console(quiet=True))
    return _folder() / "study"


@cache
def study_looks() -> Path:
    """What was seen of the study's best run."""
    looks, missing = look_for_report(tiny_study(), scratch=_folder() / "looks", options=FEW)
    assert looks is not None
    assert missing == ()
    return looks


@cache
def hostile_run() -> Path:
    """A run on a table whose texts and labels are markup; looked at already. Only to be read."""
    folder = _folder() / "table"
    folder.mkdir()
    with open(folder / "rows.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["picture", "words", "label", "part"])
        for row in range(30):
            colour = (200, 30, 30) if row % 2 else (30, 30, 200)
            Image.new("RGB", (24, 24), colour).save(folder / f"{row}.png")
            part = "train" if row < 16 else "dev" if row < 22 else "test"
            rows.writerow([f"{row}.png", f"{SCRIPT} thing {row}", LABELS[row % 2], part])
    request = DataRequest(
        data=str(folder / "rows.csv"), images=("picture",), texts=("words",), label="label", split="part"
    )
    encoders = {"image": "patches", "text": "words"}
    run = train_on(request, _folder() / "run", encoders=encoders, shape=ITERATED, config=TRAIN).folder.parent
    look_for_report(run, scratch=_folder() / "unused", options=FEW)
    return run


@cache
def very_hostile_run() -> Path:
    """A run whose labels, texts, file names, columns and folder are all meant to do harm. Only to be read."""
    folder = _folder() / "<img src=x onerror=alert(1)> table"
    folder.mkdir()
    picture, words, label = 'picture"><script>1</script>', "wo<b>rds\u202e", "la&bel"
    with open(folder / "rows.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([picture, words, label, "part"])
        for row in range(36):
            nasty, name = NASTY[row % len(NASTY)], f"{row} <img src=x onerror=alert(1)>.png"
            Image.new("RGB", (24, 24), (7 * row, 30, 200)).save(folder / name)
            part = "train" if row < 18 else "dev" if row < 24 else "test"
            rows.writerow([name, f"{nasty[:300]} thing {row} <a href='javascript:alert(1)'>", nasty, part])
    request = DataRequest(data=str(folder / "rows.csv"), images=(picture,), texts=(words,), label=label, split="part")
    encoders = {"image": "patches", "text": "words"}
    place = _folder() / "<script>alert(1)<_script> run"
    run = train_on(request, place, encoders=encoders, shape=ITERATED, config=TRAIN).folder.parent
    look_for_report(run, scratch=_folder() / "unused", options=FEW)
    return run


@cache
def hostile_page() -> Path:
    return write_report(very_hostile_run(), _folder() / "hostile.html")


@cache
def study_page() -> Path:
    return write_report(tiny_study(), _folder() / "study.html", looks=study_looks())


@cache
def run_page() -> Path:
    return write_report(hostile_run(), _folder() / "run.html")
