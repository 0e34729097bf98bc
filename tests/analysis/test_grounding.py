from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from meq.analysis.grounding import SCORES, best_iou, energy, pointing, score_grounding
from meq.analysis.maps import paint


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
    assert found.zero_maps.tolist() == [1, 0]
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
