from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain import run_plain
from rich.console import Console
from safetensors.torch import load_file, save_file
from training.small import PENALTIES, small_config, small_data, small_model, train_small

from meq.objectives import Objective
from meq.training import CheckpointError, TrainingError, checkpoint, fit

CASES = Path(__file__).with_name("kill_cases.py")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted((folder / "checkpoints").glob("step-*"))[-1] / "model.safetensors")


def test_a_run_killed_at_twenty_random_moments_ends_with_the_same_bits(tmp_path: Path) -> None:
    run_plain(CASES, "killed_anywhere_ends_with_the_same_weights", str(tmp_path), "20")


def test_the_same_seed_gives_the_same_run_twice(tmp_path: Path) -> None:
    first, second = train_small(tmp_path / "a"), train_small(tmp_path / "b")
    assert first.curves == second.curves
    for name, x in weights(tmp_path / "a").items():
        assert torch.equal(weights(tmp_path / "b")[name], x), name
    third = train_small(tmp_path / "c", seed=5)
    assert third.curves != first.curves


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train_small(tmp_path)
    with pytest.raises(TrainingError, match="already holds a run: resume it, or choose another folder"):
        train_small(tmp_path)


def test_a_run_is_resumed_with_the_options_it_was_begun_with(tmp_path: Path) -> None:
    train_small(tmp_path)
    with pytest.raises(TrainingError, match=r"cannot be resumed: its config differs in learning_rate"):
        train_small(tmp_path, resume=True, learning_rate=0.5)
    assert train_small(tmp_path, resume=True).status == "finished", "a finished run has nothing left to do"


def damage_newest(folder: Path, how: str) -> Path:
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    file = newest / "model.safetensors"
    if how == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    else:
        (newest / "state.json").unlink()
    return newest


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_last_good_one_is_used(tmp_path: Path, how: str) -> None:
    train_small(tmp_path / "whole")
    train_small(tmp_path / "hurt")
    newest = damage_newest(tmp_path / "hurt", how)
    console = Console(record=True, file=io.StringIO(), width=400)
    model, objective = small_model(damping="learned"), Objective(penalties=PENALTIES)
    fit(model, small_data(), objective, tmp_path / "hurt", small_config(), resume=True, console=console)
    said = console.export_text()
    assert f"{newest} is damaged" in said
    assert "Going on from the last good checkpoint" in said
    assert "step-00000010" in said
    for name, x in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "hurt")[name], x), name


def test_when_every_checkpoint_is_damaged_the_error_says_so(tmp_path: Path) -> None:
    train_small(tmp_path)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        (path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no good one is left: start again in a new folder"):
        train_small(tmp_path, resume=True)


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    calls = []

    def full_after_two(tensors: dict, path: Path) -> None:
        calls.append(path)
        if len(calls) > 4:  # two files per checkpoint: the third checkpoint fails
            Path(path).write_bytes(b"half a file")
            raise OSError(28, "No space left on device")
        save(tensors, path)

    save = checkpoint.save_file
    monkeypatch.setattr(checkpoint, "save_file", full_after_two)
    with pytest.raises(CheckpointError, match=r"No space left on device.*The last good one is .*step-00000004"):
        train_small(tmp_path)
    monkeypatch.undo()
    assert not list((tmp_path / "checkpoints").glob(".writing*"))
    train_small(tmp_path, resume=True)
    shutil.rmtree(tmp_path / "whole", ignore_errors=True)
    train_small(tmp_path / "whole")
    for name, x in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path)[name], x), name


def test_a_folder_that_cannot_be_written_is_an_error_before_any_work(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        train_small(blocked / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_batch(tmp_path: Path) -> None:
    class Poisoned(Objective):
        calls = 0

        def __call__(self, model, output, target, *, seeds=None):
            loss = super().__call__(model, output, target, seeds=seeds)
            Poisoned.calls += 1
            if Poisoned.calls < 6:
                return loss
            return replace(loss, total=loss.total * float("nan"), per_sample=loss.per_sample * float("nan"))

    model = small_model()
    with pytest.raises(
        TrainingError, match=r"not finite at step 5 \(batch train-.*last good checkpoint is .*step-00000004"
    ):
        fit(model, small_data(), Poisoned(penalties=()), tmp_path, small_config(), console=Console(quiet=True))
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "failed"
    assert record["error"]["kind"] == "TrainingError"
    assert len(record["error"]["batch_ids"]) == 8
    assert str(tmp_path) not in record["error"]["message"], "the folder may be moved"
    assert all(p.isfinite().all() for p in model.parameters()), "the weights were not touched"
    assert not (tmp_path / "model").exists(), "a failed run has no selected model"


def test_checkpoints_hold_no_pickle(tmp_path: Path) -> None:
    train_small(tmp_path)
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds <= {".safetensors", ".json", ".md", ".parquet"}


def test_a_run_that_is_over_is_not_overwritten_though_its_checkpoints_are_gone(tmp_path: Path) -> None:
    train_small(tmp_path)
    before = (tmp_path / "record.json").read_bytes()
    shutil.rmtree(tmp_path / "checkpoints")
    for resume in (False, True):
        with pytest.raises(TrainingError, match="holds a run that is over, and its checkpoints are gone"):
            train_small(tmp_path, resume=resume)
    assert (tmp_path / "record.json").read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_checkpoint_is_the_file_that_safetensors_writes(tmp_path: Path, dtype: torch.dtype) -> None:
    """Whichever way it takes: small tensors go by numpy, which does not know bfloat16."""
    tensors = {"b": torch.arange(6).reshape(2, 3).to(dtype), "a": torch.tensor(2).to(dtype), "none": torch.zeros(0)}
    checkpoint.save_file(tensors, tmp_path / "ours")
    save_file(tensors, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_weights_that_are_tied_are_kept_in_a_checkpoint(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    checkpoint.save_file({"a": whole, "b": whole[:2]}, tmp_path / "tied")
    assert torch.equal(load_file(tmp_path / "tied")["b"], whole[:2])
