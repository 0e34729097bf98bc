"""Shapes written in annotations are checked while the tests run, and only then."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

# of what the tests start, too: threads that spin while other tests have the cores are many times slower than none
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# some virtual machines announce matrix tiles and forbid them: products in bfloat16 would end in an illegal instruction
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import jaxtyping
import pytest
import torch
from fuzzing import set_profile
from jaxtyping import install_import_hook

# options too: a constructor that it wraps counts as checked, and its own words on a wrong name come first
SCIENCE = [f"meq.{room}" for room in ("core", "models", "objectives", "analysis", "options")]
with install_import_hook(SCIENCE, "shape_check.outer"):
    from meq import analysis, core, models, objectives

    for package in (core, models, objectives, analysis):
        for name in package.__all__:
            getattr(package, name)  # packages import their parts on use

if threading.current_thread() is threading.main_thread():
    # a shell that starts the tests in the background has Ctrl-C ignored in all that they start, and some tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
set_profile()
torch.set_num_threads(1)  # the problems are tiny, and threads that wait for each other cost more than they give
SLOW = ("recipes", "docs", "docstrings", "export", "survival", "compile", "examples", "processes", "demo")
"""Files of few tests that take long: begun first, or one core would sit with them at the end while the others wait."""
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in SLOW)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations unchecked, as users run the code: for errors in words that the type check would forestall."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished study for all tests; those that change a study work on a copy."""
    from rich.console import Console

    from meq.studies import make_study, run_study

    folder = tmp_path_factory.mktemp("studies") / "tiny"
    run_study(make_study("statements-tiny"), folder, console=Console(quiet=True))
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))
