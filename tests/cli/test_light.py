"""The front of the command line answers at once: it loads neither torch nor anything else that is slow to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "transformers", "pyarrow", "accelerate", "matplotlib", "pandas", "scipy", "gradio", "ray"}
HEAVY |= {"huggingface_hub", "safetensors"}
NOT_FOR_HELP = {"numpy", "PIL", "jaxtyping"}
"""What data is read with."""
RUN = """
import sys
from meq.cli import main
sys.argv = ["meq", *sys.argv[1:]]
try:
    main()
finally:
    print(file=sys.stderr)
    print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""
COMMANDS = ["data list", "data check", "data show", "encode", "train", "evaluate", "predict", "app", "explain"]
COMMANDS += ["analyze", "diagnose", "calibrate", "audit", "cost", "report", "demo"]
COMMANDS += ["compare", "tune"]
COMMANDS += [f"study {name}" for name in ("list", "run", "work", "status", "table", "verify")]


def loaded_by(*arguments: str, cwd: Path | None = None) -> tuple[str, set[str]]:
    """What a command prints, and which heavy packages it loads, and of those that data is read with."""
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout, (HEAVY | NOT_FOR_HELP) & set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_nothing_heavy(command: str) -> None:
    output, heavy = loaded_by(*command.split(), "--help")
    assert "Usage: meq" in output
    assert not heavy


def test_the_version_and_the_lists_of_data_sets_and_studies_load_nothing_heavy() -> None:
    assert not loaded_by("--version")[1]
    output, heavy = loaded_by("data", "list", "--json")
    assert "scenes" in json.loads(output)
    assert heavy <= NOT_FOR_HELP
    output, heavy = loaded_by("study", "list", "--json")
    assert "main" in output
    assert heavy <= NOT_FOR_HELP


def test_a_table_is_checked_without_torch(tmp_path: Path) -> None:
    rows = "".join(f"a sentence {i},{i / 7},{'yes' if i % 2 else 'no'}\n" for i in range(40))
    (tmp_path / "table.csv").write_text("words,number,y\n" + rows, encoding="utf-8")
    columns = ["--text", "words", "--vector", "number", "--label", "y"]
    output, heavy = loaded_by("data", "check", "table.csv", *columns, cwd=tmp_path)
    assert "40" in output
    assert heavy <= NOT_FOR_HELP


def test_the_state_of_a_study_is_told_without_torch(finished: Path) -> None:
    output, heavy = loaded_by("study", "status", str(finished))
    assert "runs are over" in output
    assert heavy <= NOT_FOR_HELP
