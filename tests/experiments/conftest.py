"""One finished study for all tests; those that change a study work on a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from meq.experiments import make_study, run_study


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "tiny"
    run_study(make_study("statements-tiny"), folder, console=Console(quiet=True))
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))
