from __future__ import annotations

from typing import Any

import pytest
import torch
from models.zoo import WIDTHS, build, features_for

import meq
from meq.models import EquilibriumTree


def test_a_tree_settles_pair_by_pair_in_the_given_order() -> None:
    model = build("tree")
    output = model(features_for(model))
    assert list(output.branches) == ["(image+audio)"]
    assert set(output.branches["(image+audio)"].state) == {"image", "audio"}
    assert set(output.solution.state) == {"(image+audio)", "text"}
    assert output.solution.state["(image+audio)"].shape == (4, 1, 8), "the summary is one token"


def test_the_summary_of_a_branch_is_its_pooled_states_through_the_combiner() -> None:
    model = build("tree", steps=1)
    features = features_for(model)
    output = model(features)
    branch = output.branches["(image+audio)"]
    pooled = torch.cat([branch.state[name].mean(1) for name in ("image", "audio")], dim=-1)
    summary = model.combiners["(image+audio)"].mlp(pooled)
    start = output.solution.inputs["injection"]["(image+audio)"]
    torch.testing.assert_close(start[:, 0], model.coupling.sides["(image+audio)"].inject(summary[:, None])[:, 0])


def test_the_order_matters_and_every_modality_reaches_the_answer() -> None:
    torch.manual_seed(0)
    other = EquilibriumTree(WIDTHS, 3, 8, order=("image", ("audio", "text")), heads=2, steps=2).double()
    features = {name: x.requires_grad_() for name, x in features_for(other).items()}
    output = other(features)
    assert set(output.solution.state) == {"image", "(audio+text)"}
    gradients = torch.autograd.grad(output.logits.sum(), list(features.values()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_a_sample_that_lacks_a_whole_branch_lacks_its_summary() -> None:
    model = build("tree")
    features = features_for(model)
    masks = {name: torch.tensor([True, False, True, True]) for name in ("image", "audio")}
    output = model(features, masks)
    assert output.logits.isfinite().all()
    assert output.solution.masks["(image+audio)"][:, 0].tolist() == [True, False, True, True]
    assert output.solution.residuals["(image+audio)"][:, 1].isnan().all()
    whole = model(features).logits
    torch.testing.assert_close(output.logits[[0, 2, 3]], whole[[0, 2, 3]])


def test_four_modalities_nest_as_deep_as_asked() -> None:
    widths = {**WIDTHS, "pose": 3}
    order = ((("image", "audio"), "pose"), "text")
    model = EquilibriumTree(widths, 2, 8, order=order, heads=2, steps=2, mixer="mlp")
    features = {name: torch.randn(2, 3, width) for name, width in widths.items()}
    output = model(features)
    assert list(output.branches) == ["(image+audio)", "((image+audio)+pose)"]
    assert output.logits.shape == (2, 2)


def test_a_tree_of_gmlp_mixers_gives_its_summaries_one_token() -> None:
    longest = {"image": 4, "audio": 2, "text": 3}
    model = build("tree", mixer="gmlp", max_tokens=longest)
    assert model(features_for(model)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("image", "must nest pairs"),
        (("image", "audio", "text"), "must nest pairs"),
        ((("image", "audio"), "txt"), "did you mean 'text'"),
        (("image", "audio"), "must name every modality once"),
        ((("image", "audio"), "image"), "must name every modality once"),
    ],
)
def test_a_wrong_order_is_answered_in_words(order: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meq.EquilibriumTree(widths=WIDTHS, classes=2, dim=8, order=order, heads=2)
