from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from encoders.small_set import CountingWords, small_encoders, small_set, text_set, write_pictures
from plain import TESTS

from meq.data.content import PictureFile
from meq.data.contract import TEXT, DataSet, Example, Rows, collate, features
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY
from meq.data.transforms import standardise
from meq.encoders import FeatureStore, encode
from meq.encoders.builtin import Patches
from meq.encoders.encode import encode_and_count
from meq.encoders.store import DamagedError, read_manifest


def reading_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("features were read")

    monkeypatch.setattr("meq.encoders.store.Shard.features", refuse)


# -- the same features, wherever they are kept -------------------------------------------------------------------------


def test_a_store_and_memory_give_the_same_examples(tmp_path: Path) -> None:
    raw = small_set(tmp_path / "pictures")
    kept = encode(raw, small_encoders())
    stored = encode(raw, small_encoders(), store=tmp_path / "store")
    assert stored.widths == kept.widths
    for split in ("train", "dev"):
        assert len(stored.splits[split]) == len(raw.splits[split])
        for ours, theirs in zip(stored.splits[split], kept.splits[split], strict=True):
            assert (ours.id, int(ours.target)) == (theirs.id, int(theirs.target))
            for name in ("image", "text"):
                assert ours.content[name].dtype == torch.float32
                torch.testing.assert_close(ours.content[name], theirs.content[name], rtol=1e-3, atol=1e-3)
    batch = collate(list(stored.splits["train"]), stored.widths)
    assert batch.features["image"].shape == (18, 4, Patches(grid=2).width)


def test_each_distinct_content_is_encoded_once_and_never_again(tmp_path: Path) -> None:
    raw, words = small_set(tmp_path / "pictures"), CountingWords()
    first = encode_and_count(raw, {"image": Patches(grid=2), "text": words}, store=tmp_path / "store")
    assert len(words.encoded) == len(set(words.encoded)) == 5
    assert {name: (count.distinct, count.new) for name, count in first.counts.items()} == {
        "image": (6, 6),
        "text": (5, 5),
    }
    second = encode_and_count(raw, {"image": Patches(grid=2), "text": words}, store=tmp_path / "store")
    assert len(words.encoded) == 5
    assert {count.new for count in second.counts.values()} == {0}
    assert first.data.facts == second.data.facts, "a run that is resumed must find the data that it began with"


def test_the_same_picture_under_two_names_is_one_content(tmp_path: Path) -> None:
    raw = small_set(tmp_path / "pictures")
    (tmp_path / "pictures" / "1.png").write_bytes((tmp_path / "pictures" / "0.png").read_bytes())
    assert encode_and_count(raw, small_encoders(), store=tmp_path / "store").counts["image"].distinct == 5


def test_a_picture_file_is_hashed_once_however_many_pairs_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    original = PictureFile.fingerprint
    monkeypatch.setattr(PictureFile, "fingerprint", lambda self: hashed.append(self) or original(self))
    encode(small_set(tmp_path / "pictures"), small_encoders(), store=tmp_path / "store")
    assert len(hashed) == 6


def test_modalities_with_the_same_encoder_share_their_features(tmp_path: Path) -> None:
    texts = text_set(6)
    both = replace(
        texts,
        splits={
            "train": Rows(texts.splits["train"], lambda e: replace(e, content={"q": e.content["text"], "a": "yes"}))
        },
        modalities={"q": TEXT, "a": TEXT},
    )
    words = CountingWords()
    encoded = encode_and_count(both, {"q": words, "a": words}, store=tmp_path)
    assert len(words.encoded) == 7
    assert [path.name for path in tmp_path.iterdir()] == [FeatureStore(folder=tmp_path).features(words).folder.name]
    assert encoded.counts["a"].distinct == 1


def test_choices_missing_modalities_and_ready_features_stay_what_they_are(tmp_path: Path) -> None:
    rows = [
        Example(id="a", content={"text": ("one", "two words"), "sound": torch.ones(3)}, target=torch.tensor(0)),
        Example(id="b", content={"sound": torch.zeros(3)}, target=None),
        Example(id="c", content={"text": ("one",)}, target=torch.tensor(0)),
    ]
    data = DataSet(
        name="mixed",
        splits={"train": rows},
        modalities={"text": TEXT, "sound": features(3)},
        labels=("x", "y"),
        head="choices",
        metric=ACCURACY,
    )
    for store in (None, tmp_path):
        first, second, third = encode(data, {"text": CountingWords()}, store=store).splits["train"]
        assert [len(choice) for choice in first.content["text"]] == [1, 2]
        assert torch.equal(first.content["sound"], torch.ones(3))
        assert set(second.content) == {"sound"}
        assert isinstance(third.content["text"], tuple)


def test_an_example_tells_where_its_tokens_lie(tmp_path: Path) -> None:
    raw = small_set(tmp_path / "pictures")
    for store in (None, tmp_path / "store"):
        tokens = encode(raw, small_encoders(), store=store).splits["train"][0].facts["tokens"]()
        assert tokens["text"][0].spans[:2].tolist() == [[0, 5], [6, 8]]
        assert tokens["image"][0].boxes[-1].tolist() == [8, 6, 16, 12]


def test_texts_that_were_cut_are_counted_also_when_they_come_from_the_store(tmp_path: Path) -> None:
    for _ in range(2):
        data = encode(text_set(14), {"text": CountingWords(max_words=5)}, store=tmp_path)
        assert data.facts["truncated"] == {"text": 4}
    few = encode(text_set(3), {"text": CountingWords(max_words=5)}, store=tmp_path)
    assert few.facts["truncated"] == {"text": 0}, "those of this data set, not of the store"
    assert read_manifest(FeatureStore(folder=tmp_path).features(CountingWords(max_words=5)).folder)["truncated"] == 4


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    encode(text_set(70), {"text": CountingWords()}, store=tmp_path, progress=lambda *now: said.append(now))
    assert said[0] == ("looking at the data", 70, 70)
    assert [done for what, done, _ in said if what == "words-64-v1"][-1] == 70
    assert said[-1] == ("words-64-v1", 70, 70)


# -- fingerprints ------------------------------------------------------------------------------------------------------


def test_the_fingerprint_needs_no_feature_and_changes_with_whatever_decides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, store = small_set(tmp_path / "pictures"), tmp_path / "store"
    reading_nothing(monkeypatch)
    first = encode(raw, small_encoders(), store=store).fingerprint()
    assert encode(raw, small_encoders(), store=store).fingerprint() == first
    assert encode(raw, small_encoders(), store=tmp_path / "elsewhere").fingerprint() == first
    others = [
        raw,
        encode(raw, small_encoders()),
        encode(raw, small_encoders(), store=FeatureStore(folder=store, dtype="bfloat16")),
        encode(raw, {**small_encoders(), "text": CountingWords(max_words=2)}, store=store),
        encode(replace(raw, splits={"train": raw.splits["train"]}), small_encoders(), store=store),
    ]
    write_pictures(tmp_path / "more", 7)
    (tmp_path / "pictures" / "0.png").write_bytes((tmp_path / "more" / "6.png").read_bytes())
    others.append(encode(raw, small_encoders(), store=store))
    prints = [first, *(data.fingerprint() for data in others)]
    assert len(set(prints)) == len(prints)


def test_what_is_made_of_encoded_features_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    data = encode(small_set(tmp_path / "pictures"), small_encoders(), store=tmp_path / "store")
    scaled, _ = standardise(data)
    assert scaled.fingerprint() != data.fingerprint()
    half = replace(data, splits={"train": data.splits["train"][:3]})
    assert half.fingerprint() != data.fingerprint()


# -- what is wrong -----------------------------------------------------------------------------------------------------


def break_one(folder: Path, number: int = 2) -> None:
    path = folder / f"{number}.png"
    path.write_bytes(path.read_bytes()[:60])


@pytest.mark.parametrize("how", ["broken", "missing"])
@pytest.mark.parametrize("stored", [True, False])
def test_a_bad_picture_is_named_or_its_examples_are_left_out(tmp_path: Path, how: str, stored: bool) -> None:
    raw, store = small_set(tmp_path / "pictures"), tmp_path / "store" if stored else None
    if how == "broken":
        break_one(tmp_path / "pictures")
    else:
        (tmp_path / "pictures" / "2.png").unlink()
    with pytest.raises(DataError, match=r"pictures/2.png: .*on_bad='skip'"):
        encode(raw, small_encoders(), store=store)
    encoded = encode_and_count(raw, small_encoders(), store=store, on_bad="skip")
    assert encoded.left_out == {"train": 3, "dev": 1}
    assert encoded.data.facts["not encoded"] == {"train": 3, "dev": 1}
    assert set(encoded.findings.counts) == {"broken picture"}
    ids = [example.id for split in encoded.data.splits.values() for example in split]
    assert ids == [f"pair-{number}" for number in range(24) if number % 6 != 2]
    assert encoded.counts["image"].distinct == 5


def test_a_damaged_store_is_mended_or_reported(tmp_path: Path) -> None:
    words = CountingWords()
    encode(text_set(9), {"text": words}, store=tmp_path)
    [shard] = tmp_path.rglob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-2000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedError, match="does not match its checksum"):
        list(encode(text_set(9), {"text": words}, store=tmp_path).splits["train"])
    with pytest.raises(DamagedError, match="its bytes do not have the hash"):
        encode(text_set(9), {"text": words}, store=FeatureStore(folder=tmp_path, verify=True, on_damage="raise"))
    assert len(words.encoded) == 9
    mended = encode_and_count(text_set(9), {"text": words}, store=FeatureStore(folder=tmp_path, verify=True))
    assert len(mended.mended) == 1
    assert len(words.encoded) == 18
    assert len(list(mended.data.splits["train"])) == 9


def test_encoders_that_do_not_fit_the_data_are_refused(tmp_path: Path) -> None:
    raw = small_set(tmp_path / "pictures")
    with pytest.raises(ValueError, match="no modality 'imag' to encode: did you mean 'image'"):
        encode(raw, {"imag": Patches()})
    with pytest.raises(ValueError, match="'image' is of kind 'image', the encoder 'words-64-v1' reads text"):
        encode(raw, {"image": CountingWords()})
    with pytest.raises(ValueError, match="no encoder was given for 'text'"):
        encode(raw, {"image": Patches()})


@pytest.mark.usefixtures("unchecked")
def test_options_that_do_not_exist_are_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'store'"):
        encode(text_set(2), {"text": CountingWords()}, stroe=tmp_path)
    with pytest.raises(ValueError, match="did you mean 'skip'"):
        encode(text_set(2), {"text": CountingWords()}, on_bad="skipp")


# -- several processes -------------------------------------------------------------------------------------------------


def test_two_processes_of_one_launch_share_the_work(tmp_path: Path) -> None:
    pictures, store = tmp_path / "pictures", tmp_path / "two"
    write_pictures(pictures, 6)
    break_one(pictures, 3)  # one that the second process comes upon
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    case = Path(__file__).with_name("process_cases.py")
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}", "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, *torchrun, str(case), str(pictures), str(store)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in (0, 1))
    assert set(first["texts"]).isdisjoint(second["texts"])
    assert len(first["texts"]) + len(second["texts"]) == 5
    assert {**first, "texts": 0} == {**second, "texts": 0}, "both have the same data set in the end"
    assert first["new"] == {"image": 6, "text": 5}
    assert first["left out"] == {"train": 3, "dev": 1}
    assert first["problems"] == {"broken picture": 1}
    alone = encode(small_set(pictures), small_encoders(), store=tmp_path / "one", on_bad="skip")
    assert alone.fingerprint() == first["fingerprint"]
