"""Samples that are done leave the batch where no gradient is taken: fewer rows are computed, nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import meq
from meq.core.iteration import AtSteps
from meq.core.solution import Stop
from meq.core.solvers import Solver

DEPTHS = (1, 9, 2, 9, 4, 9, 3, 1)
SOLVERS = (meq.Damped(0.5), meq.Anderson(), meq.Broyden())


class Counted(meq.Operator):
    """Contracts to its input, and counts the rows that it is called with."""

    def __init__(self, leaves: bool) -> None:
        super().__init__()
        self.rows_leave, self.calls = leaves, []  # type: ignore[var-annotated]

    def start(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}

    def forward(self, state: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        a, b = state.values()
        self.calls.append(len(a))
        return {"a": 0.4 * torch.tanh(b) + inputs["a"], "b": 0.5 * torch.tanh(a) + inputs["b"]}


def solved(leaves: bool, solver: Solver, **options: Any) -> tuple[meq.Solution, list[int]]:
    torch.manual_seed(0)
    inputs = {"a": torch.randn(8, 3, 4).double(), "b": torch.randn(8, 3, 4).double()}
    inputs["a"] *= torch.logspace(-3, 1, 8).double()[:, None, None]
    operator = Counted(leaves)
    masks = {"a": torch.ones(8, 3, dtype=torch.bool).index_fill(0, torch.tensor([2]), False)}
    with torch.no_grad():
        found = meq.solve(operator, inputs, solver=solver, masks=masks, steps=9, **options)
    return found, operator.calls


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("options", [{"tol": 3e-2}, {"tol": 0.0, "stop_when": "planned"}], ids=["tol", "planned"])
def test_only_rows_that_are_needed_are_computed_and_everything_found_is_the_same(
    solver: Solver, options: dict[str, Any]
) -> None:
    def asked() -> dict[str, Any]:
        planned = {"stop_when": AtSteps(torch.tensor(DEPTHS))} if "stop_when" in options else {}
        return {**options, **planned}

    whole, all_rows = solved(False, solver, **asked())
    fewer, rows = solved(True, solver, **asked())
    assert set(all_rows) == {8}
    assert rows[0] == 8
    assert rows == sorted(rows, reverse=True)
    assert sum(rows) < sum(all_rows)
    if "stop_when" in options:  # one more call, in which a sample that has stopped leaves, at most
        assert sum(rows) <= sum(DEPTHS) + 8
    for name in whole.state:
        assert torch.equal(fewer.state[name], whole.state[name])
        assert torch.allclose(fewer.residuals[name], whole.residuals[name], atol=1e-12, equal_nan=True)
    assert torch.equal(fewer.steps, whole.steps)
    assert fewer.stop == whole.stop


def test_a_sample_that_diverges_leaves_like_any_other() -> None:
    class Growing(Counted):
        def forward(self, state: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            self.calls.append(len(state["a"]))
            return {"a": state["a"] * inputs["a"], "b": 0.5 * state["b"]}

    inputs = {"a": torch.tensor([[1e300], [0.5], [0.5], [0.5]]).double(), "b": torch.ones(4, 1).double()}

    class Started(Growing):
        def start(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"a": torch.full((4, 1), 1e10).double(), "b": inputs["b"]}

    found = []
    for leaves in (False, True):
        operator = Started(leaves)
        with torch.no_grad():
            found.append(meq.solve(operator, inputs, solver=meq.Damped(1.0), steps=6, tol=0.0))
    assert [each.stop for each in found] == [[Stop.DIVERGED, *[Stop.BUDGET] * 3]] * 2
    assert operator.calls[-1] == 3
    assert torch.equal(found[0].state["a"], found[1].state["a"])


@pytest.mark.parametrize("trajectory", ["all", lambda k, state: None])
def test_nobody_leaves_while_all_are_looked_at(trajectory: Any) -> None:
    rule = AtSteps(torch.tensor(DEPTHS))
    assert set(solved(True, meq.Damped(0.5), tol=0.0, stop_when=rule, trajectory=trajectory)[1]) == {8}


@pytest.mark.parametrize(
    "rule", [meq.Anytime("residual", 0.2), meq.Anytime("change", 1e-4), meq.Anytime("confidence", 0.42)]
)
def test_a_model_that_is_read_early_computes_fewer_rows_and_answers_the_same(rule: meq.Anytime) -> None:
    torch.manual_seed(1)
    model = meq.MutualEquilibrium({"image": 6, "text": 5}, 3, 16, heads=2, steps=12, tol=0.0).eval()
    features = {"image": torch.randn(24, 4, 6), "text": torch.randn(24, 7, 5)}
    features = {name: x * torch.logspace(-1, 1, 24)[:, None, None] for name, x in features.items()}
    masks = {"text": torch.rand(24, 7) < 0.8}
    masks["text"][:, 0] = True
    model.anytime = rule
    outputs, rows = [], []
    for leaves in (False, True):
        model.coupling.rows_leave = leaves
        counted: list[int] = []
        hook = model.coupling.register_forward_hook(
            lambda _, given, made, to=counted: to.append(len(given[0]["image"]))
        )
        with torch.no_grad():
            outputs.append(model(features, masks))
        hook.remove()
        rows.append(sum(counted))
    whole, fewer = (output.solution for output in outputs)
    assert whole is not None
    assert fewer is not None
    assert len(set(whole.steps.tolist())) > 1, "they stop at different steps"
    assert rows[1] < rows[0], "and those that have stopped are computed no more"
    assert torch.equal(whole.steps, fewer.steps)
    assert torch.allclose(outputs[0].logits, outputs[1].logits, atol=1e-6)


def test_a_solver_of_ones_own_keeps_its_samples_together() -> None:
    """What it remembers may be anything, and is not cut."""

    class Counting(Solver):
        def advance(self, state: Any, move: Any, memory: Any, masks: Any) -> tuple[Any, Any]:
            count = 0 if memory is None else memory["count"] + 1
            return {name: z + 0.5 * move[name] for name, z in state.items()}, {"count": count, "last": torch.ones(1)}

    found, rows = solved(True, Counting(), tol=0.0, stop_when=AtSteps(torch.tensor(DEPTHS)))
    assert set(rows) == {8}
    assert found.steps.tolist() == list(DEPTHS)


def test_samples_that_are_read_at_the_start_leave_it_as_it_is() -> None:
    """The start may be a tensor of the inputs, as an injection is: what the others come to is not written into it."""

    class Injected(Counted):
        def start(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(inputs)

    inputs = {"a": torch.randn(8, 3, 4).double(), "b": torch.randn(8, 3, 4).double()}
    before = {name: x.clone() for name, x in inputs.items()}
    with torch.no_grad():
        rule = AtSteps(torch.tensor([0, 0, 0, 4, 4, 2, 0, 1]))
        found = meq.solve(Injected(True), inputs, solver=meq.Damped(0.5), steps=4, tol=0.0, stop_when=rule)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)
    assert torch.equal(found.state["a"][0], before["a"][0])
    assert not torch.equal(found.state["a"][3], before["a"][3])


def test_a_solver_may_hand_on_the_state_it_was_given_and_the_start_stays_as_it_is() -> None:
    class Waiting(meq.Damped):
        """Takes no step at first: what it proposes is the start itself."""

        def advance(self, state: Any, move: Any, memory: Any, masks: Any) -> tuple[Any, Any]:
            return (state if memory is None else super().advance(state, move, None, masks)[0]), [move["a"]]

    class Injected(Counted):
        def start(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(inputs)

    inputs = {"a": torch.randn(8, 3, 4).double(), "b": torch.randn(8, 3, 4).double()}
    before = {name: x.clone() for name, x in inputs.items()}
    with torch.no_grad():
        rule = AtSteps(torch.tensor([1, 1, 1, 4, 4, 2, 1, 1]))
        found = meq.solve(Injected(True), inputs, solver=Waiting(0.5), steps=4, tol=0.0, stop_when=rule)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)
    assert not torch.equal(found.state["a"][3], before["a"][3])
