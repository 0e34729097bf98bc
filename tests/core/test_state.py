from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from problems import contraction
from torch import Tensor

import meq
from meq.core.state import (
    all_finite,
    choose,
    count_entries,
    dots,
    large_norm,
    norm,
    per_sample,
    put_rows,
    take_rows,
    token_mask,
)

SIZES = [large_norm, norm]
by_size = pytest.mark.parametrize("size_of", SIZES, ids=lambda function: function.__name__)
MASK = torch.tensor([[True, False, True, True], [False, False, True, False], [True, True, True, True]])


def tokens(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def padded_with(value: float) -> Tensor:
    return torch.where(MASK[..., None], tokens(), torch.tensor(value))


@by_size
def test_a_masked_norm_is_the_norm_of_the_real_tokens(size_of: Any) -> None:
    expected = torch.stack([row[real].norm() for row, real in zip(tokens(), MASK, strict=True)])
    torch.testing.assert_close(size_of(tokens(), MASK), expected)
    torch.testing.assert_close(size_of(tokens()), tokens().flatten(1).norm(dim=1))


@by_size
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_what_stands_in_padding_leaks_into_no_norm(size_of: Any, value: float) -> None:
    torch.testing.assert_close(size_of(padded_with(value), MASK), size_of(tokens(), MASK))


@by_size
def test_a_mask_per_sample_hides_the_whole_sample(size_of: Any) -> None:
    present = torch.tensor([True, False, True])
    vectors = tokens()[:, 0]
    for x in (tokens(), vectors):
        expected = torch.where(present, size_of(x), 0)
        torch.testing.assert_close(size_of(x, present), expected)


@by_size
@pytest.mark.parametrize(("dtype", "found"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_norms_are_taken_in_float32_or_better(size_of: Any, dtype: torch.dtype, found: torch.dtype) -> None:
    ones = torch.ones(2, 300, 1, dtype=dtype)  # a sum of ones in bfloat16 stops growing at 256
    assert size_of(ones).dtype == found
    torch.testing.assert_close(size_of(ones).square(), torch.full((2,), 300, dtype=found))


def test_the_large_norm_survives_entries_whose_squares_overflow() -> None:
    x = torch.full((2, 3, 3), 1e25)
    x[1] = 1.0
    assert norm(x).tolist() == [math.inf, 3.0]
    torch.testing.assert_close(large_norm(x), torch.tensor([3e25, 3.0]))
    assert large_norm(torch.zeros(1, 2, 2)).tolist() == [0.0]
    assert large_norm(torch.tensor([[1.0, math.nan], [1.0, math.inf]])).isfinite().tolist() == [False, False]


def test_dots_sum_over_the_modalities_and_the_real_tokens() -> None:
    one = {"image": tokens(), "text": tokens()[:, 0]}
    many = [{"image": tokens() + shift, "text": tokens()[:, 1]} for shift in (0.0, 1.0)]
    expected = torch.stack(
        [(x["image"] * one["image"]).sum((1, 2)) + (x["text"] * one["text"]).sum(1) for x in many], 1
    )
    torch.testing.assert_close(dots(many, one, {}), expected)

    hidden = torch.stack([((x["image"] * one["image"]).sum(2) * MASK).sum(1) for x in many], 1)
    text = torch.stack([(x["text"] * one["text"]).sum(1) for x in many], 1)
    torch.testing.assert_close(dots(many, one, {"image": MASK}), hidden + text)


def test_what_stands_in_padding_leaks_into_no_dot() -> None:
    clean = dots([{"a": tokens()}], {"a": tokens()}, {"a": MASK})
    for value in (math.nan, math.inf):
        poisoned = {"a": padded_with(value)}
        torch.testing.assert_close(dots([poisoned], poisoned, {"a": MASK}), clean)


def test_dots_are_taken_in_float32_or_better_even_under_autocast() -> None:
    ones = {"a": torch.ones(2, 1001, 1, dtype=torch.bfloat16)}
    assert dots([ones], ones, {}).tolist() == [[1001.0], [1001.0]]
    thirds = {"a": torch.full((1, 8), 1 / 3)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = dots([thirds], thirds, {})
    assert product.dtype == torch.float32
    torch.testing.assert_close(product, torch.tensor([[8 / 9]]))


def test_a_sample_is_finite_if_its_real_entries_are() -> None:
    state = {"a": padded_with(math.nan), "b": torch.ones(3, 2)}
    assert all_finite(state, {"a": MASK}).tolist() == [True, True, True]
    assert all_finite(state, {}).tolist() == [False, False, True]
    state["b"][2, 0] = math.inf
    assert all_finite(state, {"a": MASK}).tolist() == [True, True, False]


def test_choose_takes_whole_samples_whatever_their_shape() -> None:
    new, old = {"a": torch.ones(3, 2, 2), "b": torch.ones(3, 4)}, {"a": torch.zeros(3, 2, 2), "b": torch.zeros(3, 4)}
    chosen = choose(torch.tensor([True, False, True]), new, old)
    assert chosen["a"].flatten(1).mean(1).tolist() == [1, 0, 1]
    assert chosen["b"].mean(1).tolist() == [1, 0, 1]


def test_rows_are_taken_from_every_tensor_of_a_tree_and_scalars_stay() -> None:
    scale, rows = torch.tensor(2.0), torch.tensor([2, 0])
    tree = {"x": torch.arange(3), "more": [torch.arange(6).reshape(3, 2), ("name", {"deep": torch.arange(3) * 10})]}
    taken = take_rows({**tree, "scale": scale, "number": 7, "nothing": None}, rows)
    assert taken["x"].tolist() == [2, 0]
    assert taken["more"][0].tolist() == [[4, 5], [0, 1]]
    assert taken["more"][1][0] == "name"
    assert taken["more"][1][1]["deep"].tolist() == [20, 0]
    assert taken["scale"] is scale
    assert taken["number"] == 7
    assert taken["nothing"] is None


def test_rows_that_are_put_back_replace_their_samples_and_pass_their_gradient() -> None:
    state = {"a": torch.zeros(3, 2)}
    part = {"a": torch.ones(2, 2, requires_grad=True)}
    put = put_rows(state, torch.tensor([2, 0]), part)
    assert put["a"][:, 0].tolist() == [1, 0, 1]
    assert state["a"].sum() == 0, "the old state is left alone"
    put["a"][2].sum().backward()
    assert part["a"].grad is not None
    assert part["a"].grad.tolist() == [[1, 1], [0, 0]]


def test_values_per_sample_or_token_broadcast_over_a_state() -> None:
    assert per_sample(torch.ones(3), tokens()).shape == (3, 1, 1)
    assert per_sample(MASK, tokens()).shape == (3, 4, 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("masks", "error", "words"),
    [
        ({"txt": torch.ones(3, 2) > 0}, ValueError, "masks has the unknown modality 'txt': did you mean 'text'?"),
        ({"text": torch.ones(3, 5) > 0}, ValueError, "the mask of 'text' has shape (3, 5); its state is (3, 2, 4)"),
        ({"text": torch.ones(3, 2, 4) > 0}, ValueError, "must be (3, 2) (per token) or (3,) (per sample)"),
        ({"image": torch.ones(3, 3)}, TypeError, "the mask of 'image' must be a boolean tensor (True = real token)"),
        ({"image": torch.ones(3, 3).long()}, TypeError, "got torch.int64"),
        ({"image": [[True] * 3] * 3}, TypeError, "the mask of 'image' must be a boolean tensor"),
        (
            {"image": torch.ones(3, 3, device="meta") > 0},
            ValueError,
            "the mask of 'image' is on meta, its state on cpu",
        ),
    ],
    ids=["modality", "tokens", "axes", "floats", "integers", "a list", "device"],
)
def test_a_mask_that_does_not_fit_is_refused_in_words(masks: Any, error: type[Exception], words: str) -> None:
    problem = contraction()
    with pytest.raises(error, match=re.escape(words)):
        meq.solve(problem.operator, problem.inputs, masks=masks)


def test_token_masks_have_the_shape_of_the_tokens():
    tokens, vectors, choices = torch.zeros(2, 3, 4), torch.zeros(2, 4), torch.zeros(2, 2, 3, 4)
    per_token = torch.tensor([[True, True, False], [False, False, False]])
    assert token_mask(None, tokens).tolist() == [[True] * 3] * 2
    assert token_mask(per_token, tokens) is per_token
    assert token_mask(per_token.any(1), tokens).tolist() == [[True] * 3, [False] * 3]
    assert token_mask(per_token.any(1), vectors).tolist() == [True, False]
    assert token_mask(per_token.any(1, keepdim=True), vectors).tolist() == [True, False]
    assert token_mask(per_token.any(1), choices).shape == (2, 2, 3)


def test_entries_are_counted_by_sample():
    tokens = torch.zeros(2, 3, 4)
    per_token = torch.tensor([[True, True, False], [False, False, False]])
    assert count_entries(tokens, None).tolist() == [12, 12]
    assert count_entries(tokens, per_token).tolist() == [8, 0]
    assert count_entries(tokens, per_token.any(1)).tolist() == [12, 0]
    assert count_entries(tokens.bfloat16(), per_token).dtype == torch.float32
