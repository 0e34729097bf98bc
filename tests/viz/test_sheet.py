from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from meq.data import Example
from meq.data.content import DrawnPicture, Regions
from meq.data.scenes import scenes
from meq.viz.sheet import GAP, WIDTH, draw_sheet

LABELS = ("entailment", "neutral", "contradiction")
BLUE = DrawnPicture("blue", lambda: Image.new("RGB", (400, 200), (20, 40, 220)))


def card(target: torch.Tensor | None = None, **content: object) -> Example:
    return Example(id="a", content=content, target=torch.tensor(0) if target is None else target)


def share(sheet: Image.Image, colour: tuple[int, int, int]) -> float:
    return float((np.abs(np.asarray(sheet).astype(int) - colour).max(2) < 12).mean())


def test_a_sheet_holds_every_card_in_rows() -> None:
    data = scenes(train=18, dev=18, test=18)
    sheet = draw_sheet(data.splits["dev"][:9], data.labels, columns=3)
    assert sheet.width == 3 * (WIDTH + GAP) + GAP
    assert sheet.height > 3 * (WIDTH + GAP)
    two = draw_sheet(data.splits["dev"][:2], data.labels, columns=3)
    assert two.width == 2 * (WIDTH + GAP) + GAP


def test_the_label_is_drawn_in_a_colour_of_its_own() -> None:
    green, red = (47, 125, 79), (178, 58, 58)
    entailed = draw_sheet([card(text="a dog runs")], LABELS, columns=1)
    contradicted = draw_sheet([card(torch.tensor(2), text="a dog runs")], LABELS, columns=1)
    assert share(entailed, green) > 0.01 > share(entailed, red)
    assert share(contradicted, red) > 0.01 > share(contradicted, green)


def test_a_picture_keeps_its_shape_and_a_missing_one_leaves_no_hole() -> None:
    with_picture = draw_sheet([card(image=BLUE, text="a lake")], LABELS, columns=1)
    without = draw_sheet([card(text="a lake")], LABELS, columns=1)
    assert with_picture.height - without.height == 138 + 12  # 276 wide, half as high, and a margin
    assert share(with_picture, (20, 40, 220)) > 0.3


def test_a_caption_stands_above_the_cards_and_wraps() -> None:
    plain, short, long = (
        draw_sheet([card(text="a lake")], LABELS, columns=1, caption=words) for words in ("", "Lakes.", "Lakes. " * 20)
    )
    assert plain.height < short.height < long.height
    top = np.asarray(short.convert("L"))[: short.height - plain.height]
    assert (top < 90).sum() > 50


def test_boxes_of_regions_are_drawn_where_they_are() -> None:
    boxes = ((40.0, 40.0, 200.0, 160.0), (390.0, 190.0, 500.0, 900.0))  # the second leaves the picture
    sheet = draw_sheet([card(objects=Regions(BLUE, boxes, ("Casey", "a very long name")))], LABELS, columns=1)
    pixels = np.asarray(sheet)
    left = GAP + 12 + round(40 * 276 / 400)
    assert tuple(pixels[GAP + 12 + 80, left]) == (47, 125, 79)
    assert tuple(pixels[GAP + 12 + 80, left + 20]) == (20, 40, 220)


@pytest.mark.parametrize(
    "content",
    [
        {"audio": torch.zeros(50, 74)},
        {"vector": torch.zeros(3)},
        {"answers": ("yes", "no")},
        {"answers": (torch.zeros(2, 3), torch.zeros(1, 3))},
        {"text": ""},
    ],
)
def test_what_is_no_picture_is_said_in_words(content: dict[str, object]) -> None:
    sheet = draw_sheet([card(**content)], LABELS, columns=1)
    assert (np.asarray(sheet.convert("L")) < 90).sum() > 100


def test_a_long_text_is_cut_at_six_lines_and_a_long_word_at_the_edge() -> None:
    heights = {draw_sheet([card(text="word " * count)], LABELS, columns=1).height for count in (200, 2000)}
    assert len(heights) == 1
    sheet = np.asarray(draw_sheet([card(text="x" * 5000)], LABELS, columns=1).convert("L"))
    assert (sheet[:, GAP + WIDTH - 6 : GAP + WIDTH - 2] > 200).all()


@pytest.mark.parametrize("target", [torch.tensor(0.75), torch.tensor([0.0, 0.9, 0.3]), torch.zeros(3), torch.tensor(7)])
def test_targets_of_every_head_have_a_label(target: torch.Tensor) -> None:
    assert draw_sheet([card(target, text="a")], LABELS, columns=1).height > 60


def test_an_unlabelled_example_says_so_and_an_empty_split_is_an_error() -> None:
    example = Example(id="a", content={"text": "who?"}, target=None)
    assert share(draw_sheet([example], LABELS, columns=2), (85, 91, 102)) > 0.01
    with pytest.raises(ValueError, match="the split is empty"):
        draw_sheet([], LABELS)
    with pytest.raises(ValueError, match="at least one column, got 0"):
        draw_sheet([example], LABELS, columns=0)
