"""Cases for `test_faults.py`, run in a fresh interpreter: a small study is forked and hurt, then run once more."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch._dynamo
from faults import in_child
from fuzzing import MINUTES
from rich.console import Console
from studies.small import CONCAT, SMALL, results

from meq.records import BusyError, NoSpaceError
from meq.studies import read_record, run_study, verify
from meq.studies.study import run_place

QUIET = Console(quiet=True)
PARENT = os.getpid()
STUDY = replace(
    SMALL,
    arms=(CONCAT, replace(CONCAT, name="wider", options={"dim": 24, "head_width": 16})),
    seeds=(0,),
    train=replace(SMALL.train, epochs=1, checkpoint_every=2),
)


def killed_at_mutations(root: str, count: str) -> None:
    """SIGKILL just before a mutation of the study's files; the same call then ends with the same bytes."""
    folder = Path(root)
    total = _run(folder / "whole" / "study", under=folder / "whole")
    whole = _outcome(folder / "whole" / "study")
    for at in _some(total, int(count)):
        place = folder / f"{at}"
        hurt = in_child(lambda place=place: _study(place / "study"), under=place, kind="kill", at=at)
        assert hurt.killed, f"mutation {at} of {total}: {hurt}"
        _run(place / "study", under=place)
        _same(place, whole, f"killed at mutation {at} of {total}")


def full_at_mutations(root: str, count: str) -> None:
    """From one mutation on there is no room. The study stops, no run has failed, and it goes on once there is room."""
    folder = Path(root)
    total = _run(folder / "whole" / "study", under=folder / "whole")
    whole = _outcome(folder / "whole" / "study")
    stopped = 0
    for at in _some(total, int(count)):
        place = folder / f"{at}"
        hurt = in_child(lambda place=place: _stopping(place / "study"), under=place, kind="full", at=at)
        assert hurt.code in (0, 3), f"mutation {at} of {total}: {hurt}"
        stopped += hurt.code == 3
        for run in STUDY.runs():
            if (place / "study" / run_place(*run) / "record.json").is_file():
                assert read_record(place / "study" / run_place(*run)).status != "failed", f"mutation {at}"
        _run(place / "study", under=place)
        _same(place, whole, f"full from mutation {at} of {total} on")
    assert stopped, "no study met the full disk"


def begun_twice(root: str, times: str) -> None:
    """Two processes at the same moment in the same new folder: one makes the study, the other is refused."""
    for time in range(int(times)):
        place = Path(root) / f"{time}"
        place.mkdir()
        children = [os.fork() for _ in range(2) if os.getpid() == PARENT]
        if os.getpid() != PARENT:
            os._exit(_refused_or_made(place / "study"))
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        assert codes in ([0, 4], [0, 0]), codes  # one that comes late finds the study complete
        assert [path.name for path in place.iterdir()] == ["study"]
        assert verify(place / "study", require_checkpoints=True).faults == []


def _refused_or_made(folder: Path) -> int:
    try:
        _study(folder)
    except BusyError:
        return 4
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _stopping(folder: Path) -> None:
    """Ends with 3 if the study said that there is no room."""
    try:
        _study(folder)
    except NoSpaceError as error:
        if "no run counts as failed" in str(error) and "the same command goes on" in str(error):
            os._exit(3)
        raise


def _study(folder: Path) -> None:
    torch.set_num_threads(1)
    run_study(STUDY, folder, console=QUIET)


def _run(folder: Path, *, under: Path) -> int:
    under.mkdir(parents=True, exist_ok=True)
    ended = in_child(lambda: _study(folder), under=under)
    assert ended.code == 0, f"{folder}: the study ended with {ended.code}"
    assert ended.mutations is not None
    return ended.mutations


def _same(place: Path, whole: object, words: str) -> None:
    assert [path.name for path in place.iterdir()] == ["study"], f"{words}: something is left beside the study"
    assert _outcome(place / "study") == whole, words
    found = verify(place / "study", require_checkpoints=True)
    assert found.faults == [], f"{words}: {found.faults}"


def _outcome(folder: Path) -> tuple[object, ...]:
    """Scores, weights and tables, but for the table of runs, which has their seconds."""
    tables = {path.name: path.read_bytes() for path in (folder / "tables").iterdir() if path.stem != "runs"}
    return results(folder, STUDY), tables


def _some(total: int, count: int) -> Iterator[int]:
    """The first and the last mutations, and a seeded sample of the others; all of them under `make fuzz`."""
    if MINUTES:
        return iter(range(1, total + 1))
    return iter(sorted({1, total, *random.Random(3).sample(range(2, total), count - 2)}))
