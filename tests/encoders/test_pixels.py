from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from meq.data import collate
from meq.data.content import DrawnPicture
from meq.data.duels import duels, relay
from meq.encoders.catalogue import choose_encoders, default_encoders
from meq.encoders.encode import encode
from meq.encoders.pixels import COLOUR_AXES, GREY, MEAN_SPREAD, SPREAD, Pixels, contrasts


def picture(width: int, height: int, seed: int = 0) -> DrawnPicture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return DrawnPicture("noise", lambda: Image.fromarray(pixels))


@pytest.mark.parametrize(("width", "height"), [(96, 96), (640, 480), (5, 7), (1, 1), (33, 900)])
def test_any_picture_becomes_a_grid_of_finite_tokens_whose_boxes_tile_it(width: int, height: int) -> None:
    encoder = Pixels(grid=4)
    tokens = encoder([picture(width, height)])[0]
    assert tokens.features.shape == (16, encoder.width)
    assert torch.isfinite(tokens.features).all()
    assert tokens.boxes is not None
    assert tokens.boxes[0].tolist() == [0, 0, width / 4, height / 4]
    assert tokens.boxes[-1].tolist() == [width * 3 / 4, height * 3 / 4, width, height]


def test_a_token_is_the_contrasts_of_its_cell_the_mean_colour_and_nothing_of_its_neighbours() -> None:
    content = picture(24, 24)
    cell = np.asarray(content.open()).astype(float)[8:16, 16:24]
    token = Pixels(grid=3, side=8, place=False)([content])[0].features.numpy()[5].astype(float)
    told = token[:-3].reshape(8, 8, 3) * SPREAD @ COLOUR_AXES
    assert np.abs(told[3, 4] - (cell[3, 4] - cell[2:5, 3:6].mean((0, 1)))).max() < 1e-3
    assert (
        np.abs(
            told[0, 0] - (cell[0, 0] - np.pad(cell, ((1, 0), (1, 0), (0, 0)), mode="edge")[:3, :3].mean((0, 1)))
        ).max()
        < 1e-3
    )
    assert np.abs(token[-3:] * MEAN_SPREAD @ COLOUR_AXES + GREY - cell.mean((0, 1))).max() < 1e-3


def test_colours_keep_their_distances() -> None:
    assert np.allclose(COLOUR_AXES @ COLOUR_AXES.T, np.eye(3))
    assert np.allclose(contrasts(np.full((1, 4, 4, 3), 90.0)), 0)


def test_a_larger_picture_is_averaged_over_boxes() -> None:
    large = picture(24, 24)
    small = DrawnPicture("small", lambda: large.open().resize((8, 8), Image.Resampling.BOX))
    one, other = (Pixels(grid=1, side=8)([each])[0].features for each in (large, small))
    assert torch.equal(one, other)


def test_places_are_told_unless_they_are_not_wanted() -> None:
    grey = DrawnPicture("grey", lambda: Image.new("RGB", (30, 30), (90, 90, 90)))
    with_place, without = (Pixels(grid=3, side=2, place=place)([grey])[0].features for place in (True, False))
    assert with_place.unique(dim=0).shape == (9, 15 + 6)
    assert without.unique(dim=0).shape == (1, 15)
    assert torch.equal(with_place[:, :15], without)


def test_encoding_does_not_depend_on_what_else_is_encoded() -> None:
    encoder, several = Pixels(), [picture(60, 60, seed) for seed in range(3)]
    together = encoder(several)
    assert all(torch.equal(x.features, encoder([each])[0].features) for x, each in zip(together, several, strict=True))


def test_encoders_that_differ_have_names_and_hashes_of_their_own() -> None:
    several = [Pixels(), Pixels(grid=3), Pixels(side=8), Pixels(place=False)]
    assert len({encoder.name for encoder in several}) == len({encoder.weight_hash for encoder in several}) == 4


def test_tokens_of_cards_have_a_mean_square_near_one() -> None:
    for make in (duels, relay):
        data = make(train=9, dev=9, test=9)
        for name, encoder in default_encoders(data).items():
            size = encoder([data.splits["dev"][0].content[name]])[0].features.square().mean()
            assert 0.3 < size < 2, name


def test_cards_and_rules_are_one_token_each_by_default_and_others_may_be_named() -> None:
    raw = duels(train=18, dev=9, test=9, deep_test=9)
    data = encode(raw, default_encoders(raw))
    batch = collate(list(data.splits["train"]), data.widths)
    assert {name: x.shape[:2] for name, x in batch.features.items()} == {"image": (18, 9), "text": (18, 9)}
    assert batch.target.shape == (18, 18)
    assert not batch.masks
    assert data.facts["encoders"] == {"image": "pixels-3x3-16-v1", "text": "sentences-64x12-v1"}
    assert data.facts["truncated"] == {"image": 0, "text": 0}
    assert list(data.answering) == ["image", "text"]
    assert choose_encoders(raw, {"text": "words"})["text"].name == "words-64-v1"
    assert default_encoders(duels(train=9, dev=9, test=9, deep_test=9, n=16))["image"].name == "pixels-4x4-16-v1"
    assert default_encoders(duels(train=9, dev=9, test=9, form="symbols")) == {}


@pytest.mark.usefixtures("unchecked")
def test_wrong_content_and_wrong_options_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="reads pictures, got str"):
        Pixels()(["a text"])
    with pytest.raises(ValueError, match="grid must lie between 1 and 64, got 0"):
        Pixels(grid=0)
    with pytest.raises(ValueError, match="side must lie between 1 and 64, got 100"):
        Pixels(side=100)
    with pytest.raises(ValueError, match="place must be True or False, got 'no'"):
        Pixels(place="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'side'"):
        Pixels(sides=3)  # type: ignore[call-arg]
