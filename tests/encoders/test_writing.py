from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from encoders.small_set import CountingWords, text_set
from plain import run_plain

from meq.data.findings import DataError, Finding
from meq.encoders import FeatureStore, Tokens, encode, writing
from meq.encoders.encode import encode_batch
from meq.encoders.store import StoreError
from meq.records import files

CASES = Path(__file__).with_name("store_cases.py")


def test_killed_before_any_of_its_writes_an_encoding_goes_on_from_the_last_shard(tmp_path: Path) -> None:
    run_plain(CASES, "killed_at_every_write_it_goes_on", str(tmp_path))


def test_killed_at_random_moments_a_store_only_ever_grows(tmp_path: Path) -> None:
    run_plain(CASES, "killed_at_random_moments_it_goes_on", str(tmp_path), "15")


def test_of_two_processes_that_fill_one_store_the_second_is_refused_and_a_third_may_read(tmp_path: Path) -> None:
    run_plain(CASES, "two_processes_race", str(tmp_path))


def test_a_store_that_has_all_is_read_while_another_process_fills_it(tmp_path: Path) -> None:
    run_plain(CASES, "a_whole_store_needs_no_lock", str(tmp_path))


def test_a_file_that_may_not_grow_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    run_plain(CASES, "a_file_that_may_not_grow", str(tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode(text_set(20), {"text": CountingWords()}, store=tmp_path)
    full = Path("/dev/full").open  # a method, so that what is opened is closed by whoever asked for it
    monkeypatch.setattr(files, "open", lambda path, mode: full("wb"), raising=False)
    with pytest.raises(
        StoreError,
        match=r"No space left on device, .* free on the disk of .*\. The 1 shards .* are whole and kept: make room",
    ):
        encode(text_set(40), {"text": CountingWords()}, store=tmp_path)
    monkeypatch.undo()
    words = CountingWords()
    encode(text_set(40), {"text": words}, store=tmp_path)
    assert len(words.encoded) == 20


def test_a_store_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=r"file is not a folder; a feature store needs one"):
        encode(text_set(3), {"text": CountingWords()}, store=tmp_path / "file")


def test_an_interrupted_encoding_keeps_what_it_has(tmp_path: Path) -> None:
    class Interrupted(CountingWords):
        def __call__(self, contents):
            if len(self.encoded) >= 64:
                raise KeyboardInterrupt
            return super().__call__(contents)

    with pytest.raises(KeyboardInterrupt):
        encode(text_set(192), {"text": Interrupted()}, store=tmp_path)
    rest = CountingWords()
    encode(text_set(192), {"text": rest}, store=tmp_path)
    assert len(rest.encoded) == 128


def test_a_slow_encoder_writes_a_shard_after_a_while_however_small(tmp_path: Path) -> None:
    store = FeatureStore(folder=tmp_path, shard_seconds=1e-9)
    encode(text_set(5), {"text": CountingWords()}, store=store)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 5
    encode(text_set(80), {"text": CountingWords()}, store=FeatureStore(folder=tmp_path))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 6


def test_what_a_killed_process_left_is_cleared_away_by_who_holds_the_store(tmp_path: Path) -> None:
    folder = FeatureStore(folder=tmp_path).features(CountingWords()).folder
    folder.mkdir()
    old, young = folder / ".writing-1-old", folder / f".{'a' * 64}.safetensors.17.writing"
    for path in (old, young):
        path.write_bytes(b"half a shard")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    writing.clear_forgotten(folder, held=False)
    assert not old.exists()
    assert young.exists(), "without a lock, another process may be writing it"
    encode(text_set(3), {"text": CountingWords()}, store=tmp_path)
    assert not young.exists()


class Picky(CountingWords):
    """Refuses one text, and gives nonsense for another."""

    def __call__(self, contents):
        if "refused" in contents:
            raise DataError("this text is refused")
        made = super().__call__(contents)
        return [
            Tokens(features=x.features * torch.nan) if text == "nonsense" else x
            for text, x in zip(contents, made, strict=True)
        ]


def test_one_bad_content_does_not_take_its_batch_with_it() -> None:
    found: dict[bytes, Finding] = {}
    texts = {b"a": "a", b"b": "refused", b"c": "nonsense", b"d": "d"}
    encoded = {key for key, _, _ in encode_batch(Picky(), texts, found.__setitem__)}
    assert encoded == {b"a", b"d"}
    assert str(found[b"b"]) == "the text 'refused': this text is refused"
    assert found[b"c"].kind == "not finite"


def test_which_texts_were_cut_is_found_out_from_the_encoders_count() -> None:
    words = CountingWords(max_words=2)
    texts = {b"a": "one two three", b"b": "one two", b"c": "a b c d"}
    found = {key: cut for key, _, cut in encode_batch(words, texts, lambda key, finding: None)}
    assert found == {b"a": True, b"b": False, b"c": True}
    assert words.truncated == 2, "each is counted once, also where it was encoded again"


def test_an_encoder_that_loses_contents_is_caught() -> None:
    class Forgetful(CountingWords):
        def __call__(self, contents):
            return super().__call__(contents)[:1]

    with pytest.raises(ValueError, match="was given 2 contents and encoded 1"):
        list(encode_batch(Forgetful(), {b"a": "a", b"b": "b"}, lambda key, finding: None))
