from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from meq.models.blocks import (
    Attention,
    FeedForward,
    PooledInjection,
    SoftGate,
    SpatialMixer,
    attend,
    keep_masks,
    masked_mean,
)


def test_attention_equals_torchs_own_with_the_same_weights() -> None:
    ours, theirs = Attention(8, 2).double(), torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x, y = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(3, 4, 8, dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True, True, False, False], [True, False, True, True]])
    expected = theirs(x, y, y, key_padding_mask=~mask, need_weights=False)[0]
    torch.testing.assert_close(ours(x, y, mask), expected)


def test_masked_keys_carry_no_weight_and_no_gradient() -> None:
    q, k, v = (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True, True, False], [True, False, False]])
    out = attend(q, k, v, heads=2, mask=mask)
    torch.testing.assert_close(out[1], v[1, :1].expand(3, -1))
    out.sum().backward()
    assert (v.grad[1, 1:] == 0).all()
    assert (k.grad[0, 2] == 0).all()


def test_the_feed_forward_is_a_residual_branch_behind_a_norm() -> None:
    block = FeedForward(6, 10)
    x = torch.randn(2, 3, 6)
    branch = block.narrow(F.gelu(block.widen(block.norm(x))))
    torch.testing.assert_close(block(x), x + branch)
    keep = torch.full((2, 1, 6), 2.0)
    torch.testing.assert_close(block(x, keep), x + 2 * branch)


@pytest.mark.parametrize("floor", [0.0, 0.1, 0.5])
def test_the_gate_stays_between_its_floor_and_one(floor: float) -> None:
    gate = SoftGate(4, floor)
    state, proposal = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    for logit in (-40.0, 0.0, 40.0):
        opened = gate.openness(torch.full((2, 3, 4), logit), 0 * proposal)
        assert (opened >= floor).all()
        assert (opened <= 1).all()
    torch.testing.assert_close(gate(state, torch.full((2, 3, 4), 1e4), proposal), proposal)


def test_a_gate_needs_a_floor_below_one() -> None:
    with pytest.raises(ValueError, match=r"floor must lie in \[0, 1\)"):
        SoftGate(4, 1.0)


def test_pooling_ignores_what_is_masked_even_when_it_is_not_finite() -> None:
    x = torch.randn(2, 3, 4)
    x[0, 2] = math.nan
    mask = torch.tensor([[True, True, False], [False, False, False]])
    pooled = masked_mean(x, mask)
    torch.testing.assert_close(pooled[0], x[0, :2].mean(0))
    assert (pooled[1] == 0).all()
    torch.testing.assert_close(masked_mean(x[1:], None), x[1:].mean(1))


def test_a_pooled_injection_is_the_projected_mean() -> None:
    inject = PooledInjection(4, 6)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(inject(x), inject.project(x.mean(1)))


def test_keep_masks_have_the_asked_for_rate_and_mean_one() -> None:
    masks = keep_masks(400, (50,), 0.3, like=torch.empty(0))
    assert masks.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert abs((masks == 0).float().mean().item() - 0.3) < 0.02
    assert abs(masks.mean().item() - 1) < 0.03


def test_a_seed_fixes_a_samples_mask_whoever_is_beside_it_and_touches_no_global_state() -> None:
    before = torch.get_rng_state()
    seeds = torch.tensor([5, 9, 5])
    masks = keep_masks(3, (40,), 0.5, like=torch.empty(0), seeds=seeds)
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(keep_masks(1, (40,), 0.5, like=torch.empty(0), seeds=seeds[1:2])[0], masks[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_spatial_mixer_mixes_tokens_by_its_matrices() -> None:
    mixer = SpatialMixer("a", {"a": 3, "b": 2}, 4, 5).double()
    normed = {"a": torch.randn(2, 3, 4, dtype=torch.float64), "b": torch.randn(2, 2, 4, dtype=torch.float64)}
    mask = {"b": torch.tensor([[True, True], [True, False]])}
    rows = {name: mixer.norm(F.gelu(mixer.read_all(n))) for name, n in normed.items()}
    rows["b"] = rows["b"] * mask["b"][..., None]
    mixed = sum(torch.einsum("nm,bmh->bnh", mixer.weights[name], rows[name]) for name in rows) + mixer.bias
    expected = mixer.output(F.gelu(mixer.read_own(normed["a"])) * mixed)
    torch.testing.assert_close(mixer(normed, mask), expected)


def test_shorter_inputs_use_the_first_rows_of_the_mixing_matrix() -> None:
    mixer = SpatialMixer("a", {"a": 3, "b": 4}, 4, 5).double()
    a, b = torch.randn(2, 2, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    padded = {"a": F.pad(a, (0, 0, 0, 1)), "b": F.pad(b, (0, 0, 0, 1))}
    masks = {"a": torch.tensor([[True, True, False]] * 2), "b": torch.tensor([[True] * 3 + [False]] * 2)}
    torch.testing.assert_close(mixer({"a": a, "b": b}, {}), mixer(padded, masks)[:, :2])


def test_what_a_hook_kept_of_a_layer_is_not_written_over() -> None:
    """Without gradients a block writes over what its layers made, unless somebody may have kept it."""
    block, gate, x = FeedForward(6, 10), SoftGate(6, 0.0), torch.randn(2, 3, 6)
    with torch.no_grad():
        expected = [block(x), gate(x, x, 2 * x), block.widen(block.norm(x)), gate.read_proposal(2 * x)]
        kept: list[torch.Tensor] = []
        for layer in (block.widen, gate.read_proposal):
            layer.register_forward_hook(lambda _, given, made: kept.append(made))
        found = [block(x), gate(x, x, 2 * x), *kept]
    for each, other in zip(found, expected, strict=True):
        assert torch.equal(each, other)


def test_a_layer_that_hands_on_its_input_keeps_it() -> None:
    gate, proposal = SoftGate(6, 0.0), torch.randn(2, 3, 6)
    gate.read_proposal = torch.nn.Identity()
    before = proposal.clone()
    with torch.no_grad():
        gate.openness(torch.ones(2, 3, 6), proposal)
    assert torch.equal(proposal, before)
