"""Kills, full disks and flipped bytes over a feature store, at a sample of all places; at all by `make fuzz`."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path

import pytest
from encoders.small_set import CountingWords, text_set
from fuzzing import MINUTES, some
from plain import run_plain
from small_disk import fill_up, small_disk

from meq.encoders import FeatureStore, encode
from meq.encoders.store import DamagedError, Identity, StoreError
from meq.encoders.writing import mend

pytestmark = pytest.mark.fuzz
CASES = Path(__file__).with_name("store_cases.py")


def test_an_encoding_that_is_struck_at_any_change_of_a_file_goes_on(tmp_path: Path) -> None:
    run_plain(CASES, "a_struck_encoding_goes_on", str(tmp_path))


def test_a_flipped_byte_anywhere_in_a_store_is_found_and_its_file_named(tmp_path: Path) -> None:
    store = FeatureStore(folder=tmp_path, verify=True, on_damage="raise")
    encode(text_set(20), {"text": CountingWords()}, store=store)
    identity = Identity.of(CountingWords(), store.dtype)
    assert mend(store, identity) == []
    draw = random.Random(None if MINUTES else 16)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 3
    for path in files:
        content = path.read_bytes()
        for at in {0, len(content) - 1, *some(range(min(len(content), 20_000)), 60, per_minute=60)}:
            changed = bytearray(content)
            changed[at] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(DamagedError) as caught:
                mend(store, identity)
            assert path.name in str(caught.value) or "is gone" in str(caught.value), f"byte {at} of {path.name}"
        path.write_bytes(content)
    assert mend(store, identity) == []


def test_a_store_on_a_full_disk_keeps_what_it_has_and_goes_on_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 600) as disk:
        encode(text_set(40), {"text": CountingWords()}, store=disk / "store")
        filler = fill_up(disk, leave=30_000)
        with pytest.raises(StoreError, match=r"100 contents take at least .* free on its disk: make room"):
            encode(text_set(140), {"text": CountingWords()}, store=disk / "store")
        # what was asked before the work began may no longer hold when it is done
        monkeypatch.setattr(import_module("meq.encoders.encode"), "refuse_too_little_room", lambda *_: None)
        with pytest.raises(StoreError, match=r"No space left on device, .* free on the disk of .* are whole and kept"):
            encode(text_set(140), {"text": CountingWords()}, store=disk / "store")
        assert not list(disk.rglob(".*"))
        filler.unlink()
        rest = CountingWords()
        encode(text_set(140), {"text": rest}, store=disk / "store")
        assert len(rest.encoded) == 100
