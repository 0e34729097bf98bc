from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from analysis.instruments import CASES, settled
from problems import CoupledAttention, attention_inputs, expansive
from torch import Tensor

import meq
from meq.analysis import derive_equilibrium


def tangents(like: Tensor, seed: int = 0) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


def close(found: dict[str, Tensor], expected: dict[str, Tensor], *, tol: float) -> None:
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=tol, atol=tol)


@pytest.mark.parametrize("case", list(CASES))
def test_closed_form_one_shot_and_finite_differences_agree_for_an_input(case: str) -> None:
    operator, inputs, masks = CASES[case]()
    solution = settled(operator, inputs, masks)
    name = next(iter(solution.state))
    direction = tangents(inputs[name])
    if masks:
        direction = direction * masks[name][..., None]
    found = derive_equilibrium(operator, solution, inputs={name: direction})
    step = 1e-5
    up, down = (
        settled(operator, {**inputs, name: inputs[name] + sign * step * direction}, masks).state for sign in (1, -1)
    )
    expected = {m: (up[m] - down[m]) / (2 * step) for m in up}
    if masks:
        expected = {m: x * masks[m][..., None] for m, x in expected.items()}
    close(found.equilibrium, expected, tol=1e-7)
    assert found.nested is not None
    close(found.nested, found.equilibrium, tol=1e-8)
    assert (found.residual < 1e-9).all()
    assert (found.nested_residual < 1e-9).all()
    assert (found.disagreement < 1e-8).all()


@pytest.mark.parametrize("case", ["attention", "three"])
def test_closed_form_one_shot_and_finite_differences_agree_for_a_parameter(case: str) -> None:
    operator, inputs, _ = CASES[case]()
    name, parameter = next(iter(operator.named_parameters()))
    direction = tangents(parameter.detach())
    solution = settled(operator, inputs)
    found = derive_equilibrium(operator, solution, parameters={name: direction})
    step, states = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * step * direction
            states.append(settled(operator, inputs).state)
            parameter -= sign * step * direction
    close(found.equilibrium, {m: (states[0][m] - states[1][m]) / (2 * step) for m in states[0]}, tol=1e-6)
    assert (found.disagreement < 1e-8).all()


def test_the_read_state_has_a_derivative_of_its_own_through_its_steps() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    options = {"steps": 3, "tol": 0.0, "solver": meq.Damped(step=0.5)}
    solution = meq.solve(operator, inputs, **options)
    direction = tangents(inputs["x"])
    found = derive_equilibrium(operator, solution, inputs={"x": direction})
    step = 1e-6
    up, down = (
        meq.solve(operator, {**inputs, "x": inputs["x"] + sign * step * direction}, **options).state for sign in (1, -1)
    )
    assert found.read is not None
    close(found.read, {m: (up[m] - down[m]) / (2 * step) for m in up}, tol=1e-7)
    assert (found.read_distance > 0.01).all()  # three steps are no equilibrium


def test_at_an_equilibrium_both_derivatives_meet() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    found = derive_equilibrium(operator, settled(operator, inputs), inputs={"y": tangents(inputs["y"])})
    assert (found.read_distance < 1e-8).all()
    assert "read state against equilibrium" in str(found)


def test_the_equilibrium_has_a_derivative_where_the_iteration_diverges() -> None:
    problem = expansive()
    exact = problem.equilibrium
    solution = meq.solve(problem.operator, problem.inputs, steps=1, tol=0.0)
    at_root = meq.Solution(**{**vars(solution), "state": exact})
    direction = tangents(problem.inputs["a"])
    found = derive_equilibrium(problem.operator, at_root, inputs={"a": direction})
    moved = problem.operator.equilibrium({**problem.inputs, "a": problem.inputs["a"] + direction})
    close(found.equilibrium, {m: moved[m] - exact[m] for m in exact}, tol=1e-9)


def test_models_are_differentiated_by_their_injections() -> None:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium({"image": 4, "text": 3}, 2, 8, heads=2, steps=4).double().eval()
    features = {"image": torch.randn(2, 3, 4).double(), "text": torch.randn(2, 2, 3).double()}
    solution = model(features).solution
    direction = tangents(solution.inputs["injection"]["image"].detach())
    found = derive_equilibrium(model.operator, solution, inputs={"injection": {"image": direction}}, nested=False)
    assert (found.residual < 1e-8).all()
    assert found.nested is None
    step, states = 1e-6, []
    for sign in (1, -1):
        context = {**solution.inputs, "injection": dict(solution.inputs["injection"])}
        context["injection"]["image"] = context["injection"]["image"] + sign * step * direction
        states.append(meq.solve(model.operator, context, solver=model.damped(), steps=4, tol=0.0).state)
    assert found.read is not None
    close(found.read, {m: (states[0][m] - states[1][m]).detach() / (2 * step) for m in states[0]}, tol=1e-6)


def test_wrong_directions_are_named() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = settled(operator, inputs)
    with pytest.raises(ValueError, match="needs a direction"):
        derive_equilibrium(operator, solution)
    with pytest.raises(ValueError, match=r"inputs has no 'z' to move"):
        derive_equilibrium(operator, solution, inputs={"z": inputs["x"]})
    with pytest.raises(ValueError, match=r"inputs\['x'\] has shape \(1,\)"):
        derive_equilibrium(operator, solution, inputs={"x": torch.ones(1)})
    with pytest.raises(ValueError, match="did you mean 'weights'"):
        derive_equilibrium(operator, solution, parameters={"weight": torch.ones(1)})


def pair_of(kind: str) -> tuple[meq.FusionModel, dict[str, Tensor], dict[str, Tensor]]:
    """A small model that settles, in float64, with features and masks: padding, and a sample without text."""
    torch.manual_seed(0)
    widths, shared = {"image": 4, "text": 3}, {"heads": 2, "steps": 4, "tol": 0.0}
    made: dict[str, Callable[[], meq.FusionModel]] = {
        "attention": lambda: meq.MutualEquilibrium(widths, 2, 8, **shared),
        "gateless": lambda: meq.MutualEquilibrium(widths, 2, 8, gate=False, **shared),
        "zero start": lambda: meq.MutualEquilibrium(widths, 2, 8, start="zero", **shared),
        "vectors": lambda: meq.MutualEquilibrium(widths, 2, 8, mixer="mlp", **shared),
        "one joint state": lambda: meq.SingleState(widths, 2, 8, **shared),
        "one joint vector": lambda: meq.FeatureSum(widths, 2, 8, **shared),
    }
    model = made[kind]().double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gates well open and small mixing: it settles to 1e-13
            if "output" in name or "feed" in name:
                parameter *= 0.3
    features = {"image": torch.randn(3, 3, 4).double(), "text": torch.randn(3, 2, 3).double()}
    masks = {"text": torch.tensor([[True, True], [True, False], [False, False]])}
    return model, features, masks


def states(
    model: meq.FusionModel, features: dict[str, Tensor], masks: dict[str, Tensor], steps: int
) -> dict[str, Tensor]:
    """Of that many steps; many of them, and taken by Anderson's method, stand for the equilibrium."""
    model.steps, model.solver = steps, meq.Anderson() if steps > 4 else None
    with torch.no_grad():
        solution = model(features, masks).solution
    assert solution is not None
    hidden = {name: solution.masks[name] for name in solution.masks}
    model.steps, model.solver = 4, None
    return {
        name: x * hidden[name].reshape(*hidden[name].shape, *[1] * (x.ndim - hidden[name].ndim))
        if name in hidden
        else x
        for name, x in solution.state.items()
    }


KINDS = ("attention", "gateless", "zero start", "vectors", "one joint state", "one joint vector")
FAR = 200


def at_rest(model: meq.FusionModel, features: dict[str, Tensor], masks: dict[str, Tensor]) -> meq.Solution:
    """The solution after many steps, without the solver: nobody asks for the derivative through all of these."""
    model.steps, model.solver = FAR, meq.Anderson()
    with torch.no_grad():
        solution = model(features, masks).solution
    model.steps, model.solver = 4, None
    assert solution is not None
    assert max(float(x.nan_to_num(0).max()) for x in solution.final_residual.values()) < 1e-9
    return replace(solution, solver=None)


def central(up: dict[str, Tensor], down: dict[str, Tensor], step: float) -> dict[str, Tensor]:
    return {name: (up[name] - down[name]) / (2 * step) for name in up}


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_of_the_injection_moves_the_equilibrium_as_finite_differences_say(kind: str) -> None:
    model, features, masks = pair_of(kind)
    name = next(name for name, _ in model.operator.named_parameters() if "inject" in name and "image" in name)
    parameter = model.operator.get_parameter(name)
    direction = tangents(parameter.detach())
    step, moved = 1e-5, {}
    for steps in (4, FAR):
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
                sides.append(states(model, features, masks, steps))
                parameter -= sign * step * direction
        moved[steps] = central(*sides, step)
    assert max(float(x.abs().max()) for x in moved[FAR].values()) > 0.1  # it does matter
    settled_there = derive_equilibrium(model.operator, at_rest(model, features, masks), parameters={name: direction})
    close(settled_there.equilibrium, moved[FAR], tol=1e-6)
    assert settled_there.nested is not None
    close(settled_there.nested, moved[FAR], tol=1e-6)
    solution = model(features, masks).solution
    read = derive_equilibrium(model.operator, solution, parameters={name: direction}, nested=False).read
    assert read is not None
    close(read, moved[4], tol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_raw_features_move_the_equilibrium_as_finite_differences_say(kind: str) -> None:
    model, features, masks = pair_of(kind)
    direction = {"image": tangents(features["image"]), "text": tangents(features["text"]) * masks["text"][..., None]}
    step, moved = 1e-5, {}
    for steps in (4, FAR):
        sides = [
            states(model, {name: x + sign * step * direction[name] for name, x in features.items()}, masks, steps)
            for sign in (1, -1)
        ]
        moved[steps] = central(*sides, step)
    found = derive_equilibrium(model.operator, at_rest(model, features, masks), inputs={"features": direction})
    close(found.equilibrium, moved[FAR], tol=1e-6)
    assert found.nested is not None
    close(found.nested, moved[FAR], tol=1e-6)
    solution = model(features, masks).solution
    read = derive_equilibrium(model.operator, solution, inputs={"features": direction}, nested=False).read
    assert read is not None
    close(read, moved[4], tol=1e-6)


def test_both_nodes_of_a_tree_are_derived_by_parameters_of_their_injections_and_by_features() -> None:
    torch.manual_seed(0)
    widths = {"image": 4, "audio": 3, "text": 5}
    tree = meq.EquilibriumTree(widths, 2, 8, order=(("image", "audio"), "text"), heads=2, steps=6, tol=0.0)
    tree = tree.double().eval()
    features = {name: torch.randn(2, 3, width).double() for name, width in widths.items()}
    out = tree(features)
    couplings = {"(image+audio)": tree.branches["(image+audio)"], "root": tree.operator}
    solutions = {**out.branches, "root": out.solution}
    for node, inside, coupling in (("(image+audio)", "image", "branches"), ("root", "text", "coupling")):
        name = f"sides.{inside}.inject.project.weight"
        parameter = couplings[node].get_parameter(name)
        direction, dx = tangents(parameter.detach()), tangents(features[inside])
        by_weight = derive_equilibrium(couplings[node], solutions[node], parameters={name: direction})
        by_feature = derive_equilibrium(couplings[node], solutions[node], inputs={"features": {inside: dx}})
        step, sides = 1e-5, {"weight": [], "feature": []}
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
                sides["weight"].append(_node(tree(features), node))
                parameter -= sign * step * direction
                sides["feature"].append(_node(tree({**features, inside: features[inside] + sign * step * dx}), node))
        assert by_weight.read is not None, coupling
        assert by_feature.read is not None
        close(by_weight.read, central(*sides["weight"], step), tol=1e-6)
        close(by_feature.read, central(*sides["feature"], step), tol=1e-6)
        assert (by_weight.disagreement < 1e-6).all()
    with pytest.raises(ValueError, match=r"inputs\['features'\] has no 'image' to move"):
        derive_equilibrium(tree.operator, out.solution, inputs={"features": {"image": features["image"]}})


def _node(out: meq.Output, node: str) -> dict[str, Tensor]:
    solution = out.solution if node == "root" else out.branches[node]
    assert solution is not None
    return solution.state


def test_injections_that_were_set_by_hand_are_where_the_derivative_is_taken() -> None:
    model, features, _ = pair_of("attention")
    solution = model(features).solution
    other = {name: x.detach() + 0.5 for name, x in solution.inputs["injection"].items()}
    context = model.operator.with_sources(solution.inputs, other)
    moved = meq.solve(model.operator, context, solver=model.damped(), steps=4, tol=0.0)
    direction = tangents(features["image"])
    found = derive_equilibrium(model.operator, moved, inputs={"features": {"image": direction}})
    weight = model.operator.sides["image"].inject.project.weight
    by_hand = derive_equilibrium(
        model.operator, moved, inputs={"injection": {"image": (direction @ weight.T).detach()}}
    )
    close(found.equilibrium, by_hand.equilibrium, tol=1e-9)


class _ReadsOne(meq.Operator):
    """T(z) = z / 2 + x; there is a weight and an input that nothing reads, and a weight that only the start reads."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = torch.nn.Parameter(torch.ones(2).double())
        self.first = torch.nn.Parameter(torch.ones(2).double())

    def start(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"a": self.first * torch.ones_like(inputs["a"])}

    def forward(self, state: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"a": state["a"] / 2 + inputs["a"]}


def test_what_cannot_matter_is_an_error_and_not_a_zero() -> None:
    operator = _ReadsOne()
    inputs = {"a": torch.ones(3, 2).double(), "unread": torch.ones(3, 2).double(), "real": torch.ones(3, 2).bool()}
    solution = meq.solve(operator, inputs, steps=3, tol=0.0)
    direction = torch.ones(2).double()
    with pytest.raises(ValueError, match="the parameter 'idle' cannot matter here"):
        derive_equilibrium(operator, solution, parameters={"idle": direction})
    with pytest.raises(ValueError, match=r"inputs\['unread'\] cannot matter here"):
        derive_equilibrium(operator, solution, inputs={"unread": inputs["unread"]})
    with pytest.raises(ValueError, match=r"inputs\['real'\] is torch.bool, which has no direction"):
        derive_equilibrium(operator, solution, inputs={"real": inputs["a"]})
    found = derive_equilibrium(operator, solution, parameters={"first": direction})
    assert float(found.equilibrium["a"].abs().max()) == 0  # where it starts does not move where it ends,
    assert found.read is not None
    assert float(found.read["a"].abs().min()) > 0.1  # but it moves what is read on the way
    model, features, _ = pair_of("gateless")
    for name in ("head.0.weight", "sides.image.gate.read_proposal.weight"):
        with pytest.raises(ValueError, match="the operator has no parameter"):
            derive_equilibrium(model.operator, model(features).solution, parameters={name: direction})


def test_a_stand_in_that_stands_in_for_nothing_cannot_matter() -> None:
    model = meq.FeatureSum(WIDTHS_OF_SUM, 2, 4, heads=2).double().eval()
    features = {name: torch.randn(2, 3, width).double() for name, width in WIDTHS_OF_SUM.items()}
    solution = model(features).solution
    assert solution is not None
    name = next(name for name, _ in model.operator.named_parameters() if name.startswith("stand_ins"))
    tangent = {name: torch.ones_like(dict(model.operator.named_parameters())[name])}
    with pytest.raises(ValueError, match="cannot matter here"):
        derive_equilibrium(model.operator, solution.detach(), parameters=tangent)


WIDTHS_OF_SUM = {"image": 3, "text": 4}
