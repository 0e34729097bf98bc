"""What is known is read, and only the rest is encoded."""

from __future__ import annotations

from pathlib import Path

import torch
from encoders.small_set import CountingWords, text_set

from meq.encoders import FeatureStore, encode
from meq.encoders.known import KnownEncoder
from meq.encoders.store import Features, Identity, ReadOnlyStore, shard_files
from meq.records import alone

DATA = text_set(12)
TEXTS = [str(example.content["text"]) for example in DATA.splits["train"]]


def known(encoder: CountingWords, remember: int = 8) -> KnownEncoder:
    return KnownEncoder(Identity.of(encoder, "float32"), lambda: encoder, remember=remember)


def filled(folder: Path) -> ReadOnlyStore:
    """With the features of every second text."""
    encode(text_set(6), {"text": CountingWords()}, store=FeatureStore(folder=folder, dtype="float32"))
    return ReadOnlyStore(folder=folder, dtype="float32")


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_content_is_encoded_once_however_often_it_is_asked_for() -> None:
    words = CountingWords()
    reading = known(words)
    first, again = reading(["one", "two", "one"]), reading(["two", "one", "six"])
    assert words.encoded == ["one", "two", "six"]
    assert torch.equal(again[1].features, first[0].features)
    assert torch.equal(again[1].spans, first[0].spans)
    assert torch.equal(first[0].features, CountingWords()(["one"])[0].features)


def test_only_the_latest_are_remembered() -> None:
    words = CountingWords()
    reading = known(words, remember=1)
    for text in ("one", "two", "two", "one"):
        reading([text])
    assert words.encoded == ["one", "two", "one"]


def test_what_was_cut_is_counted_as_the_encoder_itself_would_have() -> None:
    reading = known(CountingWords(max_words=2))
    reading(["one", "one two three"])
    assert reading.truncated == 1
    reading(["one two three"])
    assert reading.truncated == 2


def test_an_encoder_whose_features_are_all_in_the_store_is_never_loaded(tmp_path: Path) -> None:
    def load() -> CountingWords:
        raise AssertionError("it was loaded")

    words = CountingWords()
    reading = KnownEncoder(Identity.of(words, "float32"), load, store=filled(tmp_path))
    for mine, theirs in zip(reading(TEXTS[:6]), words(TEXTS[:6]), strict=True):
        assert torch.equal(mine.features, theirs.features)
        assert torch.equal(mine.spans, theirs.spans)


def test_a_store_that_is_only_read_gives_what_it_has_and_is_left_as_it_was(tmp_path: Path) -> None:
    store, words = filled(tmp_path), CountingWords()
    before = files_below(tmp_path)
    with alone(tmp_path, "somebody else is writing"):  # which refuses no reader
        found = encode(DATA, {"text": words}, store=store)
    assert sorted(map(str, words.encoded)) == sorted(set(TEXTS[6:]))
    plain = encode(DATA, {"text": CountingWords()})
    for mine, theirs in zip(found.splits["train"], plain.splits["train"], strict=True):
        assert torch.equal(mine.content["text"], theirs.content["text"])
    assert found.fingerprint() == plain.fingerprint()
    assert files_below(tmp_path) == before


def test_what_is_damaged_in_a_store_that_is_only_read_is_encoded_again(tmp_path: Path) -> None:
    store, words = filled(tmp_path), CountingWords()
    (shard,) = shard_files(tmp_path / Identity.of(words, "float32").folder)
    content = bytearray(shard.read_bytes())
    features = Features(tmp_path, Identity.of(words, "float32"))
    at = content.index(features.read(features.place(features.key(2))).numpy().tobytes())
    content[at] ^= 1
    shard.write_bytes(content)
    found = encode(text_set(6), {"text": words}, store=store)
    assert len(words.encoded) == 1, "the others are read"
    assert torch.equal(found.splits["train"][0].content["text"], CountingWords()(TEXTS[:1])[0].features)


def test_half_precision_is_read_as_numbers_of_single_precision(tmp_path: Path) -> None:
    encode(text_set(6), {"text": CountingWords()}, store=FeatureStore(folder=tmp_path))
    found = encode(DATA, {"text": CountingWords()}, store=ReadOnlyStore(folder=tmp_path))
    kinds = {example.content["text"].dtype for example in found.splits["train"]}
    assert kinds == {torch.float32}
