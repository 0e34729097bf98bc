from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from meq.analysis.maps import SCORES, best_iou, energy, paint, pointing, score_grounding, spell


def grid(rows: int, columns: int, left: float, top: float, size: float) -> Tensor:
    """Boxes of a grid of square patches, row by row."""
    return torch.tensor(
        [
            [left + c * size, top + r * size, left + (c + 1) * size, top + (r + 1) * size]
            for r in range(rows)
            for c in range(columns)
        ],
        dtype=torch.float64,
    )


def random_values(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def test_patches_land_on_their_pixels() -> None:
    values = random_values(6)
    painted = paint(values, grid(2, 3, 0, 0, 4), height=8, width=12)
    expected = values.reshape(2, 3).repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert torch.equal(painted, expected)


def test_a_centre_crop_leaves_its_borders_uncovered() -> None:
    """A picture of 10 x 6 of which the middle 6 x 6 was seen: pixels 0, 1 and 8, 9 across belong to no token."""
    values = random_values(4) + 1
    boxes = grid(2, 2, 2, 0, 3)
    painted = paint(values, boxes, height=6, width=10)
    assert (painted[:, :2] == 0).all()
    assert (painted[:, 8:] == 0).all()
    assert torch.equal(painted[:, 2:8], values.reshape(2, 2).repeat_interleave(3, 0).repeat_interleave(3, 1))
    marked = paint(values, boxes, height=6, width=10, outside=math.nan)
    assert marked[:, :2].isnan().all()
    assert marked[:, 2:8].isfinite().all()


def test_a_pixel_on_a_fractional_border_is_shared_by_area() -> None:
    """Two boxes meet at 1.25: a quarter of pixel 1 is the left one's."""
    boxes = torch.tensor([[0, 0, 1.25, 1], [1.25, 0, 3, 1]], dtype=torch.float64)
    painted = paint(torch.tensor([4.0, 8.0], dtype=torch.float64), boxes, height=1, width=4)
    torch.testing.assert_close(painted, torch.tensor([[4.0, 7.0, 8.0, 0.0]], dtype=torch.float64))


def test_overlapping_regions_are_averaged() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [2, 2, 6, 6]])
    painted = paint(torch.tensor([1.0, 3.0]), boxes, height=6, width=6)
    assert painted[0, 0] == 1
    assert painted[5, 5] == 3
    assert painted[3, 3] == 2
    assert painted[0, 5] == 0


def test_tokens_without_a_place_are_left_out() -> None:
    boxes = torch.cat([torch.full((1, 4), math.nan, dtype=torch.float64), grid(1, 2, 0, 0, 2)])
    values = torch.tensor([99.0, 1.0, 2.0], dtype=torch.float64)
    assert paint(values, boxes, height=2, width=4).tolist() == [[1, 1, 2, 2]] * 2
    assert (paint(values[:1], boxes[:1], height=2, width=4, smooth=True) == 0).all()


def test_boxes_that_reach_beyond_the_picture_are_cut() -> None:
    painted = paint(torch.tensor([5.0, 7.0]), torch.tensor([[-3.0, -3, 1, 1], [8, 8, 9, 9]]), height=2, width=2)
    assert painted.tolist() == [[5, 0], [0, 0]]


def test_many_maps_are_painted_at_once() -> None:
    values = random_values(2, 3, 4)
    painted = paint(values, grid(2, 2, 1, 1, 2.5), height=7, width=8)
    assert painted.shape == (2, 3, 7, 8)
    torch.testing.assert_close(painted[1, 2], paint(values[1, 2], grid(2, 2, 1, 1, 2.5), height=7, width=8))


@pytest.mark.parametrize("size", [2.0, 3.7])
def test_smooth_maps_are_exact_for_linear_values(size: float) -> None:
    """A bilinear map of values that grow linearly is that linear function, between the outermost centres."""
    boxes = grid(4, 5, 1.5, 0.5, size)[torch.randperm(20)]
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    painted = paint(2 * centres[:, 0] - 3 * centres[:, 1], boxes, height=20, width=22, smooth=True)
    x, y = torch.arange(22, dtype=torch.float64) + 0.5, torch.arange(20, dtype=torch.float64) + 0.5
    x = x.clamp(centres[:, 0].min().item(), centres[:, 0].max().item())
    y = y.clamp(centres[:, 1].min().item(), centres[:, 1].max().item())
    covered = paint(torch.ones(20, dtype=torch.float64), boxes, height=20, width=22) > 0
    torch.testing.assert_close(painted[covered], (2 * x[None, :] - 3 * y[:, None])[covered])
    assert (painted[~covered] == 0).all()
    assert (~covered).any()


def test_a_smooth_map_of_one_row_or_one_box_is_constant_across_it() -> None:
    painted = paint(
        torch.tensor([1.0, 3.0]), torch.tensor([[0.0, 0, 2, 3], [2, 0, 4, 3]]), height=3, width=4, smooth=True
    )
    torch.testing.assert_close(painted, torch.tensor([[1.0, 1.5, 2.5, 3.0]]).expand(3, 4))
    assert (paint(torch.tensor([2.0]), torch.tensor([[0.0, 0, 3, 3]]), height=3, width=3, smooth=True) == 2).all()


def test_smooth_needs_a_grid() -> None:
    with pytest.raises(ValueError, match="needs boxes on a full grid"):
        paint(torch.ones(2), torch.tensor([[0.0, 0, 2, 2], [3, 5, 6, 9]]), height=9, width=9, smooth=True)


def test_wrong_boxes_are_errors(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"6 values for 4 boxes: cut the padding off"):
        paint(torch.ones(6), grid(2, 2, 0, 0, 2).float(), height=4, width=4)
    with pytest.raises(ValueError, match=r"boxes \[1\] are empty"):
        paint(torch.ones(2), torch.tensor([[0.0, 0, 2, 2], [3, 0, 3, 2]]), height=4, width=4)


TEXT = "A re-painted boat, isn't it?"
SPANS = torch.tensor(
    [[-1, -1], [0, 1], [1, 4], [4, 5], [5, 12], [13, 17], [17, 18], [19, 22], [22, 24], [25, 28], [-1, -1]]
)
VALUES = torch.tensor([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 9.0], dtype=torch.float64)


def test_pieces_are_merged_to_words() -> None:
    """The piece " re" has its space, "it?" is one token over a word and a mark: two thirds of it are the word's."""
    words = dict(spell(VALUES, SPANS, TEXT))
    assert list(words) == ["A", "re-painted", "boat", ",", "isn't", "it", "?"]
    assert words == pytest.approx(
        {"A": 1, "re-painted": 9, "boat": 5, ",": 6, "isn't": 15, "it": 20 / 3, "?": 10 / 3}, abs=1e-12
    )


def test_the_sum_over_words_is_the_sum_over_placed_tokens() -> None:
    assert sum(value for _, value in spell(VALUES, SPANS, TEXT)) == pytest.approx(VALUES[1:-1].sum().item())


def test_merges_by_maximum_and_mean() -> None:
    largest, mean = (dict(spell(VALUES, SPANS, TEXT, merge=merge)) for merge in ("max", "mean"))
    assert (largest["re-painted"], largest["isn't"], largest["it"], largest["?"]) == (4, 8, 10, 10)
    assert mean["re-painted"] == pytest.approx((2 * 2 + 3 * 1 + 4 * 7) / 10)
    assert mean["it"] == pytest.approx(10)


def test_a_repeated_word_keeps_its_places() -> None:
    spans = torch.tensor([[0, 3], [4, 7]])
    assert spell(torch.tensor([1.0, 2.0]), spans, "the the") == [("the", 1.0), ("the", 2.0)]


@pytest.mark.parametrize("merge", ["sum", "max", "mean"])
def test_words_that_no_token_covers_have_nothing(merge: str) -> None:
    assert spell(torch.tensor([2.0]), torch.tensor([[0, 3]]), "one two", merge=merge) == [("one", 2.0), ("two", 0.0)]
    nothing = torch.zeros(0, 2, dtype=torch.long)
    assert spell(torch.zeros(0), nothing, "one", merge=merge) == [("one", 0.0)]
    assert spell(torch.zeros(1), torch.tensor([[0, 1]]), " ", merge=merge) == []


def test_wrong_spans_are_errors(unchecked: None) -> None:
    with pytest.raises(ValueError, match="token 1 spans 4 to 9, but the text has 7 characters"):
        spell(torch.ones(2), torch.tensor([[0, 3], [4, 9]]), "one two")
    with pytest.raises(ValueError, match="3 values for 2 spans"):
        spell(torch.ones(3), torch.tensor([[0, 3], [4, 7]]), "one two")
    with pytest.raises(ValueError, match="did you mean 'mean'"):
        spell(torch.ones(1), torch.tensor([[0, 3]]), "one", merge="men")


def mask_of(rows: list[str]) -> Tensor:
    return torch.tensor([[cell == "#" for cell in row] for row in rows])


MASK = mask_of(["##..", "##..", "....", "...."])


def one_map(*rows: list[float]) -> Tensor:
    return torch.tensor([rows], dtype=torch.float64)


def test_a_map_that_is_the_mask_scores_one_in_everything() -> None:
    found = score_grounding([(MASK.double()[None], MASK)])
    assert all(found.scores[name].item() == 1 for name in SCORES)


def test_a_map_beside_the_mask_points_nowhere_near_it() -> None:
    maps = (~MASK).double()[None]
    assert pointing(maps, MASK).item() == 0
    assert energy(maps, MASK).item() == 0
    assert best_iou(maps, MASK).item() == 4 / 16  # the best it can do is to take the whole picture


def test_a_constant_map_scores_the_share_of_the_mask() -> None:
    found = score_grounding([(torch.full((1, 4, 4), 0.3), MASK)])
    assert found.area.item() == 0.25
    for name in SCORES:
        assert found.scores[name].item() == pytest.approx(0.25, abs=1e-12)


def test_ties_point_by_their_share() -> None:
    maps = one_map([0, 7, 7, 0], [0, 0, 0, 0], [0, 0, 0, 7], [1, 2, 3, 4])
    assert pointing(maps, MASK).item() == pytest.approx(1 / 3)


def test_pixels_of_one_token_tie_whatever_the_rounding_of_their_shares() -> None:
    """Fractional borders weigh and divide by the same share, which is not always exact."""
    boxes = torch.tensor([[0.3, 0.7, 5.1, 5.9], [5.1, 0.7, 9.9, 5.9]])
    maps = paint(torch.tensor([[0.7, 0.1]]), boxes, height=7, width=11)
    mask = torch.zeros(7, 11, dtype=torch.bool)
    mask[:3, :5] = True
    inside = (maps[0] > 0.65).logical_and(mask).sum() / (maps[0] > 0.699).sum()
    assert pointing(maps, mask).item() == pytest.approx(inside.item())


def test_the_best_threshold_is_the_best_of_all() -> None:
    generator = torch.Generator().manual_seed(2)
    maps = torch.randint(0, 6, (5, 9, 8), generator=generator).double()
    mask = torch.rand(9, 8, generator=generator) > 0.6
    tried = torch.stack(
        [((maps >= t) & mask).sum((1, 2)) / ((maps >= t) | mask).sum((1, 2)) for t in range(6)]
    ).double()
    torch.testing.assert_close(best_iou(maps, mask), tried.amax(0), rtol=1e-6, atol=0)


def test_energy_is_a_share() -> None:
    maps = one_map([1, 2, 3, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0])
    assert energy(maps, MASK).item() == 4 / 8


def test_zero_maps_and_empty_masks_are_not_counted() -> None:
    inside, zero = MASK.double(), torch.zeros(4, 4, dtype=torch.float64)
    outside = 1 - inside
    pictures = [
        (torch.stack([zero, inside]), MASK),
        (torch.stack([outside, outside]), MASK),
        (torch.stack([inside, inside]), torch.zeros_like(MASK)),
    ]
    found = score_grounding(pictures, steps=(1, 10))
    assert found.counted.tolist() == [1, 2]
    assert found.empty_masks == 1
    assert found.mean("pointing").tolist() == [0, 0.5]
    assert math.isnan(found.standard_error("pointing")[0])
    assert found.standard_error("pointing")[1].item() == pytest.approx(0.5)  # sd sqrt(1/2) over sqrt(2)


def test_means_and_errors_are_those_of_the_counted_pictures() -> None:
    generator = torch.Generator().manual_seed(3)
    pictures = []
    for size in (5, 8, 11, 6):  # pictures differ in size
        mask = torch.rand(size, size + 1, generator=generator) > 0.7
        pictures.append((torch.rand(3, size, size + 1, generator=generator, dtype=torch.float64), mask))
    found = score_grounding(iter(pictures), steps=(0, 1, 2))
    for name, score in {"pointing": pointing, "energy": energy, "iou": best_iou}.items():
        each = torch.stack([score(maps, mask) for maps, mask in pictures], dim=1)
        torch.testing.assert_close(found.mean(name), each.mean(1))
        torch.testing.assert_close(found.standard_error(name), each.std(1) / 2)


def test_the_table_prints_curves() -> None:
    text = str(score_grounding([(torch.stack([MASK.double(), 0 * MASK.double()]), MASK)], steps=(1, 10)))
    lines = text.splitlines()
    assert lines[0] == "1 pictures, none with an empty mask"
    assert lines[1].split() == ["k", "counted", *SCORES]
    assert lines[2].split() == ["1", "1", "1.000", "1.000", "1.000"]
    assert lines[3].split() == ["10", "0", "-", "-", "-"]
    assert "median 0.250" in text


@pytest.mark.parametrize(
    ("maps", "mask", "message"),
    [
        (torch.zeros(2, 3, 3), MASK, "picture 0: maps must be"),
        (torch.zeros(2, 4, 4), MASK.float(), "the mask boolean"),
        (-torch.ones(2, 4, 4), MASK, "not negative"),
        (torch.full((2, 4, 4), math.nan), MASK, "must be finite"),
    ],
)
def test_wrong_pictures_are_errors(maps: Tensor, mask: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_grounding([(maps, mask)])


def test_sets_that_do_not_fit_are_errors() -> None:
    with pytest.raises(ValueError, match="no pictures"):
        score_grounding([])
    with pytest.raises(ValueError, match="picture 1 has 3 maps, the first one has 2"):
        score_grounding([(torch.ones(2, 4, 4), MASK), (torch.ones(3, 4, 4), MASK)])
    with pytest.raises(ValueError, match="steps names 3 steps, but each picture has 2"):
        score_grounding([(torch.ones(2, 4, 4), MASK)], steps=(1, 2, 3))
