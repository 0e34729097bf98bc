"""Runs that are stopped from outside: by signals, a full disk, a device without memory, a folder that is taken away."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from training.small import PENALTIES, small_config, small_data, small_model, train_small

from meq.errors import Interrupted
from meq.objectives import Objective
from meq.records import BusyError, NoSpaceError, alone
from meq.training import CheckpointError, TrainingError, bundle, checkpoint, fit, seed_everything
from meq.training.checkpoint import GoneError
from meq.training.record import read_record
from meq.training.terminal import StopRequests

fitting = importlib.import_module("meq.training.fit")  # `meq.training.fit` itself is the function


class Watched(Objective):
    """Does something at the n-th batch of the run."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__(task="classes", penalties=PENALTIES)
        self.left, self.act = at, act

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.act()
        return super().__call__(*arguments, **options)


def train(folder: Path, *, at: int = 0, act: Callable[[], object] = lambda: None, **options: Any) -> Any:
    """The run of `train_small`, with something that happens at batch `at`."""
    seed_everything(3)
    resume = options.pop("resume", False)
    model = small_model(damping="learned")
    quiet = Console(quiet=True)
    return fit(model, small_data(), Watched(at, act), folder, small_config(**options), resume=resume, console=quiet)


def send(*numbers: int) -> Callable[[], None]:
    return lambda: [os.kill(os.getpid(), number) for number in numbers]  # type: ignore[return-value]


def kept(folder: Path) -> dict[str, torch.Tensor]:
    """The selected weights, and those of the last checkpoint with their optimiser's state."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    selected = {f"kept {name}": x for name, x in load_file(folder / "model" / "model.safetensors").items()}
    return selected | load_file(last / "model.safetensors") | load_file(last / "optimiser.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("whole")
    train_small(folder)
    return kept(folder)


def resumes_to_the_same(folder: Path, whole: dict[str, torch.Tensor]) -> bool:
    assert train(folder, resume=True).status == "finished"
    found = kept(folder)
    return found.keys() == whole.keys() and all(torch.equal(found[name], x) for name, x in whole.items())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_a_run_after_its_update_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals, whole: dict[str, torch.Tensor]
) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted) as caught:
        train(tmp_path, at=3, act=send(number))
    assert caught.value.number == number
    assert isinstance(caught.value, KeyboardInterrupt)
    record = read_record(tmp_path)
    assert (record.status, record.steps, record.error) == ("interrupted", 3, None)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert resumes_to_the_same(tmp_path, whole)


def test_a_second_ctrl_c_ends_it_at_once_and_still_it_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, torch.Tensor]
) -> None:
    monkeypatch.setattr("meq.training.terminal.AGAIN_SECONDS", -1.0)
    with pytest.raises(Interrupted):
        train(tmp_path, at=4, act=send(signal.SIGINT, signal.SIGINT))
    assert read_record(tmp_path).status == "interrupted"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"], "the update was not ended"
    assert resumes_to_the_same(tmp_path, whole)


@pytest.mark.parametrize("twice", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_that_a_launcher_passes_on_as_well_still_leaves_a_checkpoint(
    tmp_path: Path, twice: signal.Signals
) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, at=3, act=send(twice, twice))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step-00000003"


@pytest.mark.parametrize("call", [1, 3], ids=["dev, first epoch", "scoring at the end"])
def test_a_signal_while_answers_are_computed_is_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, whole: dict[str, torch.Tensor]
) -> None:
    calls = []

    def poked(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == call:
            send(signal.SIGTERM)()
        return predict(*arguments, **options)

    predict = fitting.predict_split
    monkeypatch.setattr(fitting, "predict_split", poked)
    with pytest.raises(Interrupted):
        train(tmp_path)
    monkeypatch.undo()
    assert len(calls) == call
    assert read_record(tmp_path).status == "interrupted"
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    assert newest.name == ("step-00000006" if call == 1 else "step-00000012")
    assert resumes_to_the_same(tmp_path, whole)


def test_signals_are_left_alone_outside_of_the_main_thread_and_where_they_are_ignored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def elsewhere() -> None:
        with StopRequests():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [before]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequests(shown=False) as requests:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert requests.noted == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


FULL = OSError(28, "No space left on device")


def raises(error: BaseException) -> Callable[..., None]:
    def act(*arguments: Any, **options: Any) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (fitting, "write_bundle"),
        (bundle, "write_predictions"),
        (fitting, "seal_run"),
        (fitting.FusionModel, "save_pretrained"),
        (checkpoint.Checkpoints, "save"),
    ],
)
def test_a_full_disk_interrupts_a_run_wherever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, whole: dict[str, torch.Tensor]
) -> None:
    monkeypatch.setattr(module, name, raises(FULL))
    with pytest.raises(NoSpaceError) as caught:
        train(tmp_path)
    monkeypatch.undo()
    said = str(caught.value)
    assert f"the run in {tmp_path} could not be kept: No space left on device, " in said
    assert "free on the disk of" in said
    assert said.endswith("make room and resume it")
    record = read_record(tmp_path)
    assert record.status == "interrupted"
    assert record.error is not None
    assert record.error.kind == "NoSpaceError"
    assert resumes_to_the_same(tmp_path, whole)
    assert read_record(tmp_path).error is None


def test_a_full_disk_at_a_checkpoint_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meq.training.checkpoint.save_file", raises(FULL))
    with pytest.raises(CheckpointError, match=r"No space left on device, .* are free .*make room and resume"):
        train(tmp_path)
    assert read_record(tmp_path).status == "interrupted"


def test_a_disk_that_has_no_room_even_for_the_record_still_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = fitting.write_record, []

    def full_after_two(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            raise FULL
        real(*arguments)

    monkeypatch.setattr(fitting, "write_record", full_after_two)
    with pytest.raises(NoSpaceError, match="could not be kept"):
        train(tmp_path)
    monkeypatch.undo()
    assert read_record(tmp_path).status == "running"
    assert train(tmp_path, resume=True).status == "finished"


def test_too_little_room_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "free_bytes", lambda path: 100_000)
    words = r"needs about 176\.\d kB for weights and checkpoints, and 100\.0 kB are free on the disk of"
    with pytest.raises(NoSpaceError, match=words):
        train(tmp_path / "run", at=1, act=raises(AssertionError("it began")))
    assert not list((tmp_path / "run").iterdir())


def test_a_device_without_memory_interrupts_a_run_that_goes_on_in_smaller_parts(
    tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(
        TrainingError, match=r"not enough memory .* at step 3 .*half the batch_size and twice the accum"
    ):
        train(tmp_path, at=4, act=raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")))
    assert read_record(tmp_path).status == "interrupted"
    with pytest.raises(TrainingError, match="its config differs in batch_size"):
        train(tmp_path, resume=True, batch_size=4)
    record = train(tmp_path, resume=True, batch_size=4, accumulate=2)
    assert (record.status, record.steps) == ("finished", 12)
    found = kept(tmp_path)
    for name, x in whole.items():
        torch.testing.assert_close(found[name], x, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
@pytest.mark.parametrize("at", [3, 12], ids=["before a checkpoint", "before the end"])
def test_a_folder_that_is_taken_away_under_a_run_is_an_error(tmp_path: Path, at: int, replaced: bool) -> None:
    folder = tmp_path / "run"

    def take_away() -> None:
        shutil.rmtree(folder)
        if replaced:
            folder.mkdir()

    with pytest.raises(GoneError, match=r"run was removed, or replaced by another folder, while the run was trained"):
        train(folder, at=at, act=take_away)
    assert folder.exists() is replaced
    assert not replaced or not list(folder.iterdir()), "nothing of a lost run is written into another folder"


def test_weights_that_are_taken_away_under_a_run_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(GoneError, match=r"model.safetensors is gone: it was removed while the run went on"):
        train(tmp_path, at=12, act=lambda: shutil.rmtree(tmp_path / "model"), select="best", learning_rate=1e-9)
    assert read_record(tmp_path).status == "failed"


def test_a_second_run_in_the_same_folder_is_refused_and_nothing_mixes(
    tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    said: list[str] = []

    def second() -> None:
        thread = threading.Thread(target=lambda: said.append(str(refused(tmp_path))))
        thread.start()
        thread.join()

    record = train(tmp_path, at=5, act=second)
    assert said == [
        f"another process is at work on the run in {tmp_path}: wait until it has finished, or train in another folder"
    ]
    assert record.status == "finished"
    assert all(torch.equal(kept(tmp_path)[name], x) for name, x in whole.items())


def refused(folder: Path) -> BusyError:
    with pytest.raises(BusyError) as caught:
        train_small(folder, resume=True, seed=9)
    return caught.value


def test_who_holds_the_folder_already_may_train_in_it(tmp_path: Path) -> None:
    with alone(tmp_path, "a study"):
        assert train_small(tmp_path, epochs=1).status == "finished"
        assert isinstance(busy_elsewhere(tmp_path), BusyError), "the outer one keeps the lock"
    with alone(tmp_path, "free again"):
        pass


def busy_elsewhere(folder: Path) -> BaseException | None:
    found: list[BaseException] = []

    def ask() -> None:
        try:
            with alone(folder, "held"):
                pass
        except BusyError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0] if found else None


def test_what_a_killed_run_left_half_written_is_gone_after_the_next(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, at=3, act=send(signal.SIGTERM))
    (tmp_path / "model" / ".saving-abc").mkdir(parents=True)
    (tmp_path / "model" / ".saving-abc" / "config.json").write_text("{}")
    (tmp_path / "checkpoints" / ".writing-step-00000004-7").mkdir()
    for name in (".record.json.7.writing", "model/.task.json.7.writing"):
        (tmp_path / name).write_text("half")
    train(tmp_path, resume=True)
    assert not [path.name for path in tmp_path.rglob(".*")]


def test_the_files_of_a_run_may_be_read_by_the_same_people(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train_small(tmp_path, epochs=1)
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.*")}
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_file()} == {0o640}, json.dumps(modes, indent=1)
