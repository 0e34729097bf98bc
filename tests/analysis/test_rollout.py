from __future__ import annotations

import pytest
import torch
from models.zoo import build, features_for, ragged_masks
from torch import Tensor

import meq
from meq.analysis.attribution import attribute
from meq.analysis.rollout import mixing
from meq.models import Parts
from meq.models.blocks import attend, attention_weights

ATTENDING = ["pair", "three modalities", "no gate", "no own", "no cross", "tree", "single state", "learned damping"]


def solved(name: str) -> tuple[meq.FusionModel, dict[str, Tensor], dict[str, Tensor], meq.Solution]:
    model = build(name)
    features, masks = features_for(model), ragged_masks(model)
    with torch.no_grad():
        return model, features, masks, model(features, masks).solution


def test_the_weights_are_those_that_attention_mixes_by() -> None:
    query, key, value = (torch.randn(3, n, 8, dtype=torch.float64) for n in (4, 5, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 0, 1]]).bool()
    weights = attention_weights(query, key, heads=2, mask=mask)
    mixed = weights @ value.unflatten(-1, (2, -1)).transpose(1, 2)
    torch.testing.assert_close(mixed.transpose(1, 2).flatten(2), attend(query, key, value, heads=2, mask=mask))
    assert (weights.masked_select(~mask[:, None, None, :].expand_as(weights)) == 0).all()


@torch.no_grad()
def test_the_operator_shows_the_attention_of_its_own_step() -> None:
    """u rebuilt from the shown weights is u."""
    model, _, _, solution = solved("three modalities")
    coupling, state, inputs = model.coupling, solution.state, solution.inputs
    shown = coupling.attention(state, inputs)
    normed, slots = coupling._project(state)
    for name, side in coupling.sides.items():
        alpha = torch.sigmoid(side.balance)
        own = shown[name][name] / alpha @ slots[name]["own_value"].unflatten(-1, (2, -1)).transpose(1, 2)
        own = side.own_feed(state[name] + side.own_output(own.transpose(1, 2).flatten(2)), None)
        cross = sum(
            shown[name][other] / (1 - alpha) @ slots[other]["shown_value"].unflatten(-1, (2, -1)).transpose(1, 2)
            for other in side.others
        )
        cross = side.cross_feed(state[name] + side.cross_output(cross.transpose(1, 2).flatten(2)), None)
        rebuilt = alpha * own + (1 - alpha) * cross + inputs["injection"][name]
        torch.testing.assert_close(rebuilt, side.propose(state, normed, slots, inputs))


@torch.no_grad()
@pytest.mark.parametrize("name", ATTENDING)
def test_rows_of_a_step_sum_to_one_and_read_no_padding(name: str) -> None:
    model, _, masks, solution = solved(name)
    step = mixing(model.coupling, solution.state, solution.inputs, masks=solution.masks, damping=0.5)
    torch.testing.assert_close(step.sum(-1), torch.ones_like(step[..., 0]))
    assert (step >= 0).all()
    names = list(solution.state)
    first = sum(solution.state[each].shape[1] for each in names[: names.index("text")])
    hidden = torch.zeros(step.shape[:1] + step.shape[2:], dtype=torch.bool)
    hidden[:, first : first + 3] = ~masks["text"]
    others = step * (1 - torch.eye(step.shape[1]))
    assert (others.masked_select(hidden[:, None, :].expand_as(step)) == 0).all()


@torch.no_grad()
def test_two_steps_are_the_product_written_out_by_hand() -> None:
    model = build("pair", damping=0.25)
    features, masks = features_for(model), ragged_masks(model)
    found = attribute(model, features, masks, method="rollout", steps=(0, 1, 2))
    inputs = model.coupling.prepare(features, masks, None)
    walked = meq.solve(
        model.coupling, inputs, solver=meq.Damped(step=0.25), steps=2, tol=0, trajectory="all", masks=masks
    )
    sample, real = 1, [0, 1, 2, 3, 4, 5]  # four image tokens and two of its three text tokens
    rolled = torch.eye(7, dtype=torch.float64)
    for k in (0, 1):
        state = walked.trajectory[k]
        shown, opened = model.coupling.attention(state, inputs), model.coupling.openness(state, inputs)
        matrix = torch.eye(7, dtype=torch.float64)
        for i in real:
            a, place = ("image", i) if i < 4 else ("text", i - 4)
            share = 0.25 * opened[a][sample, place].mean() / 2
            row = torch.cat([shown[a][b][sample, :, place].mean(0) for b in ("image", "text")])
            matrix[i] = (1 - share) * matrix[i] + share * row
        rolled = matrix @ rolled
        relevance = rolled[:4].mean(0) / 2 + rolled[4:6].mean(0) / 2
        torch.testing.assert_close(found.maps["image"][k + 1, sample], relevance[:4])
        torch.testing.assert_close(found.maps["text"][k + 1, sample], relevance[4:])
    torch.testing.assert_close(found.maps["image"][0, sample], torch.full((4,), 1 / 8, dtype=torch.float64))


@pytest.mark.parametrize("name", ATTENDING)
def test_the_shares_of_a_sample_sum_to_one_at_every_step(name: str) -> None:
    model, features, masks, _ = solved(name)
    found = attribute(model, features, masks, method="rollout", steps=(0, 1, 5))
    total = sum(each.sum(-1) for each in found.maps.values())
    torch.testing.assert_close(total, torch.ones(3, 4, dtype=torch.float64))


def test_a_model_without_cross_attention_gathers_nothing_across() -> None:
    model, features, _, _ = solved("no cross")
    found = attribute(model, features, method="rollout", steps=(1, 6))
    torch.testing.assert_close(found.maps["text"].sum(-1), torch.full((2, 4), 0.5, dtype=torch.float64))


def test_a_token_that_everybody_reads_stands_out() -> None:
    model = build("pair", gate=False)
    features = features_for(model)
    with torch.no_grad():
        for side in model.coupling.sides.values():  # queries all alike, keys that see one channel of the features
            side.inject.project.weight.zero_()
            side.inject.project.weight[0, 0] = 1.0
            side.inject.project.bias.zero_()
            slots = dict(zip(side.slots, side.project.weight.chunk(len(side.slots)), strict=True))
            for slot, weight in slots.items():
                weight.zero_() if "query" in slot or "key" in slot else None
                if "key" in slot:
                    weight[:, 0] = 30.0
            biases = dict(zip(side.slots, side.project.bias.chunk(len(side.slots)), strict=True))
            for slot, bias in biases.items():
                bias.fill_(1.0) if "query" in slot else bias.zero_()
    features["image"][..., 0] = -1.0
    features["image"][:, 2, 0] = 3.0
    found = attribute(model, features, method="rollout", steps=(1, 4))
    assert (found.maps["image"].argmax(-1) == 2).all()
    assert (found.maps["image"][1, :, 2] > found.maps["image"][0, :, 2]).all()


@pytest.mark.parametrize(
    ("name", "mixer"), [("gmlp", "a gMLP"), ("mlp", "an MLP"), ("tree of vectors", "an MLP"), ("feature sum", "an MLP")]
)
@pytest.mark.parametrize("step", [0, 2])
def test_mixers_without_attention_are_refused(name: str, mixer: str, step: int) -> None:
    model = build(name)
    with pytest.raises(ValueError, match=f"mixed by {mixer}, so there are no attention weights.*use grad-cam"):
        attribute(model, features_for(model), method="rollout", steps=(step,))


def test_parts_of_the_users_own_are_refused() -> None:
    class Mean(torch.nn.Module):
        def forward(self, z: Tensor, mask: Tensor | None) -> Tensor:
            return z.mean(1, keepdim=True).expand_as(z)

    model = build("pair", parts={"image": Parts(own=Mean())})
    with pytest.raises(ValueError, match="mixed by parts of your own"):
        attribute(model, features_for(model), method="rollout")
    assert (attribute(model, features_for(model), method="gradient").maps["image"] > 0).any()


def test_another_solver_is_refused() -> None:
    model = build("pair")
    model.solver = meq.Anderson()
    with pytest.raises(ValueError, match="follows the damped iteration, not Anderson"):
        attribute(model, features_for(model), method="rollout")
