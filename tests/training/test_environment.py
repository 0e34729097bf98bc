from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from meq.training.environment import commit_of, session


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_commit_of_a_working_copy_and_whether_it_was_changed(tmp_path: Path) -> None:
    code = tmp_path / "src" / "package"
    code.mkdir(parents=True)
    (code / "a.py").write_text("x = 1\n")
    assert commit_of(code) is None, "no repository"
    git(tmp_path, "init", "--quiet")
    assert commit_of(code) is None, "a repository that does not track it, as around an installed package"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    found = commit_of(code)
    assert found is not None
    assert (found.sha, found.dirty) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "results").write_text("written by a study, not code")
    assert not commit_of(code).dirty
    (code / "b.py").write_text("y = 2\n")
    assert commit_of(code).dirty, "a new file of the package is a change of it"


def test_a_session_says_what_ran_where() -> None:
    found = session(7, torch.device("cpu"))
    assert found.step == 7
    assert found.versions["torch"] == torch.__version__
    assert found.started.endswith("+00:00")
    assert (found.hardware.device, found.hardware.threads) == ("cpu", torch.get_num_threads())
    assert found.hardware.name
