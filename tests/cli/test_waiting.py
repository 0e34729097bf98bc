"""Threads that wait do not spin for long, unless the user said otherwise: set before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from meq.cli import ASKED

SCRIPT = """
import multiprocessing, os, sys

def told():
    return [os.environ.get(name) for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")]

if __name__ == "__main__":
    sys.argv = ["meq", "--version"]
    from meq.cli import main
    try:
        main()
    except SystemExit:
        pass
    print("torch" in sys.modules, told())
    if os.environ.get("ASK_A_WORKER"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(told))
"""


def run(script: str, **given: str) -> list[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ASKED}
    done = subprocess.run([sys.executable, script], env={**plain, **given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("waiting") / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_the_command_line_lets_waiting_threads_sleep_soon(script: str) -> None:
    assert run(script)[-1] == "False [None, '1', '20000']"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", None, None]),
        ({"KMP_BLOCKTIME": "200"}, [None, "200", None]),
        ({"GOMP_SPINCOUNT": "1000"}, [None, None, "1000"]),
    ],
)
def test_who_says_how_threads_wait_is_not_contradicted(script: str, given: dict[str, str], found: list[str]) -> None:
    assert run(script, **given)[-1] == f"False {found}"


def test_worker_processes_are_told_too(script: str) -> None:
    assert run(script, ASK_A_WORKER="1")[-1] == "[None, '1', '20000']"
