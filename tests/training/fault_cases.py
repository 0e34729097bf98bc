"""Cases for `test_faults.py`, run in a fresh interpreter: children are forked, struck by faults, and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from itertools import product
from pathlib import Path

import torch
import torch._dynamo  # AdamW imports it; here it is done once, before the forks
from faults import Ended, in_child
from fuzzing import some
from studies.photo_table import BUILT_IN, request_for, write_table
from training.small import train_small

from meq.records import BusyError, sha256
from meq.runs import load_run, train_on
from meq.studies import StudyError
from meq.training import TrainConfig
from meq.training.record import read_record

torch.set_num_threads(1)
ONE_EPOCH = {"epochs": 1, "checkpoint_every": 4}


def a_struck_run_is_resumed_to_the_same_bits(root: str) -> None:
    """Killed, or met with a full disk, at any change of a file: resumed, the run is the one it would have been."""
    folder = Path(root)
    whole = in_child(lambda: train_small(folder / "whole", **ONE_EPOCH), under=folder / "whole")
    assert whole.code == 0
    assert whole.mutations is not None
    expected = what_a_run_keeps(folder / "whole")
    moments = range(1, whole.mutations + 1)
    for kind, at in [*(("kill", at) for at in some(moments, 9)), *(("full", at) for at in some(moments, 4))]:
        place = folder / f"{kind}-{at}"
        struck = in_child(lambda place=place: train_small(place, **ONE_EPOCH), under=place, kind=kind, at=at)
        assert_struck(struck, kind, place, at)
        resumed = in_child(lambda place=place: train_small(place, resume=True, **ONE_EPOCH), under=place)
        assert resumed.code == 0, f"{kind} at {at}: it could not be resumed"
        assert what_a_run_keeps(place) == expected, f"{kind} at {at}: other bits than without it"
        left = [path.name for path in place.rglob(".*")]
        assert not left, f"{kind} at {at}: {left}"
        assert load_run(place).sealed
        shutil.rmtree(place)


def assert_struck(struck: Ended, kind: str, place: Path, at: int) -> None:
    """It was, and what is left is a run that is not over: or one that is, and whole."""
    assert struck.killed if kind == "kill" else struck.code in (0, 1), (kind, at, struck)
    if not (place / "record.json").is_file():
        return
    record = read_record(place)
    assert record.status in ("running", "interrupted", "finished"), f"{kind} at {at}: {record.status}"
    if record.over:
        assert load_run(place).sealed
    elif (place / "model" / "config.json").is_file():
        try:
            run = load_run(place)
        except StudyError:  # no weights yet, or just being replaced
            return
        assert run.unfinished is not None, f"{kind} at {at}: a run that is {record.status} was loaded without a word"
        assert not run.sealed


def what_a_run_keeps(folder: Path) -> dict[str, str]:
    """The hashes of all that does not say when and how long."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    kept = [last / "model.safetensors", last / "optimiser.safetensors"]
    kept += [path for place in ("model", "predictions") for path in (folder / place).iterdir() if path.is_file()]
    return {path.relative_to(folder).as_posix(): sha256(path) for path in kept}


def answers_are_written_whole_or_not_at_all(root: str) -> None:
    """At every change of a file that `predict` makes: the old answers, the new ones, or none."""
    folder = Path(root)
    table = write_table(folder / "table")
    small, once = {"dim": 8, "heads": 2, "steps": 2}, TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)
    trained = in_child(
        lambda: train_on(request_for(table), folder / "run", encoders=BUILT_IN, shape=small, config=once), under=folder
    )
    assert trained.code == 0

    def answer(out: Path) -> None:
        load_run(folder / "run").predict_table(table).save(out / "answers.csv", force=True)

    whole = in_child(lambda: answer(folder / "whole"), under=folder / "whole")
    expected = (folder / "whole" / "answers.csv").read_bytes()
    assert whole.mutations
    for kind, at in product(("kill", "full"), range(1, whole.mutations + 1)):
        for before in (None, b"id\nold\n"):
            out = folder / f"{kind}-{at}-{before is None}"
            if before is not None:
                out.mkdir()
                (out / "answers.csv").write_bytes(before)
            struck = in_child(lambda out=out: answer(out), under=out, kind=kind, at=at)
            assert struck.killed or struck.code in (0, 1)
            path = out / "answers.csv"
            assert (path.read_bytes() if path.exists() else None) in (before, expected), f"{kind} at {at}"


def two_processes_in_one_folder(root: str) -> None:
    """The second is refused and changes nothing; the first is stopped by SIGTERM, and goes on where it stopped."""
    folder = Path(root) / "run"
    first = os.fork()
    if not first:
        os._exit(_trained(folder, epochs=400))
    while not (folder / "checkpoints" / "step-00000006").exists():
        time.sleep(0.02)
    second = os.fork()
    if not second:
        os._exit(_trained(folder, resume=True, epochs=400, seed=9))
    assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 17, "it was not refused"
    os.kill(first, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 128 + signal.SIGTERM
    record = read_record(folder)
    assert record.status == "interrupted"
    assert record.seed == 0
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    assert newest.name == f"step-{record.steps:08d}"


def _trained(folder: Path, **options: object) -> int:
    try:
        train_small(folder, **options)
    except BusyError:
        return 17
    except KeyboardInterrupt as error:
        return 128 + int(getattr(error, "number", 0))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0
