from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console
from studies.small import SMALL, once_trained, results

from meq.data.request import DataRequest
from meq.records import sha256
from meq.runs.tune import make_search, run_search
from meq.studies import StudyError, read_record, run_study, verify
from meq.studies.cluster import Cluster, Home, _host, _refuse_elsewhere, connected, gpus_of_a_run, refuse_unfit
from meq.studies.runner import choose_executor
from meq.studies.study import run_place
from meq.training.config import TrainConfig
from meq.training.record import versions

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[object]:
    """A cluster of this machine, as a study starts one where there is none."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'meq[cluster]'")
    with connected(None, 2) as ray:
        yield ray


@pytest.fixture(scope="module")
def small_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made one run after the other."""
    folder = tmp_path_factory.mktemp("serial") / "study"
    run_study(SMALL, folder, console=QUIET)
    return folder


def kill_the_task() -> None:
    busy = [
        each for each in psutil.Process().children(recursive=True) if "ray::work_as_task" in "".join(each.cmdline())
    ]
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
        run_study(SMALL, tmp_path / "study", on=Cluster(address="10.0.0.1:6379", trusted=True), console=QUIET)


def test_a_node_that_cannot_see_the_study_says_so(small_study: Path, tmp_path: Path) -> None:
    home = Home(study_sha256=sha256(small_study / "study.json"), working_folder=tmp_path, version=versions()["meq"])
    refuse_unfit(small_study, home)
    with pytest.raises(StudyError, match="a file system that they share"):
        refuse_unfit(tmp_path, home)
    for changed in ({"study_sha256": "0"}, {"working_folder": tmp_path / "gone"}):
        with pytest.raises(StudyError, match="a file system that they share"):
            refuse_unfit(small_study, replace(home, **changed))
    with pytest.raises(StudyError, match=r"the study runs with 0\.0"):
        refuse_unfit(small_study, replace(home, version="0.0"))


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"pip install 'meq\[cluster\]'"):
        run_study(SMALL, tmp_path / "study", on=Cluster(), console=QUIET)


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://head.example.org:10001", "[fe80::7]:6379"])
def test_a_cluster_beyond_this_machine_needs_an_explicit_yes(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Ray is so much as imported: nothing has gone there."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"beyond this machine: .*as pickles.*--trust-cluster \(trusted=True\)"):
        run_study(SMALL, tmp_path / "study", on=Cluster(address=address), console=QUIET)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(StudyError, match="beyond this machine"):
        run_study(SMALL, tmp_path / "study", on=Cluster(), console=QUIET)
    with pytest.raises(StudyError, match=r"pip install 'meq\[cluster\]'"):
        run_study(SMALL, tmp_path / "study", on=Cluster(trusted=True), console=QUIET)


def test_a_cluster_that_this_machine_belongs_to_may_have_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "NodeManagerAddress": address} for address in ("127.0.0.1", "10.0.0.7")]
    there = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", there)
    connecting = connected(None, 1)
    with pytest.raises(StudyError, match=r"beyond this machine: 10\.0\.0\.7\. Code"):
        connecting.__enter__()
    with connected(None, 1, trusted=True) as ray:
        assert ray is there
    nodes[1]["Alive"] = False
    with connected(None, 1) as ray:
        assert ray is there


@pytest.mark.parametrize("address", ["auto", "local", "127.0.0.1:6379", "localhost:6379", "ray://[::1]:10001"])
def test_this_machine_needs_no_yes(address: str) -> None:
    _refuse_elsewhere([_host(address)])


def test_trust_speaks_of_a_cluster() -> None:
    with pytest.raises(StudyError, match="--trust-cluster makes sense with --on ray"):
        choose_executor("local", trusted=True)
    assert choose_executor("ray", address="auto", trusted=True) == Cluster(address="auto", trusted=True)


def test_a_run_asks_for_a_gpu_where_the_cluster_has_one() -> None:
    """There is none here: what Ray says of nodes is made up."""
    plain, lost = {"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": False, "Resources": {"GPU": 4.0}}
    assert gpus_of_a_run([plain, lost]) == 0
    assert gpus_of_a_run([plain, {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}]) == 1


def test_the_trials_of_a_search_on_ray_tune_are_those_of_one_machine(ray_here: object, tmp_path: Path) -> None:
    rows = "".join(f"{k % 7 - 3},{k % 5 - 2},{'yes' if k % 7 > 3 else 'no'}\n" for k in range(60))
    (tmp_path / "numbers.csv").write_text("a,b,y\n" + rows)
    asked = DataRequest(data=str(tmp_path / "numbers.csv"), vectors=("a", "b"), label="y")
    space = {"dim": [8], "steps": [2, 3], "learning_rate": (1e-3, 1e-2)}
    config = TrainConfig(epochs=1, batch_size=8)
    search = make_search(asked, space=space, config=config, shape={"heads": 2}, fixed=["epochs", "batch_size"])
    serial, tasks = (run_search(search, tmp_path / on, trials=2, on=on) for on in ("serial", "ray"))
    assert [(each.settings, each.score) for each in tasks.trials] == [
        (each.settings, each.score) for each in serial.trials
    ]
    assert tasks.scores == serial.scores
