"""What is kept of an encoder is enough to make it again: built-in ones, models in folders, and a user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import reload, util
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders import letters
from encoders.models import noise, save_bert, save_clip, save_wav2vec2
from encoders.small_set import CountingWords
from PIL import Image
from plain import run_plain
from studies.photo_table import request_for, write_table

from meq.data.content import Content, Regions
from meq.encoders import Encoder, EncoderError, Tokens, make_encoder, register_encoder
from meq.encoders.builtin import Patches, Words
from meq.encoders.catalogue import CNN_PACKAGE, ENCODERS, encoder_from_spec, specs_from_name
from meq.encoders.marks import Marks
from meq.encoders.sentences import Sentences
from meq.runs import load_run, train_on
from meq.training import TrainConfig
from meq.training.bundle import read_task

CASES = Path(__file__).with_name("spec_cases.py")
ROOT = Path(__file__).resolve().parents[2]
OLD_TASKS = sorted([*ROOT.glob("tests/records/**/task.json"), *ROOT.glob("results/**/task.json")])
needs_transformers = pytest.mark.skipif(
    util.find_spec("transformers") is None, reason="needs the extra: pip install 'meq[encoders]'"
)
needs_cnn = pytest.mark.skipif(
    util.find_spec(CNN_PACKAGE) is None, reason="needs the extra: pip install 'meq[offline]'"
)


@pytest.fixture
def forgotten() -> Iterator[list[str]]:
    """Names that are registered in a test, and forgotten after it."""
    names: list[str] = []
    yield names
    for name in names:
        ENCODERS.remove(name)


def same(one: Encoder, other: Encoder) -> bool:
    parts = ("name", "revision", "weight_hash", "kind", "width")
    return type(one) is type(other) and all(getattr(one, part) == getattr(other, part) for part in parts)


def stored(encoder: Encoder) -> dict[str, object]:
    return json.loads(json.dumps(encoder.spec))


@pytest.mark.parametrize(
    "encoder",
    [
        *(Patches(grid=3), Words(max_words=5), letters.Letters(most=3)),
        *(Marks(grid=3), Sentences(max_sentences=7)),
    ],
)
def test_an_encoder_is_made_again_from_its_spec(encoder: Encoder) -> None:
    assert same(encoder_from_spec(stored(encoder)), encoder)


@needs_cnn
@pytest.mark.parametrize("kind", ["image", "regions"])
def test_an_offline_encoder_is_made_again_from_its_spec(kind: str) -> None:
    encoder = make_encoder("cnn", kind)
    patches = {"patches": True} if kind == "regions" else {}
    assert encoder.spec == {"encoder": "cnn", "kind": kind, "options": {}, **patches}
    assert same(encoder_from_spec(stored(encoder), batch_size=7), encoder)


@needs_transformers
def test_a_model_in_a_folder_is_made_again_with_its_options_where_the_folder_is_given(tmp_path: Path) -> None:
    from meq.encoders.audio import TransformerAudio
    from meq.encoders.image import PictureRegions, TransformerImage
    from meq.encoders.text import TransformerText

    bert, clip, sound = save_bert(tmp_path / "bert"), save_clip(tmp_path / "clip"), save_wav2vec2(tmp_path / "w2v")
    made: dict[Path, list[Encoder]] = {
        bert: [TransformerText(str(bert), max_tokens=9)],
        clip: [TransformerImage(str(clip)), PictureRegions(TransformerImage(str(clip)))],
        sound: [TransformerAudio(str(sound), max_seconds=2.5)],
    }
    for folder, encoders in made.items():
        for encoder in encoders:
            spec = stored(encoder)
            assert str(tmp_path) not in json.dumps(spec), "a spec goes to the Hub with its run, and names no folders"
            assert same(encoder_from_spec(spec, folder=str(folder)), encoder)
            with pytest.raises(EncoderError, match=r"read from a folder, and there is no folder gone: say where"):
                encoder_from_spec(spec, folder="gone")


def test_the_class_of_every_entry_knows_the_name_it_is_listed_by() -> None:
    for name in ENCODERS:
        entry = ENCODERS.get(name)
        registered = {entry.class_for(kind).registered for kind in entry.classes}
        assert registered == {name if entry.model is None else "transformers"}


# -- runs of older versions --------------------------------------------------------------------------------------------


def test_the_encoders_of_every_old_run_are_found_by_their_names() -> None:
    known = {("patches", 6): Patches(), ("patches", 4): Patches(grid=4), ("words", 64): Words()}
    seen = set()
    for path in OLD_TASKS:
        task = read_task(path)
        if task.specs:
            continue  # a run of this version, which says how its encoders are made
        for modality, facts in task.encoders.items():
            spec = specs_from_name(facts.name, facts.revision, kind=task.kinds.get(modality), modality=modality)[0]
            encoder = known.get((spec["encoder"], *spec["options"].values()))
            seen.add(spec["encoder"])
            if encoder is not None:
                assert (encoder.name, encoder.weight_hash) == (facts.name, facts.sha256)
                assert spec == encoder.spec
    assert {"patches", "words"} <= seen <= {"patches", "words", "cnn", "minilm"}


def test_where_an_old_run_kept_no_kind_that_of_its_modalitys_name_is_tried_first() -> None:
    def kinds(name: str, kind: str | None = None) -> list[str]:
        return [spec["kind"] for spec in specs_from_name(name, "abc", kind=kind, modality="audio")]

    assert kinds("some/model") == ["audio", "image", "text"]
    assert kinds("some/model", "text") == ["text"]
    assert kinds("some/model regions") == kinds("efficientnet-lite0 regions") == ["regions"]
    assert kinds("all-MiniLM-L6-v2") == ["text"]


# -- an encoder of one's own -------------------------------------------------------------------------------------------


def test_a_users_encoder_trains_is_loaded_in_another_process_and_answers(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    encoders = {"image": "patches", "text": "letters"}
    small, once = {"dim": 8, "heads": 2, "steps": 2}, TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)
    train_on(request_for(table), tmp_path / "run", encoders=encoders, shape=small, config=once)
    run = load_run(tmp_path / "run")
    assert run.task.specs["caption"] == {
        "encoder": "letters",
        "kind": "text",
        "options": {"most": 8},
        "module": "encoders.letters",
    }
    run.predict_table(table).save(tmp_path / "here.csv")
    there = tmp_path / "there.csv"
    run_plain(CASES, "a_run_answers_once_the_module_is_imported", str(tmp_path / "run"), str(table), str(there))
    assert there.read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_a_registered_encoder_is_described_by_its_docstring_and_asked_for_by_name() -> None:
    entry = ENCODERS.get("letters")
    assert (entry.summary, entry.needs) == ("One token per letter of the alphabet, one-hot.", "nothing")
    made = make_encoder("letters", "text", options={"most": 2}, batch_size=5, device="cpu")
    assert (made.most, made.batch_size) == (2, 5)
    with pytest.raises(EncoderError, match="'letters' reads text, not image: take 'patches' or 'marks' or 'cnn'"):
        make_encoder("letters", "image")
    with pytest.raises(TypeError, match="mots"):
        make_encoder("letters", "text", options={"mots": 2})


def test_a_name_is_given_once_and_a_module_may_be_loaded_again() -> None:
    with pytest.raises(ValueError, match="'words' already"):
        register_encoder("words")(type("Mine", (letters.Letters,), {}))
    with pytest.raises(EncoderError, match="that is how models of transformers are named"):
        register_encoder("me/words")(letters.Letters)
    reload(letters)
    assert ENCODERS.get("letters").class_for("text") is letters.Letters


def test_an_encoder_whose_options_cannot_be_kept_is_refused(forgotten: list[str]) -> None:
    @register_encoder("careless")
    class Careless(letters.Letters):
        def __init__(self, *, most: int = 8, alphabet: object = None) -> None:
            super().__init__(most=most)

    forgotten.append("careless")
    with pytest.raises(TypeError, match=r"Careless does not keep its argument 'alphabet': .* same name"):
        _ = Careless().spec
    keeping = Careless()
    keeping.alphabet = object()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="Careless: its options must be values that JSON has"):
        _ = keeping.spec


def test_a_users_encoder_that_sums_pictures_up_encodes_regions_too(forgotten: list[str]) -> None:
    @register_encoder("mean-colour")
    class MeanColour(Encoder):
        kind, name, revision, weight_hash, width, window = "image", "mean-colour", "v1", "0" * 64, 3, (8, 8)

        def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
            return [Tokens(features=torch.ones(1, 3)) for _ in contents]

        def pooled(self, images: Sequence[Image.Image]) -> torch.Tensor:
            return torch.stack([torch.from_numpy(np.asarray(image, np.float32)).mean((0, 1)) for image in images])

    forgotten.append("mean-colour")
    encoder = make_encoder("mean-colour", "regions")
    content = Regions(picture=noise(20, 10), boxes=((0.0, 0.0, 5.0, 5.0),), names=("thing",))
    assert encoder([content])[0].features.shape == (2, 3)
    assert same(encoder_from_spec(stored(encoder)), encoder)


def test_a_subclass_that_is_not_registered_has_no_spec() -> None:
    assert CountingWords().spec == {}


def test_names_of_encoders_need_no_torch() -> None:
    run_plain(CASES, "names_need_no_torch")
