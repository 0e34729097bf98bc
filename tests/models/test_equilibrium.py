from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models.zoo import HEADS, PAIR, build, features_for, ragged_masks
from torch import Tensor, nn

import meq
from meq.models.equilibrium import Coupling

PAPER: dict[str, Any] = {"widths": {"image": 768, "text": 768}, "classes": 3, "dim": 768, "heads": 8, "steps": 10}


def parameters_of(**options: Any) -> int:
    with torch.device("meta"):
        return meq.MutualEquilibrium(**{**PAPER, **options}).count_parameters()


def test_the_papers_size_comes_out() -> None:
    assert abs(parameters_of() - 33_470_000) < 3_000
    stand_ins = 2 * 768
    assert parameters_of() - stand_ins == 33_470_469


def test_the_merge_readout_and_its_control_have_the_papers_size() -> None:
    merged = parameters_of(readout="merge")
    assert abs(merged - 38_195_000) < 3_000
    assert abs(parameters_of(readout="control") - merged) < 1e-4 * merged


def test_the_gmlp_arm_is_within_two_percent() -> None:
    gmlp = parameters_of(mixer="gmlp", max_tokens={"image": 50, "text": 60})
    assert abs(gmlp / 33_470_000 - 1) < 0.02


def slot_weights(side: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    parts = zip(side.project.weight.chunk(7), side.project.bias.chunk(7), strict=True)
    return dict(zip(side.slots, parts, strict=True))


def template(model: meq.MutualEquilibrium, name: str, other: str, state: dict, features: dict) -> tuple[Tensor, Tensor]:
    """u and g written out from the formulas, with none of the fusing."""
    side = model.coupling.sides[name]
    z, n, n_other = state[name], side.norm(state[name]), model.coupling.sides[other].norm(state[other])
    weights, others = slot_weights(side), slot_weights(model.coupling.sides[other])

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = [torch.stack(x.chunk(HEADS, -1)) for x in (query, key, value)]  # heads first
        scores = parts[0] @ parts[1].transpose(-1, -2) / parts[0].shape[-1] ** 0.5
        return torch.cat(list(scores.softmax(-1) @ parts[2]), dim=-1)

    def feed(block: nn.Module, x: Tensor) -> Tensor:
        return x + block.narrow(F.gelu(block.widen(block.norm(x))))

    own = attention(*(F.linear(n, *weights[slot]) for slot in ("own_query", "own_key", "own_value")))
    s = feed(side.own_feed, z + side.own_output(own))
    shown = (F.linear(n_other, *others[slot]) for slot in ("shown_key", "shown_value"))
    cross = attention(F.linear(n, *weights["cross_query"]), *shown)
    m = feed(side.cross_feed, z + side.cross_output(cross))
    alpha = torch.sigmoid(side.balance)
    u = side.settle(alpha * s + (1 - alpha) * m + side.inject(features[name]))
    whole = torch.cat([weights["gate"][0], side.gate.read_proposal.weight], dim=1)  # W reads [n; u]
    return u, torch.sigmoid(F.linear(torch.cat([n, u], -1), whole, weights["gate"][1]))


def test_one_step_is_the_template_with_the_soft_gate() -> None:
    model = build("pair")
    features = features_for(model)
    context = model.coupling.prepare(features, {}, None)
    state = model.coupling.start(context)
    assert torch.equal(state["image"], model.coupling.sides["image"].inject(features["image"])), "starts at f(x)"
    image = model.coupling(state, context)
    for name, other in (("image", "text"), ("text", "image")):
        u, g = template(model, name, other, state, features)
        torch.testing.assert_close(image[name], state[name] + g * (u - state[name]), rtol=1e-12, atol=1e-12)
    opened = model.coupling.openness(state, context)
    torch.testing.assert_close(opened["text"], template(model, "text", "image", state, features)[1])


def test_without_the_gate_the_step_is_the_normed_template() -> None:
    model = build("no gate")
    features = features_for(model)
    context = model.coupling.prepare(features, {}, None)
    image = model.coupling(model.coupling.start(context), context)
    side = model.coupling.sides["text"]
    z = side.inject(features["text"])
    assert not hasattr(side, "read_proposal")
    unit = (image["text"] - side.settle.bias) / side.settle.weight
    torch.testing.assert_close(unit.mean(-1), torch.zeros_like(unit[..., 0]), atol=1e-7, rtol=0)
    assert not torch.allclose(image["text"], z)


def test_the_read_state_is_the_damped_iteration_of_the_map() -> None:
    model = build("pair", tol=0.0)
    features = features_for(model)
    solution = model(features).solution
    context = model.coupling.prepare(features, {}, None)
    state = model.coupling.start(context)
    for _ in range(model.steps):
        image = model.coupling(state, context)
        state = {name: 0.5 * image[name] + 0.5 * z for name, z in state.items()}
    torch.testing.assert_close(solution.state, state)


def test_a_decaying_carry_is_a_mean_of_state_and_template_that_no_state_can_close() -> None:
    model = build("decaying carry")
    side = model.coupling.sides["image"]
    with torch.no_grad():
        side.gate.rate.copy_(torch.linspace(-3, 3, len(side.gate.rate)))
    output = model(features_for(model))
    solution = output.solution
    plain = build("no gate")
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if not name.endswith("gate.rate")})
    inputs = plain(features_for(plain)).solution.inputs
    state, carried = solution.state, torch.exp(-F.softplus(side.gate.rate))
    template = plain.coupling(state, inputs)["image"]
    expected = carried * state["image"] + (1 - carried) * template
    torch.testing.assert_close(model.coupling(state, solution.inputs)["image"], expected)
    torch.testing.assert_close(model.gates(solution)["image"], (1 - carried).mean().expand(4))


def closed_gate(name: str, logit: float = -16.1) -> meq.MutualEquilibrium:
    model = build(name)
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.gate.read_proposal.weight.zero_()
            side.project.weight[-side.norm.normalized_shape[0] :] = 0
            side.project.bias[-side.norm.normalized_shape[0] :] = logit
    return model


def test_a_gate_closed_to_1e_7_is_the_identity_collapse_of_the_paper() -> None:
    model = closed_gate("pair")
    output = model(features_for(model))
    solution = output.solution
    assert all((values < 1.1e-7).all() for values in model.gates(solution).values())
    assert all((values < 1e-6).all() for values in solution.final_residual.values())

    one = {name: z[:1] for name, z in solution.state.items()}
    context = model.coupling.prepare({name: x[:1] for name, x in features_for(model).items()}, {}, None)
    sizes = [z.numel() for z in one.values()]

    def flat(z: Tensor) -> Tensor:
        pieces = zip(one.items(), z.split(sizes), strict=True)
        parts = {name: piece.view_as(like) for (name, like), piece in pieces}
        return torch.cat([x.flatten() for x in model.coupling(parts, context).values()])

    jacobian = torch.autograd.functional.jacobian(flat, torch.cat([z.flatten() for z in one.values()]))
    norm = jacobian.norm() / len(jacobian) ** 0.5  # the root mean square singular value
    assert abs(norm - 1) < 5e-4
    cross = jacobian[: sizes[0], sizes[0] :]
    assert cross.norm() < 1e-6


def test_the_gate_floor_holds() -> None:
    model = closed_gate("gate floor")
    solution = model(features_for(model)).solution
    for values in model.gates(solution).values():
        torch.testing.assert_close(values, torch.full_like(values, 0.1), atol=1e-6, rtol=0)


def test_without_the_cross_path_no_modality_sees_another() -> None:
    model = build("no cross")
    features = features_for(model)
    changed = {**features, "text": features["text"] + 1}
    before, after = model(features).solution.state, model(changed).solution.state
    assert torch.equal(before["image"], after["image"])
    assert not torch.allclose(before["text"], after["text"])


def test_without_the_own_path_no_token_of_a_modality_sees_its_siblings_within_a_step() -> None:
    model = build("no own", steps=1)
    features = features_for(model)
    changed = {**features, "image": features["image"].clone()}
    changed["image"][:, 0] += 1
    before, after = model(features).solution.state["image"], model(changed).solution.state["image"]
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0])


def test_every_modality_reads_all_the_others() -> None:
    model = build("three modalities", steps=1)
    features = {name: x.requires_grad_() for name, x in features_for(model).items()}
    for z in model(features).solution.state.values():
        gradients = torch.autograd.grad(z.sum(), list(features.values()), retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_a_state_with_nobody_to_read_keeps_its_residual_path() -> None:
    model = build("pair")
    side, features = model.coupling.sides["image"], features_for(model)
    context = model.coupling.prepare(features, {"text": torch.zeros(4, 3, dtype=torch.bool)}, None)
    state = model.coupling.start(context)
    normed, slots = model.coupling._project(state)
    torch.testing.assert_close(side.cross(state, normed, slots, context), side.cross_feed(state["image"]))


def test_dropout_draws_one_mask_per_solve_and_none_in_eval() -> None:
    model = build("pair", dropout=0.4).train()
    features = features_for(model)
    seeds = torch.arange(4)
    output = model(features, seeds=seeds)
    context = output.solution.inputs
    state = output.solution.state
    assert torch.equal(model.coupling(state, context)["text"], model.coupling(state, context)["text"]), "T is a map"
    again, other = model(features, seeds=seeds), model(features, seeds=seeds + 100)
    assert torch.equal(again.logits, output.logits)
    assert not torch.allclose(other.logits, output.logits)
    one = model({name: x[2:3] for name, x in features.items()}, seeds=seeds[2:3])
    torch.testing.assert_close(one.logits[0], output.logits[2])
    model.eval()
    assert torch.equal(model(features).logits, model(features, seeds=seeds).logits)
    assert model(features).solution.inputs["keep"] == {}


def test_dropout_and_padding_do_not_meet() -> None:
    model = build("pair", dropout=0.4).train()
    features, seeds = features_for(model), torch.arange(4)
    longer = {**features, "text": F.pad(features["text"], (0, 0, 0, 5))}
    mask = {"text": torch.arange(8).expand(4, -1) < 3}
    torch.testing.assert_close(model(longer, mask, seeds=seeds).logits, model(features, seeds=seeds).logits)


def test_learned_damping_starts_at_the_papers_value_and_is_trained() -> None:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium(widths=PAIR, classes=3, dim=8, heads=2, damping="learned")
    assert abs(torch.sigmoid(model.damping).item() - 0.62) < 0.005
    model(features_for(model, dtype=torch.float32)).logits.sum().backward()
    assert model.damping.grad.abs() > 0


@pytest.mark.parametrize("backward", [meq.Checkpointed(), meq.Phantom(4)])
def test_the_backward_mode_is_a_switch_on_the_model(backward: meq.Backward) -> None:
    gradients = []
    for mode in (meq.Unrolled(), backward):
        model = build("pair", tol=0.0)
        model.backward = mode
        model(features_for(model), ragged_masks(model)).logits.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(gradients[1], gradients[0])


def test_implicit_gradients_of_a_settled_model_equal_unrolled_ones() -> None:
    gradients = []
    for mode in (meq.Unrolled(), meq.Implicit(tol=1e-10, steps=200)):
        model = build("pair", tol=1e-12, steps=200)
        model.backward, model.solver = mode, meq.Anderson()
        output = model(features_for(model))
        assert set(output.solution.stop) == {meq.Stop.SETTLED}
        output.logits.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if "stand_ins" not in name})
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-8)


def test_another_solver_reaches_the_same_equilibrium() -> None:
    model = build("pair", steps=600, tol=1e-8)
    features = features_for(model)
    damped = model(features).solution
    model.solver = meq.Anderson()
    anderson = model(features).solution
    assert anderson.steps.max() < damped.steps.max()
    torch.testing.assert_close(anderson.state, damped.state, rtol=1e-5, atol=1e-5)


def test_modules_of_ones_own_replace_the_parts() -> None:
    class Own(nn.Module):
        def forward(self, z: Tensor, mask: Tensor | None) -> Tensor:
            return 0.5 * z

    class Cross(nn.Module):
        def forward(self, z: Tensor, others: Tensor, mask: Tensor | None) -> Tensor:
            mean = others.mean(1) if mask is None else (others * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return z + mean[:, None]

    parts = {"image": meq.Parts(inject=nn.Linear(6, 8), own=Own(), cross=Cross())}
    model = meq.MutualEquilibrium(widths=PAIR, classes=3, dim=8, heads=2, parts=parts).double()
    features, masks = features_for(model), ragged_masks(model)
    context = model.coupling.prepare(features, masks, None)
    state = model.coupling.start(context)
    side = model.coupling.sides["image"]
    image = model.coupling(state, context)["image"]
    z, real = state["image"], masks["text"]
    others = (state["text"] * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    mixed = torch.where(real.any(1)[:, None, None], z + others[:, None], z)
    u = side.settle(0.25 * z + 0.5 * mixed + parts["image"].inject(features["image"]))
    gate = side.gate.openness(side.project_slots(side.norm(z))["gate"], u)
    torch.testing.assert_close(image, z + gate * (u - z))
    assert model(features, masks).logits.isfinite().all()
    with pytest.raises(ValueError, match="parts of your own cannot be saved"):
        model.save_pretrained("never-written")


def test_the_gmlp_mixer_refuses_more_tokens_than_it_was_built_for() -> None:
    model = build("gmlp")
    features = features_for(model)
    features["text"] = features["text"].repeat(1, 4, 1)
    with pytest.raises(ValueError, match="'text' has 12 tokens, but the gMLP mixer was built for at most 9"):
        model(features)
    with pytest.raises(ValueError, match="needs max_tokens for every modality"):
        meq.MutualEquilibrium(widths=PAIR, dim=8, heads=2, mixer="gmlp", max_tokens={"image": 3})


def test_the_vector_form_keeps_one_vector_per_modality() -> None:
    model = build("mlp")
    solution = model(features_for(model)).solution
    assert {name: tuple(z.shape) for name, z in solution.state.items()} == dict.fromkeys(model.widths, (4, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": {"image": 4}}, "at least two modalities"),
        ({"mixer": "atention"}, "did you mean 'attention'"),
        ({"readout": "merged"}, "did you mean 'merge'"),
        ({"head": "class"}, "did you mean 'classes'"),
        ({"start": "zeros"}, "did you mean 'zero'"),
        ({"damping": "learnt"}, "did you mean 'learned'"),
        ({"own": False, "cross": False}, "leave nothing to iterate"),
        ({"dim": 9}, "cannot be split into 2 heads"),
        ({"gate_floor": 1.0}, "floor must lie in"),
        ({"gate": False, "gate_floor": 0.1}, "gate_floor is a floor under the soft gate, and gate=False has none"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"modality_dropout": -0.1}, "modality_dropout must lie in"),
        ({"widths": {"a.b": 3, "c": 3}}, "cannot name a modality"),
        ({"widths": {"keys": 3, "c": 3}}, "cannot name a modality"),
        ({"parts": {"imge": meq.Parts()}}, "did you mean 'image'"),
    ],
)
def test_wrong_options_are_answered_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meq.MutualEquilibrium(**{"widths": PAIR, "classes": 3, "dim": 8, "heads": 2, **options})


def test_a_model_can_be_copied_after_use() -> None:
    model = build("pair")
    features = features_for(model)
    logits = model(features).logits
    assert torch.equal(copy.deepcopy(model)(features).logits, logits)


def test_the_radius_of_a_model_is_that_of_its_dense_jacobian() -> None:
    model = build("pair")
    features, masks = features_for(model), ragged_masks(model)
    output = model(features, masks)
    assert isinstance(model.operator, Coupling)
    radius = meq.spectral_radius(model.operator, output.solution)
    row = torch.tensor([1])  # the sample with a padded text
    real = {"image": torch.ones(1, 4, dtype=torch.bool), "text": masks["text"][1:2]}
    context = model.coupling.prepare({k: x[1:2] for k, x in features.items()}, {"text": real["text"]}, None)
    start = {name: z.index_select(0, row) for name, z in output.solution.state.items()}

    def flat(z: Tensor) -> Tensor:
        state, offset = {}, 0
        for name, base in start.items():
            count = int(real[name].sum()) * 8
            where = real[name][..., None].expand_as(base)
            state[name] = base.detach().masked_scatter(where, z[offset : offset + count])
            offset += count
        return torch.cat([x[real[name]].flatten() for name, x in model.coupling(state, context).items()])

    point = torch.cat([z[real[name]].flatten() for name, z in start.items()]).detach()
    dense = torch.autograd.functional.jacobian(flat, point)
    torch.testing.assert_close(radius[1], torch.linalg.eigvals(dense).abs().max(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "classes must be a whole number of at least 1, got 0"),
        ({"classes": 2.0}, "classes must be a whole number of at least 1, got 2.0"),
        ({"dim": -8}, "dim must be a whole number of at least 1, got -8"),
        ({"heads": 0}, "heads must be a whole number of at least 1, got 0"),
        ({"heads": 3}, "dim=8 cannot be split into 3 heads: choose one of 1, 2, 4, 8"),
        ({"hidden": 0}, "hidden must be a whole number of at least 1, got 0"),
        ({"head_width": -1}, "head_width must be a whole number of at least 1, got -1"),
        ({"widths": {"image": 4, "text": 0}}, "the width of the features of 'text' must be a whole number"),
        ({"dropout": "0.1"}, "dropout must lie in"),
        ({"damping": 0}, "damping must be a positive number or 'learned', got 0"),
        ({"gate": 1}, "gate must be True, False or 'decay', got 1"),
        ({"mixer": "gmlp", "max_tokens": {"image": 4, "text": -1}}, "max_tokens of 'text' must be a whole number"),
    ],
)
def test_sizes_that_make_no_model_are_answered_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build("pair", **options)


@pytest.mark.usefixtures("unchecked")
def test_numpy_numbers_are_as_good_as_any() -> None:
    model = build("pair", steps=np.int64(5), tol=np.float32(0.5))
    assert (type(model.steps), type(model.tol)) == (int, float)
