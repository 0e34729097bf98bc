from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from meq.data import IMAGE, REGIONS, TEXT, DataSet, Example, collate, features
from meq.data.content import DrawnPicture
from meq.data.metrics import ACCURACY
from meq.data.scenes import scenes
from meq.data.scenes_worlds import COVERED, EMPTY, KINDS, THINGS
from meq.encoders.builtin import Patches, Words
from meq.encoders.catalogue import default_encoders
from meq.encoders.descriptors import DESCRIPTORS, VOCABULARY, word_code
from meq.encoders.encode import encode


def picture(width: int, height: int, seed: int = 0) -> DrawnPicture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return DrawnPicture("noise", lambda: Image.fromarray(pixels))


# -- patches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(96, 96), (640, 480), (5, 7), (1, 1), (33, 900)])
def test_any_picture_becomes_a_grid_of_finite_tokens_whose_boxes_tile_it(width: int, height: int) -> None:
    encoder = Patches(grid=4)
    tokens = encoder([picture(width, height)])[0]
    assert tokens.features.shape == (16, encoder.width)
    assert torch.isfinite(tokens.features).all()
    assert tokens.features.abs().max() < 20
    assert tokens.boxes is not None
    assert tokens.boxes[0].tolist() == [0, 0, width / 4, height / 4]
    assert tokens.boxes[-1].tolist() == [width * 3 / 4, height * 3 / 4, width, height]
    sides = tokens.boxes[:, 2:] - tokens.boxes[:, :2]
    assert float(sides.prod(1).sum()) == pytest.approx(width * height, rel=1e-5)


def test_a_token_describes_its_own_patch_and_nothing_else() -> None:
    def painted(colour: tuple[int, int, int]) -> DrawnPicture:
        image = Image.new("RGB", (90, 90), "grey")
        image.paste(colour, (35, 65, 50, 80))  # bottom row, middle column
        return DrawnPicture("square", lambda: image)

    red, blue = (tokens.features for tokens in Patches(grid=3)([painted((200, 0, 0)), painted((0, 0, 200))]))
    changed = (red - blue).abs().amax(1) > 1e-6
    assert changed.nonzero().flatten().tolist() == [7]


def test_an_outline_is_the_same_wherever_it_stands_in_its_patch() -> None:
    def square(left: int, top: int) -> DrawnPicture:
        image = Image.new("RGB", (64, 64), "white")
        image.paste("black", (left, top, left + 16, top + 16))
        return DrawnPicture("square", lambda: image)

    here, there = (tokens.features[0] for tokens in Patches(grid=1)([square(8, 8), square(24, 32)]))
    assert torch.allclose(here, there, atol=1e-5)


def test_encoding_does_not_depend_on_what_else_is_encoded() -> None:
    encoder, several = Patches(), [picture(60, 60, seed) for seed in range(3)]
    together = encoder(several)
    assert all(torch.equal(x.features, encoder([each])[0].features) for x, each in zip(together, several, strict=True))


def test_colour_shape_and_cover_of_a_scene_can_be_read_off_its_patches() -> None:
    """By the nearest token among those of other pictures: no training at all."""
    data = scenes(train=360, dev=90, test=18)
    encoder = Patches(grid=3)

    def cells(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        several = [data.splits[split][row] for row in range(0, len(data.splits[split]), 3)]
        tokens = [encoder([example.content["image"]])[0].features[:, :DESCRIPTORS] for example in several]
        return torch.cat(tokens), torch.tensor([held for e in several for held in e.facts["masks"].scene.cells])

    (known, names), (asked, truth) = cells("train"), cells("dev")
    guess = names[torch.cdist(asked, known).argmin(1)]
    special = truth >= THINGS
    assert (guess[truth >= COVERED] == truth[truth >= COVERED]).all()
    assert (guess[truth == EMPTY] == EMPTY).double().mean() > 0.95
    assert (guess[~special] == truth[~special]).double().mean() > 0.8  # 16 kinds of things


# -- words -------------------------------------------------------------------------------------------------------------


def test_spans_point_at_the_words_in_the_text() -> None:
    text = "  The children's  dog, über-happy — runs!\n(2 km) 猫"
    tokens = Words()([text])[0]
    assert tokens.spans is not None
    words = [text[start:end] for start, end in tokens.spans.tolist()]
    expected = ["The", "children's", "dog", ",", "über", "-", "happy", "—", "runs", "!", "(", "2", "km", ")", "猫"]
    assert words == expected
    assert tokens.features.shape == (len(words), Words().width)


def test_tokens_of_scenes_have_a_mean_square_near_one() -> None:
    example = scenes(train=18, dev=18, test=18).splits["dev"][0]
    for encoder, name in ((Patches(grid=3), "image"), (Words(), "text")):
        size = encoder([example.content[name]])[0].features.square().mean()
        assert 0.3 < size < 2, name


def test_the_vocabulary_knows_every_word_of_the_scenes() -> None:
    data = scenes(train=360, dev=36, test=36, kinds=KINDS)
    words = {word for example in data.splits["train"] for word in str(example.content["text"]).split()}
    assert words <= set(VOCABULARY)
    assert len(set(VOCABULARY)) == len(VOCABULARY)


def test_known_words_are_orthogonal_and_unknown_ones_resemble_those_they_share_letters_with() -> None:
    assert word_code("red") @ word_code("blue") == 0
    assert word_code("running") @ word_code("red") == 0
    assert word_code("running") @ word_code("running") == pytest.approx(1)
    assert word_code("walking") @ word_code("walked") > 0.2 > word_code("walking") @ word_code("zebra")


def test_case_does_not_matter_but_order_does() -> None:
    a, b, c = (tokens.features for tokens in Words()(["Red car", "red CAR", "car red"]))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c.flip(0))


def test_long_texts_are_cut_and_counted_and_empty_ones_have_no_tokens() -> None:
    encoder = Words(max_words=3)
    long, short, empty, blank = encoder(["one two three four", "one two three", "", " \n"])
    assert (len(long.features), len(short.features), len(empty.features), len(blank.features)) == (3, 3, 0, 0)
    assert encoder.truncated == 1
    assert long.spans is not None
    assert long.spans[-1].tolist() == [8, 13]
    assert empty.spans is not None
    assert empty.spans.shape == (0, 2)


def test_codes_are_the_same_in_every_process() -> None:
    """Written down once: Python's own hash of a string would differ from one process to the next."""
    assert word_code("zebra").nonzero()[0].tolist() == [51, 54, 68, 107, 116, 119]


# -- by default --------------------------------------------------------------------------------------------------------


def mixed(modalities: dict[str, object], **facts: object) -> DataSet:
    kinds = {"modalities": modalities, "labels": ("no", "yes"), "head": "classes", "metric": ACCURACY}
    return DataSet(name="mixed", splits={}, facts=facts, **kinds)


def test_the_default_encoders_go_by_the_kind_of_modality() -> None:
    encoders = default_encoders(mixed({"photo": IMAGE, "caption": TEXT, "sound": features(5)}))
    assert {name: type(encoder) for name, encoder in encoders.items()} == {"photo": Patches, "caption": Words}
    assert default_encoders(mixed({"photo": IMAGE}, grid=3))["photo"].name == "patches-3x3-v1"
    regions = default_encoders(mixed({"objects": REGIONS}))["objects"]
    assert (regions.kind, regions.name) == ("regions", "patches-6x6-v1 patches and regions")


def test_scenes_encode_into_batches_with_one_token_per_cell() -> None:
    raw = scenes(train=36, dev=18, test=18)
    data = encode(raw, default_encoders(raw))
    batch = collate(list(data.splits["train"]), data.widths)
    assert batch.features["image"].shape[:2] == (36, 9)
    assert batch.features["text"].shape[1] == 5  # "there is a blue square"
    assert data.facts["encoders"] == {"image": "patches-3x3-v1", "text": "words-64-v1"}


@pytest.mark.usefixtures("unchecked")
def test_wrong_content_and_wrong_options_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="reads pictures, got str"):
        Patches()(["a text"])
    with pytest.raises(TypeError, match="reads texts, got DrawnPicture"):
        Words()([picture(8, 8)])
    with pytest.raises(ValueError, match="grid must lie between 1 and 64, got 0"):
        Patches(grid=0)
    with pytest.raises(ValueError, match="max_words must be at least 1"):
        Words(max_words=0)
    with pytest.raises(TypeError, match="did you mean 'max_words'"):
        Words(max_word=3)


def test_an_example_without_a_text_has_a_missing_modality() -> None:
    example = Example(id="a", content={"text": Words()([""])[0].features}, target=torch.tensor(0))
    assert collate([example], {"text": Words().width}).features == {}
