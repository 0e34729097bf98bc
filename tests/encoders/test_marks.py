from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from meq.data import collate
from meq.data.content import DrawnPicture
from meq.data.duels import duels, relay
from meq.data.duels_drawing import Cards, draw_cards
from meq.data.duels_worlds import SIGNS
from meq.encoders.catalogue import choose_encoders, default_encoders
from meq.encoders.encode import encode
from meq.encoders.marks import MARK_GAIN, PATTERNS, RESEMBLED, SIDE, Marks, boxes_of_marks

ONE = RESEMBLED * MARK_GAIN
"""What the outline of one mark adds to a bag."""


def noise(width: int, height: int, seed: int = 0) -> DrawnPicture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return DrawnPicture("noise", lambda: Image.fromarray(pixels))


def card(
    sign: int, asked: tuple[int, ...] = (), colour: int = -1, size: int = SIDE, noise: float = 0.0
) -> torch.Tensor:
    """Above and below: the bag of patterns, and the three colours."""
    cards = Cards(signs=(sign,), asked=(asked,), colours=(colour,), size=size, noise=noise, seeds=(1,))
    drawn = DrawnPicture("card", lambda: draw_cards(cards))
    return Marks(grid=1)([drawn])[0].features.reshape(2, PATTERNS + 3)


@pytest.mark.parametrize(("width", "height"), [(96, 96), (640, 480), (5, 7), (1, 1), (33, 900)])
def test_any_picture_becomes_a_grid_of_finite_tokens_whose_boxes_tile_it(width: int, height: int) -> None:
    encoder = Marks(grid=4)
    tokens = encoder([noise(width, height)])[0]
    assert tokens.features.shape == (16, encoder.width)
    assert torch.isfinite(tokens.features).all()
    assert tokens.boxes is not None
    assert tokens.boxes[0].tolist() == [0, 0, width / 4, height / 4]
    assert tokens.boxes[-1].tolist() == [width * 3 / 4, height * 3 / 4, width, height]


def test_a_sign_is_the_same_mark_above_below_left_and_right_and_signs_are_added_up() -> None:
    for sign in range(9):
        other = (sign + 4) % 9
        own, low = card(sign)[0, :PATTERNS], card(sign, (other, sign))[1, :PATTERNS]
        assert own.sum() == ONE
        assert torch.equal(low, own + card(other)[0, :PATTERNS])
        assert torch.equal(low, card(sign, (sign, other))[1, :PATTERNS])


def test_any_two_signs_differ_and_those_that_are_drawn_first_share_half_of_their_patterns_at_most() -> None:
    codes = torch.stack([card(sign)[0, :PATTERNS] for sign in range(len(SIGNS))])
    assert len(codes.unique(dim=0)) == len(SIGNS)
    shared = (codes[:9] @ codes[:9].T / MARK_GAIN**2).fill_diagonal_(0)
    assert shared.max() <= RESEMBLED / 2


def test_a_mark_does_not_depend_on_the_size_of_the_picture_or_on_faint_noise() -> None:
    for sign in (0, 3, 6):
        plain = card(sign, (1, 2))[:, :PATTERNS]
        for other in (card(sign, (1, 2), size=4 * SIDE), card(sign, (1, 2), noise=0.05)):
            same = torch.minimum(plain, other[:, :PATTERNS]).sum() / plain.sum()
            assert same >= 0.75


def test_colours_stand_beside_the_marks_of_their_half_and_ink_has_none() -> None:
    for colour in range(3):
        above, below = card(2, colour=colour)[:, PATTERNS:]
        assert above.max() < 0.5
        assert below.argmax() == colour
        assert below[colour] > 2
        assert below.sum() == below[colour]


def test_figures_whose_boxes_overlap_are_one_mark_and_those_that_touch_the_border_none() -> None:
    figure = Image.new("1", (40, 40))
    pen = ImageDraw.Draw(figure)
    pen.rectangle((5, 5, 14, 14), outline=1)
    pen.rectangle((8, 8, 10, 10), fill=1)  # inside the first
    pen.rectangle((20, 5, 29, 14), fill=1)
    pen.rectangle((0, 20, 10, 30), fill=1)  # at the border
    pen.point((35, 35), fill=1)  # dirt
    assert boxes_of_marks(np.asarray(figure)) == [(5, 5, 15, 15), (5, 20, 15, 30)]


def test_boxes_join_one_after_the_other() -> None:
    figure = np.zeros((40, 40), dtype=bool)
    figure[5:25, 5] = figure[24, 5:20] = True  # an angle
    figure[10, 10:30] = figure[10:14, 29] = True  # another, within the box of the first
    figure[12:30, 27] = True  # overlaps the box of the second alone
    assert boxes_of_marks(figure) == [(5, 5, 30, 30)]


def test_a_plain_picture_has_no_marks() -> None:
    grey = DrawnPicture("grey", lambda: Image.new("RGB", (30, 30), (90, 90, 90)))
    assert Marks(grid=2)([grey])[0].features.abs().max() == 0


def test_encoding_does_not_depend_on_what_else_is_encoded() -> None:
    encoder, several = Marks(), [noise(60, 60, seed) for seed in range(3)]
    together = encoder(several)
    assert all(torch.equal(x.features, encoder([each])[0].features) for x, each in zip(together, several, strict=True))


def test_codes_are_the_same_on_every_machine() -> None:
    """Written down once: patterns come from raw bits, and outlines are compared in whole numbers."""
    assert card(0)[0, :PATTERNS].nonzero().flatten().tolist() == [20, 88, 94, 101]


def test_cards_and_rules_are_one_token_each_by_default_and_others_may_be_named() -> None:
    raw = duels(train=18, dev=9, test=9, deep_test=9)
    data = encode(raw, default_encoders(raw))
    batch = collate(list(data.splits["train"]), data.widths)
    assert {name: x.shape[:2] for name, x in batch.features.items()} == {"image": (18, 9), "text": (18, 9)}
    assert batch.target.shape == (18, 18)
    assert not batch.masks
    assert data.facts["encoders"] == {"image": "marks-3x3-v1", "text": "sentences-64-v1"}
    assert data.facts["truncated"] == {"image": 0, "text": 0}
    assert list(data.answering) == ["image", "text"]
    assert choose_encoders(raw, {"text": "words"})["text"].name == "words-64-v1"
    assert default_encoders(relay(train=9, dev=9, test=9, deep_test=9, n=16))["image"].name == "marks-4x4-v1"
    assert default_encoders(duels(train=9, dev=9, test=9, form="symbols")) == {}


def test_cards_that_differ_have_different_tokens() -> None:
    raw = duels(train=90, dev=9, test=9, deep_test=9)
    data = encode(raw, default_encoders(raw))
    said = {frozenset(words(line)) for example in raw.splits["train"] for line in example.facts["cards"]}
    tokens = torch.cat([example.content["image"] for example in data.splits["train"]])
    assert len(tokens.unique(dim=0)) == len(said) > 100


def words(line: str) -> list[str]:
    """Those of a card in any order, but that its own sign comes first."""
    own, rest = line.split(": ")
    return [f"{own}:", *rest.split()]


@pytest.mark.usefixtures("unchecked")
def test_wrong_content_and_wrong_options_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="reads pictures, got str"):
        Marks()(["a text"])
    with pytest.raises(ValueError, match="grid must lie between 1 and 64, got 0"):
        Marks(grid=0)
    with pytest.raises(TypeError, match="did you mean 'grid'"):
        Marks(gridd=3)  # type: ignore[call-arg]
