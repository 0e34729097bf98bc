"""Everything that computes does so where it is told: seen on a second device, written in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meq.devices import chosen_device

TESTS = Path(__file__).parents[1]


def test_studies_train_and_measure_on_another_device_and_find_the_same(tmp_path: Path) -> None:
    script = TESTS / "studies" / "on_second_device.py"
    env = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, tmp_path], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("the same") == 10 + 2 - 3, "concatenation has no steps to measure"
    assert done.stdout.count("nothing") == 3
    assert done.stdout.count("agree") == 2, "networks of encoders, and costs"


def test_the_encoders_of_a_run_compute_where_its_model_does(tmp_path: Path) -> None:
    script = TESTS / "runs" / "on_second_device.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, tmp_path], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "the same\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gpu", "there is no device 'gpu'"),
        ("cuda:7", "this machine has no device 'cuda:7'"),
        ("cpu:1", "this machine has no device 'cpu:1': it has 1 of the kind 'cpu'"),
        ("meta", "this machine has no device 'meta'"),
    ],
)
def test_a_device_that_is_not_there_is_named(asked: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        chosen_device(asked)


def test_what_only_counts_may_do_so_on_meta() -> None:
    assert chosen_device("meta", also=("meta",)) == "meta"
    assert chosen_device("cpu") == "cpu"
