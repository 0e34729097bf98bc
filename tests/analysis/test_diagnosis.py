"""Constructed cases of every verdict are recognised, and a healthy model is not accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import meq
from meq.analysis import Verdict
from meq.analysis.diagnosis import Diagnosis

FEATURES = {"image": 8, "text": 6}


def make(**options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    return meq.MutualEquilibrium(FEATURES, 3, 16, heads=2, **{"steps": 10, **options}).eval()


def batch(size: int = 3) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    features = {
        "image": torch.randn(size, 5, 8, generator=generator),
        "text": torch.randn(size, 4, 6, generator=generator),
    }
    lengths = torch.tensor([4, 2, 3, 4, 1])[:size]
    return features, {"text": torch.arange(4).expand(size, 4) < lengths[:, None]}


def diagnosis(model: meq.FusionModel, **options: Any) -> Diagnosis:
    features, masks = batch()
    with torch.no_grad():
        return meq.diagnose(model, model(features, masks), **{"samples": 2, **options})


@torch.no_grad()
def close_gates(model: meq.MutualEquilibrium) -> None:
    for side in model.coupling.sides.values():
        assert side.project is not None
        dim = side.gate.read_proposal.in_features
        side.project.bias[-dim:] = -16  # the gate is the last slot of the fused projection


@torch.no_grad()
def silence(model: meq.MutualEquilibrium, name: str) -> None:
    """Nothing of this modality reaches the others or the answer."""
    for other, side in model.coupling.sides.items():
        if other != name:
            side.cross_output.weight.zero_()
    place = list(FEATURES).index(name)
    model.head[0].weight[:, place * 16 : (place + 1) * 16] = 0


@pytest.mark.parametrize("options", [{}, {"gate": False}, {"mixer": "mlp"}, {"damping": "learned"}, {"classes": None}])
def test_a_fresh_model_is_not_accused(options: dict[str, Any]) -> None:
    classes = options.pop("classes", 3)
    torch.manual_seed(0)
    model = meq.MutualEquilibrium(FEATURES, classes, 16, heads=2, steps=10, **options).eval()
    found = diagnosis(model)
    assert found.verdict is Verdict.UNMEASURED, found.evidence
    assert found.findings["learned"].answer == found.findings["counts"].answer == "not measured"
    assert found.findings["settles"].holds
    assert found.findings["coupled"].holds
    assert bool(found.answer) == (classes is not None)


def test_closed_gates_are_an_identity_collapse_although_the_residual_is_tiny() -> None:
    model = make()
    close_gates(model)
    found = diagnosis(model)
    assert found.verdict is Verdict.IDENTITY
    assert (found.residual < 1e-5).all()
    assert "the widest gate is open by" in found.evidence
    assert (found.statistic - 1).abs().max() < 1e-3


def test_states_that_no_input_reaches_are_a_fixed_point_collapse() -> None:
    model = make()
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.inject.project.weight.zero_()
    found = diagnosis(model)
    assert found.verdict is Verdict.FIXED_POINT
    assert found.spread < 1e-3


def test_a_map_that_hardly_uses_its_input_is_a_fixed_point_collapse_for_a_single_sample_too() -> None:
    model = make()
    with torch.no_grad():
        for side in model.coupling.sides.values():  # the proposal's bias drowns the injection
            side.own_feed[-1].bias.normal_(std=1e6) if hasattr(side.own_feed, "__getitem__") else None
            side.own_output.bias.normal_(std=1e6)
            side.cross_output.bias.normal_(std=1e6)
    features, masks = batch(1)
    with torch.no_grad():
        found = meq.diagnose(model, model(features, masks))
    assert found.verdict is Verdict.FIXED_POINT, found.evidence
    assert "no input moves any equilibrium" in found.evidence


def test_a_map_that_grows_is_expansive() -> None:
    model = make(gate=False)
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.settle.weight *= 30
            side.own_output.weight *= 30
    found = diagnosis(model, bound=100)
    assert found.verdict is Verdict.EXPANSIVE, str(found)
    assert found.findings["settles"].holds is False
    assert float(found.damped_radius.median()) > 1


def test_samples_that_diverge_are_expansive_and_the_others_are_measured() -> None:
    model = make()
    features, masks = batch()
    features["image"][1] *= 1e30
    with torch.no_grad():
        out = model(features, masks)
    found = meq.diagnose(model, out)
    assert found.verdict is Verdict.EXPANSIVE
    assert found.diverged == 1
    assert len(found.radius) == 2


@pytest.mark.parametrize("name", ["image", "text"])
def test_a_modality_that_reaches_nothing_is_ignored_and_named(name: str) -> None:
    model = make()
    silence(model, name)
    found = diagnosis(model)
    assert found.verdict is Verdict.IGNORED, found.evidence
    assert found.evidence.startswith(name)


def test_states_that_do_not_speak_are_noticed_even_if_the_head_reads_both() -> None:
    found = diagnosis(make(cross=False))
    assert found.verdict is Verdict.UNCOUPLED
    assert "no update listens to another modality" in found.evidence
    assert (found.influence["image"]["text"] == 0).all()


def test_an_absent_modality_is_not_an_ignored_one() -> None:
    model = make()
    features, masks = batch()
    del features["text"], masks["text"]
    with torch.no_grad():
        found = meq.diagnose(model, model(features))
    assert found.verdict is Verdict.UNMEASURED, found.evidence
    assert found.findings["coupled"].holds is None


def test_the_predicted_steps_are_about_those_that_it_takes() -> None:
    """Within a factor of two: the prediction takes the slowest part's pace for all of the residual."""
    model = make(steps=30, tol=1e-3).double()
    features, masks = batch()
    features = {name: x.double() for name, x in features.items()}
    with torch.no_grad():
        found = meq.diagnose(model, model(features, masks))
        model.steps = 3000
        needed = model(features, masks).solution.steps - 30
    ratio = found.further_steps / needed
    assert ((ratio > 0.5) & (ratio < 2)).all(), ratio


def test_a_map_that_moves_away_from_where_it_is_read_and_settles_elsewhere_is_not_expansive() -> None:
    model = make(gate=False)
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.settle.weight *= 30
            side.own_output.weight *= 30
    found = diagnosis(model)
    assert float(found.damped_radius.median()) > 1.001
    assert found.findings["settles"].holds
    assert found.verdict is not Verdict.EXPANSIVE


def test_the_page_has_everything_one_would_paste() -> None:
    page = str(diagnosis(make()))
    wanted = (
        "verdict: no fault found, but not all was measured",
        "has it learned anything? not measured",
        "spectral radius",
        "|J|",
        "residual",
        "further steps",
        "cross/self, image",
    )
    for words in (*wanted, "mean gate, text", "answer moved by text", "equilibrium of / input of", "[", "products"):
        assert words in page
    assert max(map(len, page.splitlines())) <= 120


def test_dropout_and_models_without_an_equilibrium_are_refused() -> None:
    features, masks = batch()
    model = make(dropout=0.1).train()
    with pytest.raises(ValueError, match=r"call model\.eval\(\)"):
        meq.diagnose(model, model(features, masks))
    concat = meq.Concat(FEATURES, 3, 16)
    with pytest.raises(ValueError, match="Concat does not iterate"):
        meq.diagnose(concat, concat(features, masks))


def test_the_branches_of_a_tree_can_be_looked_at() -> None:
    torch.manual_seed(0)
    widths = {"image": 4, "audio": 3, "text": 5}
    tree = meq.EquilibriumTree(widths, 2, 16, order=(("image", "audio"), "text"), heads=2, steps=6).eval()
    with torch.no_grad():
        out = tree({name: torch.randn(2, 3, width) for name, width in widths.items()})
    assert set(meq.diagnose(tree, out).influence) == {"(image+audio)", "text"}
    inner = meq.diagnose(tree, out, branch="(image+audio)")
    assert set(inner.influence) == {"image", "audio"}
    assert inner.answer == {}
    with pytest.raises(ValueError, match="there is no branch 'audio'"):
        meq.diagnose(tree, out, branch="audio")


def test_a_joint_state_and_other_solvers_can_be_diagnosed() -> None:
    features, masks = batch()
    torch.manual_seed(0)
    joint = meq.SingleState(FEATURES, 3, 16, heads=2, steps=6).eval()
    model = make()
    model.solver = meq.Anderson()
    with torch.no_grad():
        assert meq.diagnose(joint, joint(features, masks)).verdict is Verdict.UNMEASURED
        found = meq.diagnose(model, model(features, masks))
    assert found.damped_radius.isnan().all()
    assert found.verdict is Verdict.UNMEASURED
