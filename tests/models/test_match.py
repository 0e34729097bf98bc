from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from meq import models
from meq.models.match import count_flops, match_flops, match_parameters

PAPER = {"image": 768, "text": 768}
TARGET = 33_470_469

ARMS = {
    "concat": lambda h: models.Concat(PAPER, 3, hidden=h, depth=2),
    "self-attention": lambda h: models.SelfAttention(PAPER, 3, hidden=h, depth=4),
    "cross-attention": lambda h: models.CrossAttention(PAPER, 3, hidden=h, depth=2),
    "low-rank": lambda h: models.LowRankFusion(PAPER, 3, hidden=h),
    "single state": lambda w: models.SingleState(PAPER, 3, dim=8 * round(w / 8), hidden=4 * w),
    "feature sum": lambda h: models.FeatureSum(PAPER, 3, hidden=h),
}


@pytest.mark.parametrize("arm", ARMS)
def test_every_baseline_can_be_matched_to_the_papers_size(arm: str) -> None:
    found = match_parameters(ARMS[arm], TARGET, low=64, high=16384)
    with torch.device("meta"):
        model = ARMS[arm](found.size)
    assert sum(p.numel() for p in model.parameters()) == found.reached
    assert abs(found.reached / TARGET - 1) < 0.002
    assert f"{found.reached:,} parameters of the model" in str(found)


def test_a_block_can_be_matched_instead_of_the_model() -> None:
    with torch.device("meta"):
        target = models.MutualEquilibrium(PAPER, 3).count_parameters("block")
    found = match_parameters(ARMS["single state"], target, part="block", low=64, high=4096)
    assert abs(found.error) < 0.002
    with torch.device("meta"):
        assert ARMS["single state"](found.size).count_parameters() > found.reached, "a block is less than its model"


def test_the_nearest_size_is_chosen() -> None:
    def build(hidden: int) -> models.FusionModel:
        return models.Concat({"a": 4, "b": 4}, 2, dim=4, hidden=hidden, head_width=4)

    exact = {hidden: build(hidden).count_parameters() for hidden in range(1, 60)}
    for target in (300, 321, 444):
        nearest = min(exact, key=lambda hidden: abs(exact[hidden] - target))
        assert match_parameters(build, target, tolerance=0.05).size == nearest


def test_an_unreachable_target_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"no size reaches 1,000 parameters of the model: size 64 has"):
        match_parameters(ARMS["concat"], 1000, low=64)
    with pytest.raises(ValueError, match="no size comes within"):
        match_parameters(lambda w: models.SingleState(PAPER, 3, dim=256 * w), TARGET, low=1, high=16)


def test_flops_are_those_of_a_real_forward_pass() -> None:
    def build(steps: int) -> models.FusionModel:
        return models.MutualEquilibrium({"a": 6, "b": 5}, 2, dim=8, heads=2, steps=steps, tol=0.0)

    features = {"a": torch.randn(2, 4, 6), "b": torch.randn(2, 3, 5)}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        build(3)(features)
    assert count_flops(build, 3, features) == counter.get_total_flops()
    per_step = count_flops(build, 2, features) - count_flops(build, 1, features)
    assert count_flops(build, 10, features) == count_flops(build, 1, features) + 9 * per_step


def test_a_depth_can_be_matched_to_the_flops_of_the_iteration() -> None:
    features = {"image": torch.empty(1, 50, 768), "text": torch.empty(1, 60, 768)}
    target = count_flops(lambda steps: models.MutualEquilibrium(PAPER, 3, steps=steps, tol=0.0), 10, features)
    found = match_flops(lambda depth: models.SelfAttention(PAPER, 3, depth=depth), target, features, high=64)
    assert abs(found.error) < 0.03
    assert "FLOPs" in str(found)
