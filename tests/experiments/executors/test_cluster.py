from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from experiments.small import SMALL, once_trained, results
from rich.console import Console

from meq.experiments import StudyError, read_record, run_study, verify
from meq.experiments.executors.cluster import Cluster, _connected, _Errand, _unfit
from meq.experiments.study import run_place
from meq.training.environment import versions
from meq.training.files import sha256

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[object]:
    """A cluster of this machine, as a study starts one where there is none."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'meq[cluster]'")
    with _connected(None, 2) as ray:
        yield ray


@pytest.fixture(scope="module")
def small_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made one run after the other."""
    folder = tmp_path_factory.mktemp("serial") / "study"
    run_study(SMALL, folder, console=QUIET)
    return folder


def kill_the_task() -> None:
    busy = [each for each in psutil.Process().children(recursive=True) if "ray::_do_errand" in "".join(each.cmdline())]
    os.kill(busy[0].pid, signal.SIGKILL)


def test_tasks_one_of_them_killed_end_in_the_bits_of_a_serial_study(
    ray_here: object, small_study: Path, tmp_path: Path
) -> None:
    folder, said = tmp_path / "study", io.StringIO()
    with once_trained(folder, ("concat", 0), kill_the_task):
        run_study(SMALL, folder, on=Cluster(workers=1), console=Console(file=said, width=200))
    assert "concat, seed 0: its worker was lost (WorkerCrashedError)" in said.getvalue()
    assert "concat, seed 1: epoch 7: loss" in said.getvalue(), "what runs tell arrives"
    assert results(folder, SMALL) == results(small_study, SMALL)
    sessions = read_record(folder / run_place("concat", 0)).sessions
    assert [each.step > 0 for each in sessions] == [False, True], "the second worker went on"
    assert verify(folder, require_checkpoints=True).faults == []
    assert [path.name for path in tmp_path.iterdir()] == ["study"], "nothing is left beside it"


def test_what_no_node_has_room_for_is_an_error_and_not_a_long_wait(ray_here: object, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"no node of the cluster has room for a run of 1 CPUs, 0 GPUs and 9999999\.0"):
        run_study(SMALL, tmp_path / "study", on=Cluster(memory=9999999), console=QUIET)


def test_a_cluster_that_is_there_is_not_given_another_address(ray_here: object, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="connected to a cluster of Ray already"):
        run_study(SMALL, tmp_path / "study", on=Cluster(address="10.0.0.1:6379"), console=QUIET)


def test_a_node_that_cannot_see_the_study_says_so(small_study: Path, tmp_path: Path) -> None:
    errand = _Errand(
        study=SMALL,
        study_sha256=sha256(small_study / "study.json"),
        folder=small_study,
        working_folder=tmp_path,
        version=versions()["meq"],
        threads=1,
    )
    assert _unfit(errand) is None
    assert "a file system that they share" in (_unfit(replace(errand, folder=tmp_path)) or "")
    assert "a file system that they share" in (_unfit(replace(errand, study_sha256="0")) or "")
    assert "a file system that they share" in (_unfit(replace(errand, working_folder=tmp_path / "gone")) or "")
    assert "the study runs with 0.0" in (_unfit(replace(errand, version="0.0")) or "")


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"pip install 'meq\[cluster\]'"):
        run_study(SMALL, tmp_path / "study", on=Cluster(), console=QUIET)
