from __future__ import annotations

import torch
from models.zoo import build, features_for

from meq.models import Concat, LowRankFusion


def test_low_rank_fusion_is_the_outer_product_at_full_rank_form() -> None:
    """sum_r w_r prod_m (W_m,r [z_m; 1]) equals the full tensor contraction with W = sum_r w_r outer_m W_m,r."""
    model = LowRankFusion({"a": 3, "b": 2}, 2, dim=4, hidden=5, rank=3).double()
    pooled = {"a": torch.randn(6, 4, dtype=torch.float64), "b": torch.randn(6, 4, dtype=torch.float64)}
    factors = {}
    for name, layer in model.factors.items():
        weight = torch.cat([layer.weight, layer.bias[:, None]], dim=1).view(3, 5, 5)  # rank, hidden, dim + 1
        factors[name] = weight
    tensor = torch.einsum("r,rha,rhb->hab", model.weights, factors["a"], factors["b"])
    one = torch.ones(6, 1, dtype=torch.float64)
    full = torch.einsum("hab,na,nb->nh", tensor, *(torch.cat([pooled[name], one], 1) for name in ("a", "b")))
    torch.testing.assert_close(model.summary(pooled), full + model.bias)


def test_concatenation_never_mixes_before_pooling() -> None:
    model = build("concat")
    features = features_for(model)
    shuffled = {name: x.flip(1) for name, x in features.items()}
    torch.testing.assert_close(model(shuffled).logits, model(features).logits)


def test_depth_adds_layers() -> None:
    sizes = [Concat({"a": 3, "b": 3}, 2, dim=4, hidden=6, depth=depth).count_parameters() for depth in (1, 2, 3)]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == 6 * 6 + 6


def test_attention_baselines_mix_the_modalities() -> None:
    for name in ("self-attention", "cross-attention"):
        model = build(name)
        features = {key: x.requires_grad_() for key, x in features_for(model).items()}
        pooled = model(features).pooled["image"]
        (gradient,) = torch.autograd.grad(pooled.sum(), features["text"])
        assert gradient.abs().sum() > 0, name


def test_models_that_do_not_iterate_have_neither_solution_nor_operator() -> None:
    model = build("concat")
    assert model(features_for(model)).solution is None
    assert model.operator is None


def test_a_single_state_is_one_map_over_all_tokens_handed_out_per_modality() -> None:
    model = build("single state")
    solution = model(features_for(model)).solution
    assert {name: z.shape[1] for name, z in solution.state.items()} == {"image": 4, "text": 3, "audio": 2}
    assert set(model.gates(solution)) == {"image", "text", "audio"}


def test_a_feature_sum_iterates_one_vector() -> None:
    model = build("feature sum")
    solution = model(features_for(model)).solution
    assert {name: tuple(z.shape) for name, z in solution.state.items()} == {"joint": (4, 8)}
