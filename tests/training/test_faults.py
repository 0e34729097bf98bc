"""Kills, full disks, flipped bytes and second processes, at a sample of all places; at all of them by `make fuzz`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import MINUTES, some
from plain import run_plain
from safetensors.torch import load_file
from small_disk import fill_up, small_disk
from training.small import train_small

from meq.records import NoSpaceError
from meq.training import CheckpointError, Checkpoints
from meq.training.record import read_record

pytestmark = pytest.mark.fuzz
CASES = Path(__file__).with_name("fault_cases.py")


def test_a_run_that_is_struck_at_any_change_of_a_file_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    run_plain(CASES, "a_struck_run_is_resumed_to_the_same_bits", str(tmp_path))


def test_answers_are_there_whole_or_not_at_all(tmp_path: Path) -> None:
    run_plain(CASES, "answers_are_written_whole_or_not_at_all", str(tmp_path))


def test_of_two_processes_in_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    run_plain(CASES, "two_processes_in_one_folder", str(tmp_path))


def test_a_flipped_byte_anywhere_in_a_checkpoint_is_found(tmp_path: Path) -> None:
    train_small(tmp_path, epochs=1)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    newest = checkpoints.newest()
    assert newest is not None
    draw = random.Random(None if MINUTES else 16)
    for path in sorted(newest.iterdir()):
        content = path.read_bytes()
        for at in {0, len(content) - 1, *some(range(len(content)), 40, per_minute=40)}:
            changed = bytearray(content)
            changed[at] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            assert checkpoints.newest() != newest, f"byte {at} of {path.name}"
        path.write_bytes(content)
    assert checkpoints.newest() == newest


def test_a_run_on_a_full_disk_goes_on_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_small(tmp_path / "whole")
    with small_disk(tmp_path / "disk", 1000) as disk:
        full_at(monkeypatch, 3, lambda: fill_up(disk, leave=40_000))
        with pytest.raises((NoSpaceError, CheckpointError), match=r"No space left on device, .* free .* make room"):
            train_small(disk / "run")
        monkeypatch.undo()
        assert read_record(disk / "run").status in ("running", "interrupted")
        assert not list((disk / "run").rglob(".*")), "nothing half-written takes up the room that is left"
        with pytest.raises(NoSpaceError, match=r"the run needs about .* kB for weights and checkpoints, and"):
            train_small(disk / "run", resume=True)
        (disk / "filler").unlink()
        assert train_small(disk / "run", resume=True).status == "finished"
        last = [sorted((place / "checkpoints").glob("step-*"))[-1] for place in (tmp_path / "whole", disk / "run")]
        whole, resumed = (load_file(place / "model.safetensors") for place in last)
        assert all(torch.equal(resumed[name], x) for name, x in whole.items())


def full_at(monkeypatch: pytest.MonkeyPatch, save: int, act: Any) -> None:
    """Do something before the n-th checkpoint is written."""
    real, calls = Checkpoints.save, []

    def watched(self: Checkpoints, *arguments: Any) -> Path:
        calls.append(arguments)
        if len(calls) == save:
            act()
        return real(self, *arguments)

    monkeypatch.setattr(Checkpoints, "save", watched)


def test_a_run_that_cannot_fit_on_its_disk_does_not_begin(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 100) as disk:
        with pytest.raises(NoSpaceError, match="make room, or choose a folder on another disk"):
            train_small(disk / "run")
        assert not list((disk / "run").iterdir())
