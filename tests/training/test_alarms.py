from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from training.small import PENALTIES, small_config, small_data, small_model, train_small

from meq.data import collate
from meq.data.contract import Batch
from meq.objectives import Evaluation, Objective, ResidualCorrection
from meq.objectives.penalties import PenaltyValues
from meq.training import Vitals, fit
from meq.training.alarms import raised, take_vitals
from meq.training.record import RunRecord

HEALTHY: dict[str, Any] = {
    "epoch": 0,
    "jacobian_norm": 0.85,
    "residual": 0.05,
    "gate": {"image": 0.5, "text": 0.4},
    "cross_self": {"image": 0.2, "text": 0.3},
    "spread": 0.6,
    "radius": 0.9,
    "diverged": 0,
    "samples": 8,
}


def kinds(*changes: dict[str, Any]) -> list[str]:
    return [alarm.kind for alarm in raised([Vitals(**{**HEALTHY, **change}) for change in changes])]


def test_healthy_vitals_raise_nothing() -> None:
    assert kinds({}) == []
    assert kinds({}, {"residual": 0.08}) == []
    assert kinds({"jacobian_norm": 1.0}) == [], "|J| = 1 alone is no collapse"
    assert kinds({"gate": {"image": 1e-7, "text": 1e-7}}) == [], "nor are closed gates alone"


def test_each_kind_is_recognised_by_its_evidence() -> None:
    collapsed = {
        "gate": {"image": 1e-7, "text": 2e-7},
        "jacobian_norm": 1.0,
        "cross_self": {"image": 0.0, "text": 1e-7},
    }
    assert kinds(collapsed) == ["identity collapse"]
    assert kinds({"spread": 1e-5}) == ["fixed-point collapse"]
    assert kinds({}, {"residual": 2.0}) == ["divergence"]
    assert kinds({"diverged": 3}) == ["divergence"]
    assert kinds({"residual": 2.0}, {"residual": 1.9}) == [], "large but not growing"
    assert kinds({"residual": 1e-3}, {"residual": 5e-2}) == [], "growing, but still where healthy models are read"


def test_an_alarm_carries_its_evidence_and_the_advice() -> None:
    collapsed = {"gate": {"image": 1e-7}, "jacobian_norm": 1.0, "cross_self": {"image": 1e-9}}
    (alarm,) = raised([Vitals(**{**HEALTHY, **collapsed})])
    assert alarm.evidence["gate"] == {"image": 1e-7}
    assert "lambda_f" in alarm.message
    assert "floor" in alarm.message


def run(folder: Path, model: torch.nn.Module, **options: Any) -> RunRecord:
    config = small_config(epochs=1, learning_rate=1e-6, **options)
    objective = Objective(penalties=PENALTIES)
    return fit(model, small_data(train=16, complete=True), objective, folder, config, console=Console(quiet=True))


def closed_gates(logit: float = -16.0) -> torch.nn.Module:
    model = small_model()
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.gate.read_proposal.weight.zero_()
            side.project.weight[-8:] = 0
            side.project.bias[-8:] = logit
    return model


def deaf_to_input() -> torch.nn.Module:
    model = small_model()
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.inject.project.weight.zero_()
    return model


def exploding() -> torch.nn.Module:
    model = small_model(gate=False, steps=12)
    with torch.no_grad():
        for side in model.coupling.sides.values():
            side.settle.weight.fill_(1e30)  # the state leaves float32 within a few steps
            side.norm.weight.fill_(1e20)
    return model


def test_a_run_with_closed_gates_raises_identity_collapse_and_records_it(tmp_path: Path) -> None:
    record = run(tmp_path, closed_gates())
    assert [alarm["kind"] for alarm in record.alarms] == ["identity collapse"]
    assert record.status == "finished", "training goes on unless asked to stop"
    assert record.alarms[0]["evidence"]["jacobian_norm"] == pytest.approx(1, abs=1e-3)


def test_a_run_whose_states_ignore_the_input_raises_fixed_point_collapse(tmp_path: Path) -> None:
    record = run(tmp_path, deaf_to_input())
    assert "fixed-point collapse" in [alarm["kind"] for alarm in record.alarms]


def test_a_run_can_be_asked_to_stop_at_an_alarm(tmp_path: Path) -> None:
    record = run(tmp_path, closed_gates(), stop_on_alarm=True)
    assert record.status == "stopped by an alarm"


class Unsettling(ResidualCorrection):
    """The residual penalty turned round: training drives the states away from their fixed point."""

    def measure(self, evaluation: Evaluation) -> PenaltyValues:
        measured = super().measure(evaluation)
        return replace(measured, per_sample=-measured.per_sample)


def test_a_run_whose_residual_grows_raises_divergence(tmp_path: Path) -> None:
    model = closed_gates(logit=-8.0)
    config = small_config(epochs=4, learning_rate=0.02, decay="constant")
    objective = Objective(penalties=(Unsettling(weight=30.0),))
    record = fit(model, small_data(complete=True), objective, tmp_path, config, console=Console(quiet=True))
    residuals = [vitals["residual"] for vitals in record.vitals]
    assert residuals[-1] > 10 * residuals[0]
    assert "divergence" in [alarm["kind"] for alarm in record.alarms]


def test_a_model_whose_iteration_explodes_raises_divergence() -> None:
    data = small_data()
    batch = collate([example for example in data.splits["dev"] if "text" in example.content], data.widths)
    vitals = take_vitals(exploding(), batch, 0, radius_samples=2)
    assert vitals is not None
    assert vitals.diverged > 0
    assert math.isnan(vitals.radius)
    assert "divergence" in [alarm.kind for alarm in raised([vitals])]


def test_a_healthy_run_raises_none(tmp_path: Path) -> None:
    record = train_small(tmp_path)
    assert record.alarms == ()
    assert len(record.vitals) == 2
    vitals = record.vitals[-1]
    assert 0 < vitals["gate"]["image"] < 1
    assert vitals["cross_self"]["text"] > 0
    assert vitals["radius"] > 0


def test_a_model_that_does_not_iterate_has_no_vitals() -> None:
    import meq

    data = small_data()
    model = meq.Concat(data.widths, 2, dim=8, head_width=8)
    assert take_vitals(model, collate(data.splits["dev"][:4], data.widths), 0, radius_samples=1) is None


def test_vitals_of_multiple_choice_count_every_choice_as_a_row() -> None:
    model = small_model(head="choices", dropout=0.0).eval()
    generator = torch.Generator().manual_seed(0)
    features = {
        name: torch.randn(*((3, 4) if place else (3,)), 2, width, generator=generator)
        for place, (name, width) in enumerate(model.widths.items())
    }
    batch = Batch(ids=["a", "b", "c"], features=features, masks={}, target=torch.zeros(3).long())
    vitals = take_vitals(model, batch, 0, radius_samples=2)
    assert vitals is not None
    assert (vitals.diverged, vitals.samples) == (0, 12)
    assert math.isfinite(vitals.radius)
    assert raised([vitals]) == []
