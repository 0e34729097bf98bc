from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import meq
from meq.cli import app
from meq.cli.root import CHAPTERS

SMALL = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "500"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_version_is_printed() -> None:
    assert run("--version") == (0, f"meq {meq.__version__}\n")


def test_a_plugin_that_is_not_there_is_one_sentence_and_nothing_stays_behind() -> None:
    code, output = run("--plugin", "no_such_module", "data", "list")
    assert code == 1
    assert "the plugin 'no_such_module' cannot be imported: ModuleNotFoundError" in " ".join(output.split())
    assert "Traceback" not in output
    assert "MEQ_PLUGINS" not in os.environ


def test_the_front_page_is_a_table_of_contents() -> None:
    code, output = run("--help")
    assert code == 0
    places = [output.index(f"─ {panel} ─") for panel in CHAPTERS]
    assert places == sorted(places)
    for name in ("data", "encode", "train", "evaluate", "predict", "diagnose", "study"):
        assert re.search(rf"│ {name} +\S", output), f"{name} has a line of its own"
    assert "--install-completion" in output


def test_training_by_name_ends_in_a_table_a_record_and_a_model(tmp_path: Path) -> None:
    code, output = run("train", "statements", "--out", str(tmp_path / "run"), *SMALL)
    assert code == 0, output
    assert "MutualEquilibrium on statements: finished" in output
    assert "best epoch on dev" in output
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "finished"
    model = meq.FusionModel.from_pretrained(tmp_path / "run" / "model")
    assert model.dim == 8

    code, output = run("train", "statements", "--out", str(tmp_path / "run"), *SMALL)
    assert code == 1
    assert "already holds a run" in output
    assert "--resume" in output
    assert "Traceback" not in output


def test_a_baseline_trains_with_the_same_command(tmp_path: Path) -> None:
    code, output = run("train", "statements", "--arm", "concat", "--out", str(tmp_path), *SMALL)
    assert code == 0, output
    assert "Concat on statements" in output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "statments", "--out", "x"], 1, "did you mean 'statements'?"),
        (["train", "statements", "--arm", "meqq", "--out", "x"], 1, "did you mean 'meq'?"),
        (["train", "statements", "--out", "x", "--select", "beest"], 1, "did you mean 'best'?"),
        (["train", "statements", "--out", "x", "--heads", "5"], 1, "cannot be split into 5 heads"),
        (["train", "statements", "--out", "x", "--epochz", "5"], 2, "--epochs"),
        (["train"], 2, "Missing argument"),
        (["train", "statements", "--resume"], 1, "there is no run on statements in runs to resume"),
        (["trian"], 2, "Did you mean 'train'?"),
    ],
)
def test_mistakes_are_one_clear_sentence(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got, output = run(*arguments)
    assert got == code
    assert message in output
    assert "Traceback" not in output


def test_ctrl_c_leaves_the_run_resumable_and_says_how(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--dim", "8", "--heads", "2", "--steps", "2", "--checkpoint-every", "5", "--epochs", "30"]
    command = [sys.executable, "-m", "meq", "train", "statements", "--out", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; go on with: meq train statements" in errors
    assert "Traceback" not in errors
    (said,) = (line for line in errors.splitlines() if line.startswith("interrupted"))
    typed = shlex.split(said.removeprefix("interrupted; go on with: meq "))
    assert typed == [*command[3:], "--resume"]
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "interrupted"
    _, output = run("evaluate", str(folder))
    assert "is not finished" in " ".join(output.split())
    assert "its record says: interrupted" in " ".join(output.split())
