"""The codes that commands end with, seen from outside: signals, pipes, mistakes, bugs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

OPTIONS = ["--dim", "8", "--heads", "2", "--steps", "2", "--checkpoint-every", "5", "--epochs", "200"]
MEQ = [sys.executable, "-m", "meq"]
BROKEN = "import meq.data.check as d, meq.cli as c; d.inspect_data = lambda *a, **b: 1 / 0; c.main()"


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [*MEQ, *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(there: str, folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.glob(there)) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)


def test_a_training_that_is_terminated_says_how_to_go_on(tmp_path: Path) -> None:
    process = start("train", "statements", "--out", "run", *OPTIONS, cwd=tmp_path)
    wait_for("run/checkpoints/step-*", tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    (said,) = (line for line in errors.splitlines() if line.startswith("terminated; go on with: meq "))
    typed = shlex.split(said.partition(": meq ")[2])
    assert typed == ["train", "statements", "--out", "run", *OPTIONS, "--resume"]
    assert json.loads((tmp_path / "run" / "record.json").read_text())["status"] == "interrupted"


def test_sigterm_before_the_training_began_does_not_speak_of_resuming(tmp_path: Path) -> None:
    """There is nothing to resume yet: the same command begins anew."""
    process = start("train", "scenes", "--out", "run", "--store", "store", *OPTIONS, cwd=tmp_path)
    wait_for("store", tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "--resume" not in errors
    assert "terminated; go on with: meq train scenes --out run --store store" in errors


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["data", "list"], 0), (["train", "statments"], 1), (["trian"], 2)],
)
def test_exit_codes(tmp_path: Path, arguments: list[str], code: int) -> None:
    done = subprocess.run([*MEQ, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_ends_with_its_own_code_and_its_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKEN, "data", "check", "statements"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 70
    assert done.stderr.startswith("error: this is a bug in meq, please report it with the lines below: ")
    assert "ZeroDivisionError: division by zero" in done.stderr


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """As head does, after the first line."""
    with start("data", "show", "statements", "--count", "200", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert errors == ""


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = subprocess.run([*MEQ, "train", "statements", "--out", "run"], cwd=tmp_path, capture_output=True, text=True)
    tmp_path.chmod(0o700)
    assert done.returncode == 1
    assert "nothing may be written to" in done.stderr
