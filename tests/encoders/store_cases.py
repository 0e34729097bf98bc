"""Cases for `test_writing.py`, run in a fresh interpreter: children are forked, killed, raced and starved of space."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from encoders.small_set import CountingWords, text_set
from faults import in_child
from fuzzing import some

from meq.data.contract import DataSet
from meq.encoders import FeatureStore, encode
from meq.encoders.store import Features, StoreError, read_manifest
from meq.records import BusyError, alone

TEXTS = text_set(140)
SHARD_BYTES = 40_000
"""A shard of some thirty texts, so that there are several."""


def fill_store(folder: Path, *, seconds: float = 0.0, data: DataSet = TEXTS, shard_bytes: int = SHARD_BYTES) -> int:
    """Encode; returns how many texts this process encoded."""
    words = CountingWords(seconds=seconds)
    encode(data, {"text": words}, store=FeatureStore(folder=folder, shard_bytes=shard_bytes))
    return len(words.encoded)


def killed_at_every_write_it_goes_on(root: str) -> None:
    """SIGKILL before and after each fsync and rename that an encoding makes, one after the other."""
    folder, calls, found = Path(root), 0, []
    while True:
        calls += 1
        place = folder / f"{calls}"
        child = fork(lambda place=place, calls=calls: kill_at_write(calls, place))
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        left = check_what_is_there(place)
        encoded = fill_store(place)
        assert encoded == len(TEXTS.splits["train"]) - left, "what was written is not encoded again"
        assert check_what_is_there(place) == len(TEXTS.splits["train"])
        assert read_manifest(features(place).folder)["contents"] == len(TEXTS.splits["train"])
        found.append(left)
        if not killed:
            break
    assert calls > 10, f"only {calls} writes"
    assert 0 in found
    assert len(set(found)) > 3, found


def kill_at_write(number: int, folder: Path) -> None:
    seen = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal seen
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)  # type: ignore[assignment]
    fill_store(folder)


def killed_at_random_moments_it_goes_on(root: str, trials: str) -> None:
    """One store, an encoding that is killed again and again, and ends in the end."""
    folder, moments, sizes = Path(root), random.Random(5), [0]
    for _ in range(int(trials)):
        child = fork(lambda: fill_store(folder, seconds=0.002))
        time.sleep(moments.uniform(0.0, 0.35))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sizes.append(check_what_is_there(folder))
    assert sizes == sorted(sizes), "nothing that was written is ever lost"
    assert sizes[-1] > 0
    encoded = fill_store(folder)
    assert encoded == len(TEXTS.splits["train"]) - sizes[-1]
    assert check_what_is_there(folder) == len(TEXTS.splits["train"])
    assert fill_store(folder) == 0, "and the next run encodes nothing"


def two_processes_race(root: str) -> None:
    """One encoding fills a store slowly, a second one comes and is refused, and a third process reads meanwhile."""
    folder = Path(root) / "store"
    first = fork(lambda: fill_store(folder, seconds=0.01))
    while not check_what_is_there(folder):
        time.sleep(0.02)
    second = CountingWords()
    try:
        encode(TEXTS, {"text": second}, store=FeatureStore(folder=folder, shard_bytes=SHARD_BYTES))
    except BusyError as error:
        said = str(error)
    else:
        raise AssertionError("a second process wrote to the store")
    assert f"another process is filling the feature store {folder}: wait" in said, said
    assert second.encoded == []
    seen = 0
    while os.waitid(os.P_PID, first, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = check_what_is_there(folder)
        assert now >= seen
        seen = now
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
    assert check_what_is_there(folder) == len(TEXTS.splits["train"])
    assert FeatureStore(folder=folder).damaged() == []
    assert fill_store(folder) == 0


def a_whole_store_needs_no_lock(root: str) -> None:
    """Who finds all of its contents writes nothing, and is not refused by who writes others."""
    folder = Path(root) / "store"
    fill_store(folder)
    with alone(folder, "held by this process"):
        child = fork(lambda: fill_store(folder))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = fork(lambda: fill_store(folder, data=text_set(150)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "there was something to encode"


def a_file_that_may_not_grow(root: str) -> None:
    """The system refuses to write more than a few kilobytes to a file: an error in words, and nothing is lost."""
    folder, few = Path(root), text_set(40)
    fill_store(folder, data=few)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        fill_store(folder, shard_bytes=2**20)
    except StoreError as error:
        said = str(error)
    else:
        raise AssertionError("a write beyond the limit went through")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "cannot be written: File too large" in said, said
    assert "shards written before are whole and kept: make room, and encode again" in said, said
    assert not list(folder.rglob(".*writing*"))
    assert check_what_is_there(folder) == 40
    assert fill_store(folder) == len(TEXTS.splits["train"]) - 40


def a_struck_encoding_goes_on(root: str) -> None:
    """Killed, or met with a full disk, at any change of a file: nothing that was written is lost or encoded again."""
    folder = Path(root)
    whole = in_child(lambda: fill_store(folder / "whole"), under=folder / "whole")
    assert whole.code == 0
    assert whole.mutations
    moments = range(1, whole.mutations + 1)
    for kind, at in [*(("kill", at) for at in some(moments, 10)), *(("full", at) for at in some(moments, 6))]:
        place = folder / f"{kind}-{at}"
        struck = in_child(lambda place=place: fill_store(place), under=place, kind=kind, at=at)
        assert struck.killed if kind == "kill" else struck.code in (0, 1), (kind, at, struck)
        left = check_what_is_there(place)
        assert fill_store(place) == len(TEXTS.splits["train"]) - left, f"{kind} at {at}"
        assert check_what_is_there(place) == len(TEXTS.splits["train"])
        assert not list(place.rglob(".*")), f"{kind} at {at}: {list(place.rglob('.*'))}"


def features(folder: Path) -> Features:
    return FeatureStore(folder=folder).features(CountingWords())


def check_what_is_there(folder: Path) -> int:
    """How many contents the store holds, after seeing that it opens and that all of them are right."""
    kept = features(folder)
    assert not kept.damaged, kept.damaged
    for place in range(len(kept)):
        assert torch.equal(kept.read(place), EXPECTED[kept.key(place)])
    return len(kept)


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def expected() -> dict[bytes, torch.Tensor]:
    from meq.data.content import fingerprint_of

    texts = [example.content["text"] for example in TEXTS.splits["train"]]
    encoded = CountingWords()(texts)
    return {fingerprint_of(text): x.features.half().float() for text, x in zip(texts, encoded, strict=True)}


torch.set_num_threads(1)
EXPECTED = expected()
