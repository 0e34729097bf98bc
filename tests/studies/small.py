"""A study of a second or two, for tests that need several processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from meq.studies import Study, make_study, records_of
from meq.studies.study import ArmConfig, run_place

TINY = make_study("statements-tiny")
CONCAT = ArmConfig(name="concat", model="concat", options={"dim": 16, "head_width": 16})
WILD = replace(CONCAT, name="wild", train={"learning_rate": 1e30})
SMALL = replace(
    TINY,
    name="small",
    arms=(CONCAT,),
    seeds=(0, 1),
    train=replace(TINY.train, epochs=8, checkpoint_every=2),
)
"""Long enough to be killed in the middle."""


def results(folder: Path, study: Study) -> dict[tuple[str, int], tuple[object, ...]]:
    """All that may not depend on how a study was run."""
    return {
        run: (record.metrics, record.checkpoint, record.predictions, record.curves, record.vitals)
        for run, record in records_of(folder, study).items()
    }


@contextmanager
def once_trained(folder: Path, run: tuple[str, int], act: Callable[[], None]) -> Iterator[None]:
    """Do something as soon as the run has its first checkpoint, whatever the block is busy with."""
    done, stop = threading.Event(), threading.Event()

    def watch() -> None:
        while not list((folder / run_place(*run) / "checkpoints").glob("step-*")):
            if stop.is_set():
                return
            time.sleep(0.002)
        act()
        done.set()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert done.is_set(), f"{run} never had a checkpoint"
