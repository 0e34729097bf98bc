from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from encoders.small_set import CountingWords

from meq.data.content import fingerprint_of
from meq.encoders import FeatureStore, Tokens
from meq.encoders.contract import Encoder
from meq.encoders.store import DamagedError, Features, Identity, Shard, StoreError, pack, read_manifest, stored_form
from meq.encoders.writing import ShardWriter, mend
from meq.records import write_bytes

WORDS = CountingWords()
TEXTS = ("a red circle", "", "there is no star", "a " * 70)


def filled(folder: Path, *, texts: tuple[str, ...] = TEXTS, **options: object) -> Features:
    store = FeatureStore(folder=folder, **options)
    features = store.features(WORDS)
    writer = ShardWriter(features, store)
    for text, tokens in zip(texts, WORDS(texts), strict=True):
        writer.add(fingerprint_of(text), tokens, cut=len(text) > 100)
    writer.flush()
    writer.finish()
    return features


def only_shard(folder: Path) -> Path:
    [path] = folder.rglob("*.safetensors")
    return path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


# -- what is read is what was written ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 1e-2), ("float32", 0)])
def test_features_of_any_length_come_back_with_their_places(tmp_path: Path, dtype: str, tolerance: float) -> None:
    filled(tmp_path, dtype=dtype)
    again = FeatureStore(folder=tmp_path, dtype=dtype).features(WORDS)
    assert len(again) == len(TEXTS)
    for text, tokens in zip(TEXTS, WORDS(TEXTS), strict=True):
        place = again.place(fingerprint_of(text))
        read = again.read(place)
        assert read.dtype == torch.float32
        torch.testing.assert_close(read, tokens.features, rtol=tolerance, atol=tolerance)
        assert torch.equal(again.tokens(place).spans, tokens.spans)
        assert again.tokens(place).boxes is None
        assert again.key(place) == fingerprint_of(text)
        assert again.cut(place) == (text == TEXTS[3])


def test_what_is_read_can_be_changed_without_changing_the_store(tmp_path: Path) -> None:
    features = filled(tmp_path, dtype="float32")
    before = features.read(0).clone()
    features.read(0).zero_()
    assert torch.equal(features.read(0), before)


def test_tokens_without_a_place_are_kept_beside_tokens_with_one(tmp_path: Path) -> None:
    identity = Identity.of(WORDS, "float32")
    boxed = Tokens(features=torch.ones(2, WORDS.width), boxes=torch.tensor([[0.0, 0, 4, 4], [torch.nan] * 4]))
    bare = Tokens(features=torch.ones(1, WORDS.width))
    contents = [(b"k" * 32, stored_form(boxed, identity), False), (b"l" * 32, stored_form(bare, identity), True)]
    path = tmp_path / "shard.safetensors"
    path.write_bytes(pack(contents, identity))
    shard = Shard(path, identity)
    assert shard.tokens(0).boxes[0].tolist() == [0, 0, 4, 4]
    assert shard.tokens(1).boxes.isnan().all()
    assert shard.cut == [False, True]


def test_encoders_that_differ_in_anything_have_folders_of_their_own(tmp_path: Path) -> None:
    class Other(CountingWords):
        def __init__(self, **changed: object) -> None:
            super().__init__()
            vars(self).update(changed)

    encoders: list[Encoder] = [WORDS, Other(name="w"), Other(revision="v2"), Other(weight_hash="ab"), Other(width=9)]
    folders = {
        FeatureStore(folder=tmp_path, dtype=dtype).features(e).folder
        for e in encoders
        for dtype in ("float16", "float32")
    }
    assert len(folders) == 10
    strange = FeatureStore(folder=tmp_path).features(Other(name="../../hub/model:x"))
    assert strange.folder.parent == tmp_path


def test_the_manifest_says_what_is_there_and_how_much_was_cut(tmp_path: Path) -> None:
    features = filled(tmp_path)
    manifest = read_manifest(features.folder)
    assert manifest["contents"] == 4
    assert manifest["truncated"] == 1
    assert manifest["encoder"]["weight_hash"] == WORDS.weight_hash
    assert manifest["shards"] == {
        only_shard(tmp_path).name: {"bytes": only_shard(tmp_path).stat().st_size, "contents": 4}
    }
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {".json", ".safetensors"}


def test_the_same_contents_make_the_same_file(tmp_path: Path) -> None:
    for _ in range(4):
        filled(tmp_path / "one")
    filled(tmp_path / "two")
    assert only_shard(tmp_path / "one").name == only_shard(tmp_path / "two").name


def test_a_folder_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    assert len(FeatureStore(folder=tmp_path / "nowhere").features(WORDS)) == 0
    assert FeatureStore(folder=tmp_path / "nowhere").damaged() == []
    assert not (tmp_path / "nowhere").exists()


# -- damage ------------------------------------------------------------------------------------------------------------


def test_wherever_a_byte_is_changed_nothing_wrong_is_ever_read(tmp_path: Path) -> None:
    texts = ("a red star", "two words")
    written = filled(tmp_path, texts=texts)
    right = {written.key(place): written.read(place) for place in range(len(texts))}
    path = only_shard(tmp_path)
    good, noticed = path.read_bytes(), 0
    for place in range(0, len(good), 7):
        flip(path, place)
        features = Features(tmp_path, Identity.of(WORDS, "float16"))
        for key, expected in right.items():
            try:
                assert torch.equal(features.read(features.place(key)), expected), f"byte {place}"
            except StoreError:  # damaged, or not there
                noticed += 1
        assert FeatureStore(folder=tmp_path).damaged() == [path]
        path.write_bytes(good)
    assert noticed >= len(good) // 7


def test_a_damaged_content_is_named_when_it_is_read_and_its_neighbours_still_serve(tmp_path: Path) -> None:
    filled(tmp_path)
    path = only_shard(tmp_path)
    with open(path, "rb") as file:
        head = int.from_bytes(file.read(8), "little")
        places = json.loads(file.read(head))["features"]["data_offsets"]
    flip(path, 8 + head + places[0])
    features = FeatureStore(folder=tmp_path).features(WORDS)
    with pytest.raises(DamagedError, match=r"safetensors is damaged: content 0 of 4 .* meq encode --verify"):
        features.read(0)
    assert features.read(2).shape == (4, WORDS.width)


@pytest.mark.parametrize("how", ["cut short", "empty", "another encoder's", "nonsense"])
def test_a_shard_that_cannot_be_opened_is_set_aside_and_named(tmp_path: Path, how: str) -> None:
    filled(tmp_path)
    path = only_shard(tmp_path)
    good = path.read_bytes()
    other = Identity.of(CountingWords(max_words=3), "float16")
    content = {
        "cut short": good[:-10],
        "empty": b"",
        "another encoder's": pack([(b"k" * 32, stored_form(WORDS(["a"])[0], other), False)], other),
        "nonsense": b"\xff" * 100,
    }
    path.write_bytes(content[how])
    store = FeatureStore(folder=tmp_path)
    features = store.features(WORDS)
    assert len(features) == 0
    assert "is damaged" in features.damaged[path]
    assert store.damaged() == [path]
    with pytest.raises(DamagedError, match="on_damage='encode'"):
        mend(FeatureStore(folder=tmp_path, on_damage="raise"), features.identity)
    assert path.exists()
    assert len(mend(store, features.identity)) == 1
    assert not path.exists()


def test_a_shard_that_may_not_be_read_is_an_error_and_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = filled(tmp_path).identity

    def refuse(path: Path, framework: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("meq.encoders.store.safe_open", refuse)
    with pytest.raises(StoreError, match=r"cannot be read: .*Permission denied"):
        mend(FeatureStore(folder=tmp_path), identity)
    assert only_shard(tmp_path).exists()


def test_a_content_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds nothing of the content 6162: encode it first"):
        filled(tmp_path).place(b"ab")


def test_a_shard_that_is_gone_is_noticed(tmp_path: Path) -> None:
    identity = filled(tmp_path).identity
    only_shard(tmp_path).unlink()
    with pytest.raises(DamagedError, match="is gone"):
        mend(FeatureStore(folder=tmp_path, on_damage="raise"), identity)
    assert len(mend(FeatureStore(folder=tmp_path), identity)) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"shards": ["x"]}', '{"shards": {"../../etc/x.safetensors": {}}}'])
def test_a_manifest_that_is_damaged_or_leads_elsewhere_is_refused(tmp_path: Path, content: str) -> None:
    features = filled(tmp_path)
    (features.folder / "manifest.json").write_text(content)
    with pytest.raises(DamagedError, match=r"manifest.json is damaged"):
        read_manifest(features.folder)
    assert len(mend(FeatureStore(folder=tmp_path), features.identity)) == 1
    assert read_manifest(features.folder) == {}
    assert len(FeatureStore(folder=tmp_path).features(WORDS)) == 4, "the shards are the truth"


def test_a_link_that_leads_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    features = filled(tmp_path / "store")
    path = only_shard(tmp_path / "store")
    os.rename(path, tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    with pytest.raises(StoreError, match="leads out of the store"):
        Features(tmp_path / "store", features.identity)


def test_files_that_are_no_shards_are_left_alone(tmp_path: Path) -> None:
    features = filled(tmp_path)
    (features.folder / "notes.safetensors").write_bytes(b"mine")
    (features.folder / ".writing-1-ab").write_bytes(b"half")
    again = FeatureStore(folder=tmp_path).features(WORDS)
    assert len(again) == 4
    assert again.damaged == {}


# -- what cannot be kept -----------------------------------------------------------------------------------------------


def test_a_feature_too_large_for_its_format_is_refused_not_made_infinite() -> None:
    large = Tokens(features=torch.full((1, WORDS.width), 1e5))
    with pytest.raises(StoreError, match=r"gave a feature of 1e\+05, which float16 cannot hold: use bfloat16"):
        stored_form(large, Identity.of(WORDS, "float16"))
    assert stored_form(large, Identity.of(WORDS, "bfloat16")).features.isfinite().all()
    with pytest.raises(StoreError, match=r"says that it is .* wide, and gave 3"):
        stored_form(Tokens(features=torch.ones(1, 3)), Identity.of(WORDS, "float16"))


@pytest.mark.usefixtures("unchecked")
def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'float16'"):
        FeatureStore(folder=tmp_path, dtype="float61")
    with pytest.raises(ValueError, match=r"cannot answer damage with 'encod'.*did you mean 'encode'"):
        FeatureStore(folder=tmp_path, on_damage="encod")
    with pytest.raises(ValueError, match="must be positive"):
        FeatureStore(folder=tmp_path, shard_bytes=0)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    write_bytes(path, b"first")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_shard_checks_a_content_once(tmp_path: Path) -> None:
    features = filled(tmp_path)
    shard = Shard(only_shard(tmp_path), features.identity)
    assert sum(shard.sound) == 0
    shard.features(2)
    shard.features(2)
    assert list(shard.sound) == [0, 0, 1, 0]
