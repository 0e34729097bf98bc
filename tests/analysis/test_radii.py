from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from problems import PROBLEMS, CoupledAttention, attention_inputs, contraction, known
from torch import Tensor

import meq
from meq.analysis import leading_eigenvalue
from meq.analysis import radii as module
from meq.analysis.products import Derivative
from meq.analysis.radii import radii


def solved(operator: meq.Operator, inputs: dict[str, Tensor], **options: Any) -> meq.Solution:
    return meq.solve(operator, inputs, **{"steps": 3, "tol": 0.0, **options})


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_radii_of_all_samples_are_the_largest_eigenvalue(name: str) -> None:
    problem = PROBLEMS[name]()
    found = radii(problem.operator, solved(problem.operator, problem.inputs), tol=1e-9)
    torch.testing.assert_close(found, torch.full((3,), problem.operator.radius, dtype=torch.float64))


def test_many_samples_cost_as_many_walks_as_the_hardest_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.diag(torch.linspace(0.95, 0.1, 200, dtype=torch.float64))
    problem, made = known(matrix, {"a": (100,), "b": (100,)}, batch=5), []
    monkeypatch.setattr(Derivative, "push", None)  # one side alone is looked at
    jacobian = module.jacobian
    monkeypatch.setattr(module, "jacobian", lambda *a, **k: made.append(jacobian(*a, **k)) or made[-1])
    found = radii(problem.operator, solved(problem.operator, problem.inputs))
    torch.testing.assert_close(found, torch.full((5,), 0.95, dtype=torch.float64), rtol=0.02, atol=0)
    assert made[0].products < 60
    assert made[0].products % module.EVERY == 0


def test_padding_does_not_change_the_radius() -> None:
    operator, bare = CoupledAttention(), attention_inputs()
    bare = {name: bare[name] for name in ("x", "y")}
    padded = {name: torch.cat([x, torch.full_like(x[:, :2], 7.0)], dim=1) for name, x in bare.items()}
    masks = {name: torch.arange(x.shape[1] + 2).expand(len(x), -1) < x.shape[1] for name, x in bare.items()}
    padded |= {f"{name}_mask": mask for name, mask in masks.items()}
    expected = radii(operator, solved(operator, bare, steps=50))
    torch.testing.assert_close(radii(operator, solved(operator, padded, steps=50, masks=masks)), expected)
    exact = meq.spectral_radius(operator, solved(operator, bare, steps=50))
    torch.testing.assert_close(expected, exact, rtol=0.02, atol=0)


def test_a_sample_that_stays_open_gets_what_the_careful_way_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 4)
    problem = contraction()
    found = radii(problem.operator, solved(problem.operator, problem.inputs), tol=1e-6)
    torch.testing.assert_close(found, torch.full((3,), problem.operator.radius, dtype=torch.float64))


@pytest.mark.parametrize("slope", [0.2, 2.0])
def test_a_map_far_from_normal_is_looked_at_carefully(slope: float) -> None:
    """Each of its spaces holds an eigenvalue with next to no residual that the map does not have."""
    matrix = torch.linspace(0.5, 0.1, 30, dtype=torch.float64).diag()
    problem = known(matrix + slope * torch.ones(29, dtype=torch.float64).diag(1), {"a": (30,)}, batch=1)
    solution = solved(problem.operator, problem.inputs)
    careful = leading_eigenvalue(problem.operator, solution, norms=False).radius
    torch.testing.assert_close(radii(problem.operator, solution), careful)


def test_a_map_that_ignores_its_state_has_the_radius_zero_and_one_without_tokens_none() -> None:
    problem = known(torch.zeros(8, 8, dtype=torch.float64), {"a": (4,), "b": (4,)})
    assert radii(problem.operator, solved(problem.operator, problem.inputs)).tolist() == [0.0] * 3
    problem = contraction()
    there = torch.tensor([True, False, True])
    masks = {name: there[:, None].expand(3, x.shape[1]) for name, x in problem.inputs.items()}
    found = radii(problem.operator, solved(problem.operator, problem.inputs, masks=masks), tol=1e-9)
    assert math.isnan(found[1])
    torch.testing.assert_close(found[[0, 2]], torch.full((2,), problem.operator.radius, dtype=torch.float64))
