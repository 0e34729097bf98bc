"""On an accelerator nothing waits for a value inside the loop: seen on a second device, which counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from meq.core.iteration import SELDOM

HERE = Path(__file__).parent


def test_a_forward_waits_for_an_accelerator_as_often_whatever_the_number_of_steps() -> None:
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    script = HERE / "waiting_for_a_device.py"
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["forward"] == [1, 1], "the check of what was given, once"
    assert found["Anderson"] == [1, 1]
    assert found["with gradients"] == [2, 2], "besides, whether a sample diverged"
    assert found["last steps"][0] == found["last steps"][1]
    assert found["long"] == 1 + 100 // SELDOM
    assert found["settled"] == 2, "a long solve ends at the first question after everybody has settled"
