from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain import TESTS
from rich.console import Console
from studies.small import TINY, results

from meq.encoders.store import FeatureStore
from meq.studies import Study, StudyError, run_study, verify, workers
from meq.studies.build import Places, prepare_data
from meq.studies.local import shared_features
from meq.studies.measures import read_measured
from meq.studies.runner import work_on_study
from meq.studies.study import ArmConfig, DataConfig, Run, run_place
from meq.studies.verify import read_manifest, sealed, write_manifest
from meq.studies.workers import (
    CLAIM,
    RETRIES,
    Job,
    RunEnd,
    check_needs,
    clear_claims,
    job_of_worker,
    release,
    work,
)

HOLD = """
import sys, time
from pathlib import Path
from meq.records import alone
with alone(Path(sys.argv[1]), "held"):
    print("held", flush=True)
    time.sleep(120)
"""
HELPER = """
import sys, torch
from rich.console import Console
from meq.studies.runner import work_on_study
torch.set_num_threads(1)
work_on_study(sys.argv[1], console=Console(quiet=True))
"""


def with_paths() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent / "src")}


@contextmanager
def held_by_another(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the lock of a run, until the block ends or it is killed."""
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, env=with_paths(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


FREE = ArmConfig(name="free", model="meq", options={"dim": 8, "heads": 2, "head_width": 8, "steps": 2})
HELD = replace(FREE, name="held", penalties={"cross-floor": {"weight": 0.1}}, floor_from="free")
STUDY = replace(
    TINY,
    name="held-up",
    arms=(HELD, FREE),
    seeds=(0, 1),
    reference="free",
    measures={"coupling": {}},
    train=replace(TINY.train, epochs=1, monitor_samples=2),
)
"""The arm that needs another is named before it."""


QUIET = Console(quiet=True)


def job(study: Study, folder: Path) -> Job:
    return job_of_worker(study, folder, Places(), QUIET)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Runs in the order in which they are made, without any training."""
    made: list[Run] = []
    monkeypatch.setattr(workers, "do_run", lambda study, folder, run, **_: made.append(run))
    monkeypatch.setattr(workers, "is_settled", lambda study, folder, run: run in made)
    return made


def test_a_run_begins_after_the_one_it_needs(made: list[Run], tmp_path: Path) -> None:
    assert [each.run for each in work(job(STUDY, tmp_path), worker="me")] == made
    assert made == [("free", 0), ("held", 0), ("free", 1), ("held", 1)]


def test_a_worker_leaves_alone_what_another_one_holds_and_what_needs_it(made: list[Run], tmp_path: Path) -> None:
    place = tmp_path / run_place("free", 0)
    place.mkdir(parents=True)
    with held_by_another(place):
        assert [each.run for each in work(job(STUDY, tmp_path), worker="me", wait_for_others=False)] == made
        assert made == [("free", 1), ("held", 1)]
    assert len(list(work(job(STUDY, tmp_path), worker="me"))) == 4, "it is free again, and those that are over are told"
    assert made[2:] == [("free", 0), ("held", 0)]


def test_a_worker_waits_for_what_others_make_and_takes_over_from_one_that_dies(made: list[Run], tmp_path: Path) -> None:
    place = tmp_path / run_place("free", 0)
    place.mkdir(parents=True)
    with held_by_another(place) as other:
        threading.Timer(1.0, other.kill).start()
        assert len(list(work(job(replace(STUDY, seeds=(0,)), tmp_path), worker="me"))) == 2
    assert made == [("free", 0), ("held", 0)]


def test_a_run_whose_workers_die_is_given_up_in_the_end(made: list[Run], tmp_path: Path) -> None:
    """A claim without a lock was left by a worker that was killed."""
    place = tmp_path / run_place("free", 0)
    study = replace(STUDY, arms=(FREE,), seeds=(0,))
    for lost in range(RETRIES):
        place.mkdir(parents=True, exist_ok=True)
        (place / CLAIM).write_text(json.dumps({"worker": "dead", "lost": lost, "problem": None}))
        assert list(work(job(study, tmp_path), worker="me")) == [RunEnd(run=("free", 0))]
        assert not (place / CLAIM).exists()
        made.clear()
    (place / CLAIM).write_text(json.dumps({"worker": "dead", "lost": RETRIES, "problem": None}))
    (ended,) = work(job(study, tmp_path), worker="me")
    assert (ended.problem or "").startswith(f"lost: its worker ended {RETRIES + 1} times")
    assert made == []
    assert list(work(job(study, tmp_path), worker="another")) == [ended], "nobody else tries it"
    clear_claims(study, tmp_path)
    assert list(work(job(study, tmp_path), worker="another")) == [RunEnd(run=("free", 0))], "but for the next command"


def test_a_worker_killed_at_the_very_end_of_a_run_leaves_a_run_that_has_ended(made: list[Run], tmp_path: Path) -> None:
    study, place = replace(STUDY, arms=(FREE,), seeds=(0,)), tmp_path / run_place("free", 0)
    place.mkdir(parents=True)
    (place / CLAIM).write_text(json.dumps({"worker": "dead", "lost": 0, "problem": None}))
    made.append(("free", 0))
    assert list(work(job(study, tmp_path), worker="me")) == [RunEnd(run=("free", 0))]
    with held_by_another(place):
        assert list(work(job(study, tmp_path), worker="me", wait_for_others=False)) == [], "it may still be at work"


def test_where_there_are_no_locks_the_claim_is_one(
    made: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def no_lock(path: Path, words: str, **_: object) -> Iterator[bool]:
        yield False

    monkeypatch.setattr(workers, "alone", no_lock)
    study, place = replace(STUDY, arms=(FREE,)), tmp_path / run_place("free", 0)
    place.mkdir(parents=True)
    (place / CLAIM).touch()
    assert [each.run for each in work(job(study, tmp_path), worker="me", wait_for_others=False)] == [("free", 1)]
    (place / CLAIM).write_text(json.dumps({"worker": "other", "lost": 0, "problem": None}))
    assert ("free", 0) not in [each.run for each in work(job(study, tmp_path), worker="me", wait_for_others=False)]
    assert release(job(study, tmp_path), "other") == ("free", 0)
    assert ("free", 0) in [each.run for each in work(job(study, tmp_path), worker="me", wait_for_others=False)]


def test_what_needs_a_run_that_was_given_up_is_tried_and_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise StudyError("broken")

    monkeypatch.setattr(workers, "do_run", broken)
    found = {each.run: each.problem for each in work(job(STUDY, tmp_path), worker="me")}
    assert list(found) == [("free", 0), ("held", 0), ("free", 1), ("held", 1)]
    assert all((problem or "").startswith("could not be made: StudyError: broken") for problem in found.values())
    clear_claims(STUDY, tmp_path)
    with pytest.raises(StudyError, match="broken"):
        list(work(job(STUDY, tmp_path), worker="me", tolerant=False))
    assert not list(tmp_path.rglob(CLAIM)), "an error that ends the study leaves no claim"


def test_a_full_disk_is_no_problem_of_a_run_but_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workers, "do_run", full)
    with pytest.raises(OSError, match="No space left"):
        list(work(job(STUDY, tmp_path), worker="me"))
    assert not list(tmp_path.rglob(CLAIM))


def test_arms_that_wait_for_each_other_are_an_error() -> None:
    arms = (replace(HELD, floor_from="other"), replace(HELD, name="other", floor_from="held"))
    with pytest.raises(StudyError, match="the arms held, other wait for each other"):
        check_needs(replace(STUDY, arms=arms, reference="held"))


def test_a_serial_study_makes_first_what_others_need(tmp_path: Path) -> None:
    study, said = replace(STUDY, seeds=(0,)), io.StringIO()
    records = run_study(study, tmp_path / "study", console=Console(file=said, width=200))
    assert {record.status for record in records} == {"finished"}
    begun = [line for line in said.getvalue().splitlines() if line.startswith("run ")]
    assert begun == ["run 2 of 2: free, seed 0", "run 1 of 2: held, seed 0"]
    measured = read_measured(tmp_path / "study" / run_place("held", 0), "coupling")
    assert measured is not None


def test_what_processes_share_lies_beside_the_study_and_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".study.sharing").mkdir()
    (tmp_path / ".study.sharing" / "of a killed process").touch()
    with shared_features(tmp_path / "study", Places()) as places:
        assert isinstance(places.store, FeatureStore)
        assert places.store.folder.parent.parent == tmp_path
        assert list(places.store.folder.parent.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    with shared_features(tmp_path / "study", Places(store=tmp_path / "mine")) as places:
        assert places.store == tmp_path / "mine", "the user's own store serves as well"


def test_a_worker_finds_the_features_that_were_encoded_and_in_the_same_bits(tmp_path: Path) -> None:
    pictures = replace(TINY, data=DataConfig(name="scenes", options={"train": 18, "dev": 18, "test": 18}))
    alone = prepare_data(pictures.data)
    with shared_features(tmp_path / "study", Places()) as places:
        prepared = prepare_data(pictures.data, places)
        shards = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
        assert shards
        worker = job_of_worker(pictures, tmp_path / "study", places, QUIET).prepared
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == shards
        assert alone.data.fingerprint() == prepared.data.fingerprint() == worker.data.fingerprint()
        assert alone.data.facts == worker.data.facts
        for split in alone.data.splits:
            for a, b in zip(alone.data.splits[split], worker.data.splits[split], strict=True):
                assert all(torch.equal(x, b.content[name]) for name, x in a.content.items())
        assert worker.places == Places(), "what measures encode stays with the worker"


def test_a_second_machine_that_shares_the_folder_can_help(finished: Path, copied: Path) -> None:
    """`meq study work`, with nobody who runs the study: it makes what is missing and seals it."""
    for seed in (1, 2):
        place = run_place("meq", seed)
        shutil.rmtree(copied / place)
        write_manifest(copied, sealed(read_manifest(copied), copied, [], without=place))
    (copied / run_place("meq", 1)).mkdir()
    (copied / run_place("meq", 1) / CLAIM).write_text(json.dumps({"worker": "x", "lost": 0, "problem": "no memory"}))
    records = work_on_study(copied, console=QUIET)
    assert {record.status for record in records} == {"finished"}
    assert results(copied, TINY) == results(finished, TINY)
    assert verify(copied, require_checkpoints=True).faults == []
    assert not list(copied.rglob(CLAIM))


def test_whoever_runs_a_study_seals_what_a_worker_elsewhere_has_made(finished: Path, copied: Path) -> None:
    for run in [run for run in TINY.runs() if run != ("concat", 0)]:
        shutil.rmtree(copied / run_place(*run))
        write_manifest(copied, sealed(read_manifest(copied), copied, [], without=run_place(*run)))
    with subprocess.Popen([sys.executable, "-c", HELPER, str(copied)], env=with_paths()) as other:
        while not list(copied.rglob(CLAIM)):
            assert other.poll() is None
            time.sleep(0.01)
        run_study(TINY, copied, console=QUIET)
        assert other.wait(timeout=120) == 0
    assert results(copied, TINY) == results(finished, TINY)
    assert verify(copied, require_checkpoints=True).faults == []
