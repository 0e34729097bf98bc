"""One of each thing that can be added, from a package of somebody's own, used end to end in processes of their own."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).with_name("plugin_package.py")
SMALL = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that can be imported from there."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "mine").mkdir()
    shutil.copy(PACKAGE, folder / "mine" / "__init__.py")
    return folder


def meq(place: Path, *arguments: str, plugin: bool = True, code: int = 0) -> str:
    """Run a command in a process of its own; what it prints, errors included."""
    command = [sys.executable, "-m", "meq", *(["--plugin", "mine"] if plugin else []), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A run trained with the package's data set, encoder, metric, solver, penalty and model."""
    mine = ["--arm", "my-fusion", "--text-encoder", "my-letters", "--solver", "halving", "--set", "solver.rate=0.25"]
    mine += ["--set", "my-small-state.weight=0.5", "--set", "count=16"]
    meq(place, "train", "my-parity", "--out", "run", *mine, *SMALL)
    return place / "run"


def test_a_run_is_trained_with_everything_of_ones_own(run: Path) -> None:
    record = json.loads((run / "record.json").read_text())
    assert record["status"] == "finished"
    assert record["metric"] == "my balanced accuracy"
    assert record["data"]["encoders"]["word"]["name"] == "my-letters-1"
    assert "SmallState(weight=0.5)" in record["objective"]["penalties"]
    options = json.loads((run / "model" / "config.json").read_text())
    assert options["options"]["solver"] == {"name": "Halving", "rate": 0.25}


def test_another_process_scores_and_answers_with_it(place: Path, run: Path) -> None:
    found = json.loads(meq(place, "evaluate", str(run), "--split", "test", "--json").partition("\n}")[0] + "\n}")
    assert "my balanced accuracy" in json.dumps(found)
    code = f"import mine, meq.runs; print(meq.runs.load_run({str(run)!r}).model.solver)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "Halving(rate=0.25)" in done.stdout


def test_without_the_package_the_error_says_what_is_missing(place: Path, run: Path) -> None:
    assert "there is no data set 'my-parity'" in meq(place, "train", "my-parity", "--out", "x", plugin=False, code=1)
    assert "MyFusion" in meq(place, "evaluate", str(run), plugin=False, code=1)


def test_a_table_is_answered_by_a_run_with_an_encoder_of_ones_own(place: Path) -> None:
    rows = [[("ab" if row % 2 else "ba") * 2, row / 20, "yes" if row % 2 else "no"] for row in range(40)]
    for file, columns in (("table.csv", 3), ("new.csv", 2)):
        with (place / file).open("w", newline="") as opened:
            csv.writer(opened).writerows([["word", "number", "y"][:columns], *(row[:columns] for row in rows)])
    columns = ["--text", "word", "--vector", "number", "--label", "y", "--text-encoder", "my-letters"]
    meq(place, "train", "table.csv", *columns, "--out", "table-run", *SMALL)
    meq(place, "predict", "table-run", "new.csv", "-o", "answers.csv")
    with (place / "answers.csv").open(newline="") as opened:
        answers = [row["answer"] for row in csv.DictReader(opened)]
    assert len(answers) == 40
    assert set(answers) <= {"yes", "no"}


def test_a_figure_of_ones_own_is_drawn_by_name(place: Path, run: Path) -> None:
    pytest.importorskip("matplotlib")
    meq(place, "report", str(run), "--only-files", "--figure", "my-epochs", "--out", "figures")
    assert (place / "figures" / "my-epochs.png").is_file()


def test_a_study_of_ones_own_is_run_in_workers_and_verified(place: Path) -> None:
    assert "my-study" in meq(place, "study", "list")
    meq(place, "study", "run", "my-study", "--out", "study", "--seed", "0", "--on", "local", "--workers", "2")
    assert "my balanced accuracy" in meq(place, "study", "table", "study")
    meq(place, "study", "verify", "study")
