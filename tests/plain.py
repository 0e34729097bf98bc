"""Run a function of a test file in a fresh interpreter, where annotations are not checked.

The tracers of torch.compile and torch.export cannot see through the shape checks that `conftest.py` installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def run_plain(file: Path, function: str, *arguments: str) -> str:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('plain_cases', {str(file)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"module.{function}(*{arguments!r})\n"
    )
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{function}{arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout
