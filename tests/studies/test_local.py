from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from plain import TESTS
from rich.console import Console
from studies.shrinking import shrunk
from studies.small import CONCAT, SMALL, TINY, WILD, once_trained, results

from meq.records import alone
from meq.studies import StudyError, local, make_study, read_record, records_of, run_study, verify
from meq.studies.build import prepare_data
from meq.studies.cluster import Cluster
from meq.studies.local import GB, PROCESS, Local, memory_of_a_run, workers_for
from meq.studies.recipes import STUDIES
from meq.studies.runner import choose_executor
from meq.studies.study import run_place

QUIET = Console(quiet=True)
COMMAND = "from meq.cli.study import study_app; study_app()"
SCRIPT = """
import sys
from dataclasses import replace
from studies.small import SMALL
from meq.studies import run_study
from meq.studies.local import Local

run_study(replace(SMALL, train=replace(SMALL.train, epochs=200)), sys.argv[1], on=Local(workers=1, threads=1))
"""


@pytest.fixture(scope="module")
def small_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made one run after the other."""
    folder = tmp_path_factory.mktemp("serial") / "study"
    run_study(SMALL, folder, console=QUIET)
    return folder


def kill_the_worker() -> None:
    """There is one: the newest of them otherwise."""
    newest = max(multiprocessing.active_children(), key=lambda process: process.pid or 0)
    os.kill(newest.pid or 0, signal.SIGKILL)


def start(command: list[str]) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"no {pattern} in {folder}"
        time.sleep(0.005)


def test_runs_in_processes_one_of_them_killed_end_in_the_bits_of_a_serial_study(
    small_study: Path, tmp_path: Path
) -> None:
    folder, said = tmp_path / "study", io.StringIO()
    with once_trained(folder, ("concat", 0), kill_the_worker):
        run_study(SMALL, folder, on=Local(workers=1, threads=1), console=Console(file=said, width=200))
    assert "concat, seed 0: its worker was lost (by signal SIGKILL" in said.getvalue()
    assert "2 of 2 runs" in said.getvalue()
    assert results(folder, SMALL) == results(small_study, SMALL)
    sessions = read_record(folder / run_place("concat", 0)).sessions
    assert [each.step > 0 for each in sessions] == [False, True], "the second worker went on"
    assert {each.hardware.threads for each in sessions} == {1}
    assert verify(folder, require_checkpoints=True).faults == []
    assert [path.name for path in tmp_path.iterdir()] == ["study"], "nothing is left beside it"
    assert multiprocessing.active_children() == []


def test_a_lost_run_and_a_failed_one_do_not_stop_the_others(tmp_path: Path) -> None:
    study = replace(SMALL, arms=(CONCAT, WILD, replace(CONCAT, name="tame")), seeds=(0,))
    folder, said = tmp_path / "study", io.StringIO()
    with (
        once_trained(folder, ("concat", 0), kill_the_worker),
        pytest.raises(StudyError, match=r"1 of 3 runs are missing, the others are recorded\. concat, seed 0: lost"),
    ):
        run_study(study, folder, on=Local(workers=1, threads=1, retries=0), console=Console(file=said, width=200))
    found = {arm: record.status for (arm, _), record in records_of(folder, study).items()}
    assert found == {"wild": "failed", "tame": "finished"}
    assert "wild, seed 0 failed: the loss or its gradient is not finite" in said.getvalue()
    assert verify(folder).ok
    run_study(study, folder, console=QUIET)
    assert read_record(folder / run_place("concat", 0)).status == "finished", "it went on"


def test_ctrl_c_stops_the_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    command = [sys.executable, "-c", COMMAND, "run", TINY.name, "--out", str(folder), "--on", "local", "--workers", "1"]
    process = start(command)
    wait_for(folder, f"{run_place('meq', 0)}/checkpoints/step-*", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"go on with: meq study run statements-tiny --out {folder}" in said
    assert "Traceback" not in said
    assert read_record(folder / run_place("meq", 0)).status == "interrupted"
    assert verify(folder).ok
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


def test_workers_do_not_outlive_a_study_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    process = start([sys.executable, "-c", SCRIPT, str(folder)])
    wait_for(folder, f"{run_place('concat', 0)}/checkpoints/step-*", process)
    process.kill()
    process.communicate()
    place = folder / run_place("concat", 0)
    with alone(place, "a worker is still there", patience=60):
        assert read_record(place).status == "interrupted", "it noticed, and left in order"


def test_a_script_without_a_main_guard_is_told_about_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = start([sys.executable, str(script), str(tmp_path / "study")])
    _, said = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "a worker could not start: with exit code 1" in said
    assert "under `if __name__ == '__main__':`" in said


def test_a_study_cannot_be_run_just_anywhere() -> None:
    with pytest.raises(StudyError, match="cannot be run on 'locl': did you mean 'local'"):
        choose_executor("locl")
    for on, option, words in [
        ("serial", {"workers": 2}, "--workers makes sense with --on local or --on ray, not with --on serial"),
        ("local", {"address": "auto"}, "--address makes sense with --on ray, not with --on local"),
        ("local", {"gpus": 1}, "--gpus makes sense with --on ray"),
        ("ray", {"threads": 1}, "--threads makes sense with --on local"),
        ("local", {"memory": -1}, "cannot need -1 GB"),
        ("ray", {"gpus": -1}, "cannot need -1 GPUs"),
    ]:
        with pytest.raises(StudyError, match=words):
            choose_executor(on, **option)
    assert choose_executor("local", workers=3, threads=2, memory=2.5) == Local(workers=3, threads=2, memory=2.5)
    assert choose_executor("ray", cpus=4, gpus=0.5) == Cluster(cpus=4, gpus=0.5)


# -- how many ----------------------------------------------------------------------------------------------------------


def test_a_run_needs_more_for_more_parameters_and_larger_batches() -> None:
    prepared = prepare_data(TINY.data)

    def need(dim: int, batch_size: int) -> int:
        arm = replace(CONCAT, options={"dim": dim, "head_width": 16})
        study = replace(SMALL, arms=(arm,), train=replace(SMALL.train, batch_size=batch_size))
        return memory_of_a_run(study, prepared)

    assert PROCESS < need(16, 16) < need(16, 64) < need(64, 64)


QUICKLY = ("duels", "relay", "statements")


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "tree-order"])
def test_the_memory_of_every_study_can_be_estimated_before_any_run(name: str) -> None:
    """A floor that another run sets is not known yet, which local workers must not mind."""
    data = "scenes" if "scenes" in STUDIES[name].on else next(each for each in STUDIES[name].on if each in QUICKLY)
    study = shrunk(make_study(name, data, quick=True))
    assert memory_of_a_run(study, prepare_data(study.data)) > PROCESS


def test_workers_are_as_many_as_cores_and_memory_and_runs_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: 8)
    monkeypatch.setattr(local, "free_memory", lambda: 10 * GB)
    assert workers_for(GB, 100, None) == 8
    assert workers_for(2 * GB, 100, None) == 4, "a tenth is left alone"
    assert workers_for(GB, 3, None) == 3
    assert workers_for(GB, 100, 20) == 20, "whoever asks for more gets more"
    with pytest.raises(StudyError, match="0 workers can do nothing"):
        workers_for(GB, 100, 0)
    with pytest.raises(StudyError, match=r"a run needs about 20\.0 GB and 10\.0 GB are free"):
        workers_for(20 * GB, 100, None)
