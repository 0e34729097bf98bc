from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from plain import TESTS
from rich.console import Console

from meq.records import BusyError, NoSpaceError
from meq.studies import StudyError, make_study, make_tables, read_record, records_of, run_study, verify
from meq.studies.study import ArmConfig, DataConfig, run_place
from meq.studies.verify import MANIFEST, read_manifest, sealed, write_manifest
from meq.tables import as_text
from meq.training import checkpoint

QUIET = Console(quiet=True)
TINY = make_study("statements-tiny")
COMMAND = "import torch; torch.set_num_threads(1); from meq.cli.study import study_app; study_app()"


def weights(folder: Path) -> dict[tuple[str, int], str]:
    return {run: record.checkpoint.sha256 for run, record in records_of(folder, TINY).items()}


def start(folder: Path) -> subprocess.Popen[str]:
    """The study in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent / "src")}
    command = [sys.executable, "-c", COMMAND, "run", TINY.name, "--out", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_when(process: subprocess.Popen[str], there: Path, pattern: str, how: signal.Signals) -> str:
    """Send the signal as soon as such a file is there; returns what the process said."""
    deadline = time.monotonic() + 120
    while not list(there.glob(pattern)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"no {pattern} in {there}"
        time.sleep(0.002)
    process.send_signal(how)
    return process.communicate(timeout=60)[1]


def test_a_study_killed_and_interrupted_ends_as_if_it_had_not_been(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    process = start(folder)
    stop_when(process, folder / run_place("meq", 0), "checkpoints/step-*", signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert read_record(folder / run_place("meq", 0)).status == "running", "it had no time to say otherwise"
    assert set(records_of(folder, TINY)) == {("concat", 0)}
    unfinished = as_text(make_tables(TINY, records_of(folder, TINY))["dev-accuracy"])
    assert "seed 0 missing, seed 1 missing, seed 2 missing" in unfinished

    process = start(folder)
    said = stop_when(process, folder / run_place("meq", 1), "checkpoints/step-*", signal.SIGINT)
    assert process.returncode == 130, said
    assert f"go on with: meq study run statements-tiny --out {folder}" in said
    assert read_record(folder / run_place("meq", 1)).status == "interrupted"

    before = (folder / run_place("concat", 0) / "record.json").stat().st_mtime_ns
    run_study(TINY, folder, console=QUIET)
    assert (folder / run_place("concat", 0) / "record.json").stat().st_mtime_ns == before, "it was skipped"
    assert weights(folder) == weights(finished), "the same bits"
    resumed = read_record(folder / run_place("meq", 1)).sessions
    assert len(resumed) == 2
    assert resumed[1].step > 0
    for name in ("dev-accuracy", "test-accuracy"):
        assert (folder / "tables" / f"{name}.txt").read_bytes() == (finished / "tables" / f"{name}.txt").read_bytes()

    assert verify(folder, require_checkpoints=True).faults == []
    victim = folder / run_place("meq", 1) / "predictions" / "test.parquet"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    assert [fault.file for fault in verify(folder).faults] == [f"{run_place('meq', 1)}/predictions/test.parquet"]


def test_a_study_that_is_complete_is_left_alone(copied: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    said = io.StringIO()
    records = run_study(TINY, copied, console=Console(file=said))
    assert len(records) == 6
    assert "all 6 runs are recorded" in said.getvalue()
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


def test_a_run_recorded_but_not_yet_sealed_is_sealed_by_the_next_start(copied: Path) -> None:
    """As a kill between the record and the manifest leaves it."""
    place = run_place("meq", 2)
    write_manifest(copied, sealed(read_manifest(copied), copied, [], without=place))
    for left_over in (copied / place / ".record.json.77.writing", copied / ".manifest.json.77.writing"):
        left_over.write_text("half")
    assert not verify(copied).ok
    run_study(TINY, copied, console=QUIET)
    assert verify(copied).faults == []
    assert not list(copied.rglob("*.writing"))


def test_a_failed_run_is_recorded_shown_and_can_be_retried(
    finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        place = run_place("meq", seed)
        shutil.rmtree(copied / place)
        write_manifest(copied, sealed(read_manifest(copied), copied, [], without=place))

    def broken(tensors: dict, path: Path) -> None:
        raise OSError(5, "Input/output error")

    save = checkpoint.save_file
    monkeypatch.setattr(checkpoint, "save_file", broken)
    records = run_study(TINY, copied, console=QUIET)
    failed = [record for record in records if record.status == "failed"]
    assert {(record.arm, record.seed) for record in failed} == {("meq", 1), ("meq", 2)}, "the study went on"
    assert failed[0].error.kind == "CheckpointError"
    assert "Input/output error" in failed[0].error.message
    assert str(copied) not in failed[0].error.message, "the folder may be moved"
    shown = (copied / "tables" / "dev-accuracy.txt").read_text()
    assert "1 of 3 (seed 1 failed, seed 2 failed)" in shown
    assert verify(copied).ok, "a failure is a result"

    monkeypatch.setattr(checkpoint, "save_file", save)
    assert sum(record.status == "failed" for record in run_study(TINY, copied, console=QUIET)) == 2, "left as it is"
    records = run_study(TINY, copied, retry_failed=True, console=QUIET)
    assert {record.status for record in records} == {"finished"}
    assert weights(copied) == weights(finished)
    assert verify(copied).faults == []


def test_a_full_disk_stops_the_study_marks_no_run_as_failed_and_the_same_call_goes_on(
    finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        place = run_place("meq", seed)
        shutil.rmtree(copied / place)
        write_manifest(copied, sealed(read_manifest(copied), copied, [], without=place))
    calls, save = [], checkpoint.save_file

    def full(tensors: dict, path: Path) -> None:
        calls.append(path)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        save(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(NoSpaceError, match=r"no run counts as failed for it\. Make room, and the same command goes on"):
        run_study(TINY, copied, console=QUIET)
    assert read_record(copied / run_place("meq", 1)).status == "interrupted"
    assert not (copied / run_place("meq", 2)).exists(), "the study stopped"
    assert "failed" not in (copied / "tables" / "runs.txt").read_text()
    monkeypatch.undo()
    records = run_study(TINY, copied, console=QUIET)
    assert {record.status for record in records} == {"finished"}
    assert read_record(copied / run_place("meq", 1)).sessions[-1].step > 0, "it went on from a checkpoint"
    assert weights(copied) == weights(finished)
    assert verify(copied).faults == []


def test_training_that_stops_being_finite_is_a_failed_run_and_the_others_go_on(tmp_path: Path) -> None:
    wild = ArmConfig(name="wild", model="concat", options={"dim": 8, "head_width": 8}, train={"learning_rate": 1e30})
    tame = replace(wild, name="tame", train={})
    study = replace(TINY, name="wild", arms=(wild, tame), seeds=(0,), reference="tame")
    records = run_study(study, tmp_path / "study", console=QUIET)
    assert {record.arm: record.status for record in records} == {"wild": "failed", "tame": "finished"}
    (failed,) = (record for record in records if record.arm == "wild")
    assert "is not finite at step" in failed.error.message
    assert len(failed.error.batch_ids) > 0
    assert verify(tmp_path / "study").ok


def test_a_folder_holds_one_study_only(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="which differs in seeds from the one to be run"):
        run_study(replace(TINY, seeds=(0, 1)), copied, console=QUIET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(StudyError, match="is not empty and holds no study"):
        run_study(TINY, tmp_path / "other", console=QUIET)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_a_removed_or_changed_manifest_is_not_made_good_by_running(copied: Path) -> None:
    content = (copied / MANIFEST).read_bytes()
    (copied / MANIFEST).write_bytes(content.replace(b"runs/meq", b"runs/mmm", 1))
    with pytest.raises(ValueError, match="its own hash does not match"):
        run_study(TINY, copied, console=QUIET)
    (copied / MANIFEST).unlink()
    with pytest.raises(StudyError, match=r"recorded runs but no manifest\.json"):
        run_study(TINY, copied, console=QUIET)


def test_a_change_in_a_sealed_file_survives_later_sealing(copied: Path) -> None:
    place = run_place("meq", 2)
    shutil.rmtree(copied / place)
    write_manifest(copied, sealed(read_manifest(copied), copied, [], without=place))
    card = copied / run_place("meq", 0) / "model" / "README.md"
    card.write_text("changed")
    run_study(TINY, copied, console=QUIET)
    assert [fault.file for fault in verify(copied).faults] == [f"{run_place('meq', 0)}/model/README.md"]


def test_runs_on_other_data_are_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meq.studies import runner

    place = run_place("meq", 2)
    shutil.rmtree(copied / place)
    write_manifest(copied, sealed(read_manifest(copied), copied, [], without=place))
    prepare, other = (
        runner.prepare_data,
        DataConfig(name="statements", options={"train": 64, "dev": 24, "test": 16, "seed": 1}),
    )
    monkeypatch.setattr(runner, "prepare_data", lambda config, places: prepare(other, places))
    with pytest.raises(StudyError, match="holds runs on other data"):
        run_study(TINY, copied, console=QUIET)


def test_a_mistake_in_the_last_arm_shows_before_anything_is_trained(tmp_path: Path) -> None:
    bad = ArmConfig(name="bad", model="meq", options={"dim": 16, "heads": 5})
    with pytest.raises(ValueError, match="cannot be split into 5 heads"):
        run_study(replace(TINY, arms=(*TINY.arms, bad)), tmp_path / "study", console=QUIET)
    assert not (tmp_path / "study" / "runs").exists()


def test_a_study_is_run_by_one_process_at_a_time(copied: Path) -> None:
    import fcntl

    with open(copied / "study.json", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is running the study"):
            run_study(TINY, copied, console=QUIET)


def test_a_study_under_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StudyError, match="runs in one process"):
        run_study(TINY, tmp_path, console=QUIET)


def test_ctrl_c_while_a_run_is_being_sealed_leaves_it_sealed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meq.studies import runner

    place = copied / run_place("meq", 2)
    shutil.rmtree(place)
    write_manifest(copied, sealed(read_manifest(copied), copied, [], without=run_place("meq", 2)))
    write = runner.write_manifest

    def interrupted(*given: object) -> None:
        monkeypatch.setattr(runner, "write_manifest", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(TINY, copied, console=QUIET)
    assert read_record(place).status == "finished"
    assert verify(copied).faults == []
