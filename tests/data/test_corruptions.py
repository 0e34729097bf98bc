"""Corrupted inputs: in the right units, the same for every model, different in every draw."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data.more_folders import cod10k_folder
from PIL import Image

from meq.data import IMAGE, REGIONS, TEXT, DataError, DataSet, Example
from meq.data.cod10k import cod10k
from meq.data.content import DrawnPicture, PictureFile, Regions
from meq.data.corruptions import DRAWS, STUDY, CorruptedPicture, Corruption, corrupt, noisy, typos
from meq.data.metrics import ACCURACY
from meq.data.statements import statements

NOISE, BLUR, TYPOS = Corruption("noise", 0.1), Corruption("blur", 2), Corruption("typos", 0.1)
LONG = "the quick brown fox jumps over the lazy dog " * 200


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    return cod10k(cod10k_folder(tmp_path), dev=0)


def grey(width: int, height: int) -> DrawnPicture:
    return DrawnPicture("grey", lambda: Image.new("RGB", (width, height), (128, 128, 128)))


def test_the_study_is_the_paper_s_table() -> None:
    assert [str(each) for each in STUDY] == [
        "noise 0.1", "noise 0.3", "blur 2", "blur 8", "typos 0.05", "typos 0.1",
    ]  # fmt: skip
    assert DRAWS == 5


@pytest.mark.parametrize("size", [(64, 64), (640, 320)])
def test_noise_has_its_deviation_at_the_encoder_s_size(size: tuple[int, int]) -> None:
    image = CorruptedPicture(grey(*size), NOISE, "stream", 224).open()
    assert min(image.size) == 224
    assert np.std(np.asarray(image) / 255 - 128 / 255) == pytest.approx(0.1, rel=0.02)


def test_noise_stays_within_the_picture_s_range() -> None:
    pixels = np.asarray(noisy(Image.new("RGB", (50, 50), (250, 5, 128)), 0.3, np.random.default_rng(0)))
    assert pixels.dtype == np.uint8
    assert (pixels[..., 0] == 255).mean() > 0.3  # clipped, not wrapped around
    assert (pixels[..., 1] == 0).mean() > 0.3


@pytest.mark.parametrize("scale", [1, 3])
def test_blur_has_its_radius_at_the_encoder_s_size(scale: int) -> None:
    """An edge blurred with radius r rises from 16 % to 84 % over 2 r pixels, whatever the size of the original."""
    edge = Image.new("RGB", (224 * scale, 224 * scale))
    edge.paste((255, 255, 255), (112 * scale, 0, 224 * scale, 224 * scale))
    row = np.asarray(CorruptedPicture(DrawnPicture("edge", lambda: edge), Corruption("blur", 8), "", 224).open())
    profile = row[112, :, 0] / 255
    assert np.searchsorted(profile, 0.84) - np.searchsorted(profile, 0.16) == pytest.approx(16, abs=2)


def test_every_draw_is_another_and_the_same_again(data: DataSet) -> None:
    for corruption in (NOISE, TYPOS):
        prints = [corrupt(data, corruption, draw=draw, seed=0).fingerprint() for draw in range(3)]
        assert len({*prints, data.fingerprint()}) == 4
        assert corrupt(data, corruption, draw=1, seed=0).fingerprint() == prints[1]
        assert corrupt(data, corruption, draw=1, seed=1).fingerprint() != prints[1]


def test_blur_is_the_same_in_every_draw(data: DataSet) -> None:
    assert not BLUR.is_random
    first, second = (corrupt(data, BLUR, draw=draw, seed=0).fingerprint() for draw in (0, 1))
    assert first == second != data.fingerprint()


def test_examples_are_corrupted_independently(data: DataSet) -> None:
    """The two captions of a picture make two examples, each with noise of its own."""
    first, second = corrupt(data, NOISE, draw=0, seed=0).splits["train"][:2]
    assert isinstance(first.content["image"], CorruptedPicture)
    assert isinstance(second.content["image"], CorruptedPicture)
    assert first.content["image"].original == second.content["image"].original
    a, b = (np.asarray(example.content["image"].open()) for example in (first, second))  # type: ignore[union-attr]
    assert (a != b).mean() > 0.5


def test_what_is_opened_agrees_with_the_fingerprint(data: DataSet) -> None:
    pictures = [corrupt(data, NOISE, draw=0, seed=0).splits["train"][0].content["image"] for _ in range(2)]
    a, b = (np.asarray(picture.open()) for picture in pictures)  # type: ignore[union-attr]
    assert (a == b).all()


def test_the_order_of_examples_changes_nothing(data: DataSet) -> None:
    worse = corrupt(data, TYPOS, draw=0, seed=0).splits["train"]
    backwards = [worse[place].content["text"] for place in reversed(range(len(worse)))]
    assert backwards[::-1] == [example.content["text"] for example in worse]


def test_only_what_is_meant_is_changed(data: DataSet) -> None:
    clean = data.splits["train"][0]
    noise, misspelt = (corrupt(data, each, draw=0, seed=0).splits["train"][0] for each in (NOISE, TYPOS))
    assert noise.content["text"] == clean.content["text"]
    assert misspelt.content["image"] == clean.content["image"]
    assert (noise.id, noise.target, noise.facts) == (clean.id, clean.target, clean.facts)


def test_no_picture_is_opened_before_it_is_used(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: PictureFile) -> Image.Image:
        raise AssertionError("opened")

    monkeypatch.setattr(PictureFile, "open", never)
    picture = corrupt(data, NOISE, draw=0, seed=0).splits["train"][0].content["image"]
    with pytest.raises(AssertionError, match="opened"):
        picture.open()  # type: ignore[union-attr]


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_typos_hit_the_share_of_characters(share: float) -> None:
    """A word stays whole if none of its characters is hit."""
    words, generator = LONG.split(), np.random.default_rng(0)
    whole = sum(typos(word, share, generator) == word for word in words)
    assert whole / len(words) == pytest.approx(np.mean([(1 - share) ** len(word) for word in words]), abs=0.025)


def test_typos_leave_spaces_and_words_apart() -> None:
    worse = typos(LONG, 0.5, np.random.default_rng(0))
    assert worse.count(" ") == LONG.count(" ")
    assert worse != LONG


def test_no_typos_at_share_0_and_never_an_empty_text() -> None:
    assert typos(LONG, 0, np.random.default_rng(0)) == LONG
    assert all(typos("a", 1, np.random.default_rng(seed)).strip() for seed in range(50))
    assert typos("", 1, np.random.default_rng(0)) == ""


def one(modality: str, kind: object, content: object) -> DataSet:
    example = Example(id="x", content={modality: content}, target=torch.tensor(0))  # type: ignore[dict-item]
    return DataSet(
        name="one",
        splits={"train": [example]},
        modalities={modality: kind},  # type: ignore[dict-item]
        labels=("a", "b"),
        head="choices",
        metric=ACCURACY,
    )


def test_choices_get_typos_of_their_own() -> None:
    worse = corrupt(one("text", TEXT, (LONG, LONG)), TYPOS).splits["train"][0].content["text"]
    assert isinstance(worse, tuple)
    assert worse[0] != worse[1]


def test_boxes_follow_the_picture_to_its_new_size() -> None:
    regions = Regions(picture=grey(100, 50), boxes=((10.0, 20.0, 30.0, 40.0),), names=("cat",))
    worse = corrupt(one("image", REGIONS, regions), NOISE, encoder_size=100).splits["train"][0].content["image"]
    assert isinstance(worse, Regions)
    assert worse.boxes == ((20.0, 40.0, 60.0, 80.0),)
    assert worse.picture.open().size == (200, 100)


def test_a_picture_too_narrow_to_be_scaled_is_an_error() -> None:
    worse = corrupt(one("image", IMAGE, grey(1, 100_000)), NOISE).splits["train"][0].content["image"]
    with pytest.raises(DataError, match="too narrow"):
        worse.open()  # type: ignore[union-attr]


def test_features_cannot_be_corrupted() -> None:
    with pytest.raises(ValueError, match="corrupt before encoding"):
        corrupt(statements(train=2, dev=1, test=1), NOISE)


@pytest.mark.usefixtures("unchecked")
def test_a_corruption_that_means_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="did you mean 'noise'"):
        Corruption("noize", 0.1)  # type: ignore[arg-type]
    for kind, strength in (("typos", 1.5), ("noise", -1.0), ("blur", float("nan"))):
        with pytest.raises(ValueError, match="means nothing"):
            Corruption(kind, strength)  # type: ignore[arg-type]


def test_the_record_says_what_was_done(data: DataSet) -> None:
    facts = corrupt(data, NOISE, draw=3, seed=7).facts["corruption"]
    assert facts == {"kind": "noise", "strength": 0.1, "draw": 3, "seed": 7, "encoder_size": 224}
