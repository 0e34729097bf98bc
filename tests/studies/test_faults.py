"""Studies that are killed, run out of room, are run twice at once, or lose their files: nothing is lost or mixed."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fuzzing import MINUTES
from plain import TESTS, run_plain
from rich.console import Console
from studies.small import CONCAT, SMALL, TINY, once_trained, results

from meq.records import BusyError, NoSpaceError
from meq.studies import StudyError, read_record, records_of, run_study, verify
from meq.studies.local import Local
from meq.studies.study import run_place
from meq.studies.verify import files_below, read_manifest, write_manifest
from meq.training.fit import Training
from meq.training.record import FAILED, RunError, RunRecord, write_record

pytestmark = pytest.mark.fuzz
CASES = Path(__file__).with_name("fault_cases.py")
QUIET = Console(quiet=True)
COMMAND = "import torch; torch.set_num_threads(1); from meq.cli import app; app()"
SHORT = replace(SMALL, train=replace(SMALL.train, epochs=1))


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"no {pattern} in {folder}"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def short_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("short") / "study"
    run_study(SHORT, folder, console=QUIET)
    return folder


# -- killed ------------------------------------------------------------------------------------------------------------


def test_a_study_killed_at_its_file_mutations_ends_with_the_same_bytes(tmp_path: Path) -> None:
    run_plain(CASES, "killed_at_mutations", str(tmp_path), "6")


def test_what_a_kill_left_behind_is_cleaned_by_the_next_run(copied: Path) -> None:
    runs = copied / "runs" / "meq"
    left = [
        runs / ".seed-0.writing",  # a run half borrowed
        copied / ".manifest.json.77.writing",
        copied / "tables" / ".runs.csv.77.writing",
        copied.with_name(".copy.sharing"),
    ]
    for path in (left[0], left[3]):
        path.mkdir()
        (path / "half").write_text("half")
    for path in left[1:3]:
        path.write_text("half")
    run_study(TINY, copied, console=QUIET)
    assert [path for path in left if path.exists()] == []
    assert verify(copied).faults == []


@pytest.mark.parametrize("on", ["serial", "local"] if MINUTES else ["serial"])
def test_sigterm_leaves_a_checkpoint_and_says_how_to_go_on(on: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    more = ("--on", on, "--workers", "1") if on == "local" else ()
    process = start("study", "run", TINY.name, "--out", folder, *more)
    wait_for(folder, f"{run_place('meq', 0)}/checkpoints/step-*", process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode in (130, 143), said
    assert f"--out {folder}" in said.rpartition("go on with: meq study run statements-tiny")[2]
    assert "Traceback" not in said
    place = folder / run_place("meq", 0)
    assert read_record(place).status == "interrupted"
    assert list((place / "checkpoints").glob("step-*"))
    assert verify(folder).ok
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


# -- no room -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_any_file_mutation_marks_no_run_as_failed(tmp_path: Path) -> None:
    run_plain(CASES, "full_at_mutations", str(tmp_path), "5")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1.5 MB, which a study outgrows."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this machine does not allow a tmpfs to be mounted: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount here")
@pytest.mark.parametrize("on", ["serial", "local"] if MINUTES else ["serial"])
def test_a_study_on_a_disk_that_fills_up_goes_on_once_there_is_room(
    on: str, small_disk: Path, short_study: Path
) -> None:
    folder, weight = small_disk / "study", small_disk / "ballast"
    executor = Local(workers=1, threads=1) if on == "local" else None
    run_study(replace(SHORT, seeds=(0,), name="first"), small_disk / "first", console=QUIET)
    needed = sum(path.stat().st_size for path in (small_disk / "first").rglob("*") if path.is_file())
    shutil.rmtree(small_disk / "first")
    weight.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - 3 * needed)))
    said = r"has stopped, since there is no room \(.* are free on its disk\); no run counts as failed"
    with pytest.raises(NoSpaceError, match=said):
        run_study(SHORT, folder, on=executor, console=QUIET)
    assert all(record.status != "failed" for record in records_of(folder, SHORT).values())
    weight.unlink()
    run_study(SHORT, folder, on=executor, console=QUIET)
    assert results(folder, SHORT) == results(short_study, SHORT)
    assert verify(folder, require_checkpoints=True).faults == []


def test_runs_that_an_older_version_recorded_as_failed_on_a_full_disk_go_on(copied: Path, finished: Path) -> None:
    """Sealed, with tables that show them as failed: as the versions before left them."""
    from meq.studies import runner

    for seed in (1, 2):
        record = read_record(copied / run_place("meq", seed))
        error = RunError(kind="CheckpointError", message="No space left on device", batch_ids=())
        write_record(copied / run_place("meq", seed), _failed(record, error))
        shutil.rmtree(copied / run_place("meq", seed) / "predictions")
        runner._StudyRunner(TINY, copied, read_manifest(copied), QUIET, False)._seal_run(("meq", seed))
    assert verify(copied).ok
    assert "2 failed" in (copied / "tables" / "dev-accuracy.txt").read_text()
    records = run_study(TINY, copied, console=QUIET)
    assert {record.status for record in records} == {"finished"}
    assert results(copied, TINY) == results(finished, TINY)
    assert verify(copied).faults == []


def _failed(record: RunRecord, error: RunError) -> RunRecord:
    return replace(record, status=FAILED, metrics={}, predictions={}, checkpoint=None, error=error)


def test_memory_that_runs_out_is_no_failed_run_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(SHORT, arms=(replace(CONCAT, name="large"), CONCAT), reference="large", seeds=(0,))
    update = Training._update

    def full(self: Training, batches: list) -> object:
        if self.provenance.arm == "large":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return update(self, batches)

    monkeypatch.setattr(Training, "_update", full)
    with pytest.raises(StudyError, match=r"1 of 2 runs are missing.*large, seed 0: the device has not enough memory"):
        run_study(study, tmp_path / "study", console=QUIET)
    assert read_record(tmp_path / "study" / run_place("large", 0)).status == "interrupted"
    assert read_record(tmp_path / "study" / run_place("concat", 0)).status == "finished"
    assert verify(tmp_path / "study").ok
    monkeypatch.undo()
    assert {record.status for record in run_study(study, tmp_path / "study", console=QUIET)} == {"finished"}


# -- removed, changed, run twice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["run", "study"])
def test_a_folder_removed_under_a_study_is_an_error(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    victim = folder if what == "study" else folder / run_place("concat", 0)
    said = r"was removed, or replaced by another folder|No such file"
    removing = once_trained(folder, ("concat", 0), lambda: victim.rename(tmp_path / "removed"))
    with removing, pytest.raises((StudyError, OSError), match=said):
        run_study(SMALL, folder, console=QUIET)


def test_files_removed_under_a_study_are_missed_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    removing = once_trained(folder, ("concat", 1), (folder / "study.json").unlink)
    with removing, pytest.raises(StudyError, match=r"1 files were removed .*, study\.json among them"):
        run_study(SMALL, folder, console=QUIET)


def test_a_finished_run_that_was_removed_is_missed_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    victim = folder / run_place("concat", 0)
    said = r"1 of 2 runs were removed .* concat, seed 0\. The same command makes them again"
    removing = once_trained(folder, ("concat", 1), lambda: shutil.rmtree(victim))
    with removing, pytest.raises(StudyError, match=said):
        run_study(SMALL, folder, console=QUIET)
    run_study(SMALL, folder, console=QUIET)
    assert verify(folder).faults == []


def test_a_second_process_in_a_study_s_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    first = start("study", "run", TINY.name, "--out", folder)
    wait_for(folder, f"{run_place('concat', 0)}/checkpoints/step-*", first)
    with pytest.raises(BusyError, match=r"another process is running the study in .*: wait until it has finished"):
        run_study(TINY, folder, console=QUIET)
    with pytest.raises(BusyError, match="another process"):
        run_study(TINY, folder, on=Local(workers=1), console=QUIET)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=240)
    assert verify(folder).faults == [], "nothing was mixed"


def test_of_two_processes_that_begin_a_study_at_once_one_makes_it(tmp_path: Path) -> None:
    run_plain(CASES, "begun_twice", str(tmp_path), "20" if MINUTES else "3")


def test_every_flipped_byte_of_a_study_is_found(copied: Path) -> None:
    """At random places over all files, large ones more often; under `make fuzz` many more."""
    draw = random.Random(7)
    names = files_below(copied)
    sizes = [(copied / name).stat().st_size for name in names]
    for _ in range(max(25, round(30 * MINUTES))):
        (name,) = draw.choices(names, sizes)
        content = (copied / name).read_bytes()
        flipped = bytearray(content)
        flipped[place := draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (copied / name).write_bytes(flipped)
        assert name in {fault.file for fault in verify(copied).faults}, f"byte {place} of {name}"
        (copied / name).write_bytes(content)
    assert verify(copied).ok


def test_an_unfinished_study_of_another_form_is_sealed_in_the_present_one(copied: Path) -> None:
    write_manifest(copied, replace(read_manifest(copied), table_format=99))
    assert "cannot be compared" in verify(copied).faults[0].message
    said = io.StringIO()
    run_study(TINY, copied, console=Console(file=said))
    assert verify(copied).faults == []
