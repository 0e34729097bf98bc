"""What is true of every solve, on problems that nobody has chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import meq
from meq import Stop

pytestmark = pytest.mark.fuzz
NAMES = ("a", "b", "c")
SOLVERS = (meq.Damped(step=0.5), meq.Damped(step=1.0), meq.Anderson(), meq.Anderson(history=1), meq.Broyden(history=4))
BACKWARDS = (meq.Unrolled(), meq.Checkpointed(), meq.Phantom(2), meq.Implicit())


class Coupled(meq.Operator):
    """z_m <- tanh(mean of the real tokens of all, through W_m) + own tokens through V_m + x_m: any number of states."""

    def __init__(self, widths: dict[str, int], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(rows: int, columns: int) -> torch.nn.Parameter:
            weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            return torch.nn.Parameter(0.4 * weight / columns**0.5)

        total = sum(widths.values())
        self.mix = torch.nn.ParameterDict({f"w_{name}": drawn(width, total) for name, width in widths.items()})
        self.own = torch.nn.ParameterDict({f"v_{name}": drawn(width, width) for name, width in widths.items()})

    def start(self, inputs: Any) -> meq.State:
        return dict(inputs["x"])

    def forward(self, state: meq.State, inputs: Any) -> meq.State:
        masks = inputs["masks"]
        means = torch.cat([_mean(z, masks.get(name)) for name, z in state.items()], dim=-1)
        return {name: self._next(name, z, means, inputs["x"][name]) for name, z in state.items()}

    def _next(self, name: str, z: Tensor, means: Tensor, x: Tensor) -> Tensor:
        mixed = torch.tanh(means @ self.mix[f"w_{name}"].T)
        return (mixed if z.ndim == 2 else mixed[:, None]) + z @ self.own[f"v_{name}"].T + x


def _mean(z: Tensor, mask: Tensor | None) -> Tensor:
    if z.ndim == 2:
        return z
    mask = torch.ones(z.shape[:2], dtype=torch.bool) if mask is None else mask
    total = z.masked_fill(~mask[..., None], 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Case:
    operator: Coupled
    x: dict[str, Tensor]
    masks: dict[str, Tensor]

    def solve(self, **options: Any) -> meq.Solution:
        return meq.solve(self.operator, {"x": self.x, "masks": self.masks}, masks=self.masks, **options)

    def rows(self, rows: Tensor) -> Case:
        return Case(self.operator, *({name: x[rows] for name, x in part.items()} for part in (self.x, self.masks)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = NAMES[: draw(st.integers(1, 3))]
    batch, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10**6))
    widths = {name: draw(st.integers(1, 4)) for name in names}
    tokens = {name: draw(st.integers(0, 4)) for name in names}  # 0: a vector
    generator = torch.Generator().manual_seed(seed)
    x, masks = {}, {}
    for name in names:
        shape = (batch, tokens[name], widths[name]) if tokens[name] else (batch, widths[name])
        x[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
        if tokens[name] and draw(st.booleans()):
            masks[name] = (
                torch.rand(batch, tokens[name], generator=generator) < 0.7
            )  # a sample may have no token at all
    return Case(Coupled(widths, seed), x, masks)


solvers, budgets = st.sampled_from(SOLVERS), st.integers(1, 12)
tolerances = st.sampled_from([0.0, 1e-3, 1e-8])


def real(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.masked_fill(~mask[..., None], 0)


@given(case=cases(), solver=solvers, steps=budgets, tol=tolerances)
def test_a_sample_is_solved_as_if_it_were_alone(case: Case, solver: meq.Solver, steps: int, tol: float) -> None:
    together = case.solve(solver=solver, steps=steps, tol=tol)
    for row in range(len(together.steps)):
        alone = case.rows(torch.tensor([row])).solve(solver=solver, steps=steps, tol=tol)
        assert alone.stop == [together.stop[row]]
        for name, z in alone.state.items():
            mask = alone.masks.get(name)
            torch.testing.assert_close(
                real(together.state[name][row : row + 1], mask), real(z, mask), rtol=1e-8, atol=1e-8
            )


@given(case=cases(), solver=solvers, steps=budgets, tol=tolerances, seed=st.integers(0, 99))
def test_the_order_of_samples_does_not_matter(
    case: Case, solver: meq.Solver, steps: int, tol: float, seed: int
) -> None:
    batch = len(next(iter(case.x.values())))
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    plain, shuffled = (each.solve(solver=solver, steps=steps, tol=tol) for each in (case, case.rows(order)))
    assert torch.equal(shuffled.steps, plain.steps[order])
    for name, z in plain.state.items():
        torch.testing.assert_close(shuffled.state[name], z[order], rtol=1e-8, atol=1e-8)


@given(case=cases(), solver=solvers, steps=budgets, tol=tolerances, filler=st.sampled_from([0.0, 7.0, 1e30]))
def test_padding_changes_nothing(case: Case, solver: meq.Solver, steps: int, tol: float, filler: float) -> None:
    x, masks = dict(case.x), dict(case.masks)
    for name, tokens in case.x.items():
        if tokens.ndim == 3:
            known = masks.get(name, torch.ones(tokens.shape[:2], dtype=torch.bool))
            x[name] = torch.cat([tokens, tokens.new_full((len(tokens), 2, tokens.shape[2]), filler)], dim=1)
            masks[name] = torch.cat([known, torch.zeros(len(tokens), 2, dtype=torch.bool)], dim=1)
    plain = case.solve(solver=solver, steps=steps, tol=tol)
    padded = Case(case.operator, x, masks).solve(solver=solver, steps=steps, tol=tol)
    assert padded.stop == plain.stop
    for name, z in plain.state.items():
        found, mask = padded.state[name], case.masks.get(name)
        found = found[:, : z.shape[1]] if z.ndim == 3 else found
        torch.testing.assert_close(real(found, mask), real(z, mask), rtol=1e-8, atol=1e-8)


@given(case=cases(), solver=solvers, seed=st.integers(0, 99))
def test_the_order_of_tokens_does_not_matter_to_a_map_that_does_not_know_it(
    case: Case, solver: meq.Solver, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    orders = {name: torch.randperm(x.shape[1], generator=generator) for name, x in case.x.items() if x.ndim == 3}
    x = {name: x[:, orders[name]] if name in orders else x for name, x in case.x.items()}
    masks = {name: mask[:, orders[name]] for name, mask in case.masks.items()}
    plain = case.solve(solver=solver, steps=6, tol=0.0)
    shuffled = Case(case.operator, x, masks).solve(solver=solver, steps=6, tol=0.0)
    for name, z in plain.state.items():
        z = z[:, orders[name]] if name in orders else z
        mask = masks.get(name)
        torch.testing.assert_close(real(shuffled.state[name], mask), real(z, mask), rtol=1e-7, atol=1e-7)


@given(case=cases(), solver=solvers, steps=budgets, tol=tolerances)
def test_what_a_solution_says_of_itself_is_true(case: Case, solver: meq.Solver, steps: int, tol: float) -> None:
    solution = case.solve(solver=solver, steps=steps, tol=tol)
    final = torch.stack([rows.nan_to_num(0.0) for rows in solution.final_residual.values()]).amax(0)
    for row, (stop, taken) in enumerate(zip(solution.stop, solution.steps.tolist(), strict=True)):
        assert stop in (Stop.SETTLED, Stop.BUDGET)
        assert taken == steps if stop is Stop.BUDGET else taken < steps
        if stop is Stop.SETTLED:
            assert tol > 0
            assert final[row] <= tol * (1 + 1e-6) + 1e-12
    for name, rows in solution.residuals.items():
        assert rows.shape == (steps, len(solution.steps))
        there = torch.ones(len(solution.steps), dtype=torch.bool)
        if name in case.masks:
            there = case.masks[name].any(1)
        assert rows[0].isnan().eq(~there).all(), "NaN marks what is absent, and nothing else at the first step"


@given(case=cases(), solver=solvers, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_dtypes_differ_by_their_rounding_alone(case: Case, solver: meq.Solver, dtype: torch.dtype) -> None:
    with torch.no_grad():
        exact = case.solve(solver=meq.Damped(), steps=60, tol=1e-9)
        low = Case(case.operator.to(dtype), {name: x.to(dtype) for name, x in case.x.items()}, case.masks)
        found = low.solve(solver=solver, steps=60, tol=10 * torch.finfo(dtype).eps)
    assert all(z.dtype == dtype for z in found.state.values())
    if all(stop is Stop.SETTLED for stop in (*exact.stop, *found.stop)):
        scale = max(1.0, *(float(z.abs().max()) for z in exact.state.values()))
        for name, z in exact.state.items():
            mask = case.masks.get(name)
            gap = (real(found.state[name].double(), mask) - real(z, mask)).abs().max()
            assert float(gap) <= 300 * torch.finfo(dtype).eps * scale


class Scaled(meq.Operator):
    """T(z) = c S(z / c): the same problem at another magnitude."""

    def __init__(self, inner: Coupled, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def start(self, inputs: Any) -> meq.State:
        return {name: self.factor * z for name, z in self.inner.start(inputs).items()}

    def forward(self, state: meq.State, inputs: Any) -> meq.State:
        image = self.inner({name: z / self.factor for name, z in state.items()}, inputs)
        return {name: self.factor * z for name, z in image.items()}


@given(case=cases(), solver=solvers, exponent=st.integers(-95, 95), tol=st.sampled_from([0.0, 1e-3]))
def test_the_magnitude_of_a_problem_changes_its_scale_and_nothing_else(
    case: Case, solver: meq.Solver, exponent: int, tol: float
) -> None:
    low = Case(case.operator.float(), {name: x.float() for name, x in case.x.items()}, case.masks)
    inputs, factor = {"x": low.x, "masks": low.masks}, 2.0**exponent
    options: dict[str, Any] = {"solver": solver, "steps": 6, "tol": tol, "masks": low.masks}
    plain = meq.solve(low.operator, inputs, **options)
    other = meq.solve(Scaled(low.operator, factor), inputs, **options)
    for name, z in plain.state.items():
        mask = low.masks.get(name)
        torch.testing.assert_close(real(other.state[name] / factor, mask), real(z, mask), rtol=2e-3, atol=2e-3)


@given(case=cases(), solver=solvers, backward=st.sampled_from(BACKWARDS), lost=st.integers(0, 3))
def test_a_sample_that_diverges_takes_nobody_with_it(
    case: Case, solver: meq.Solver, backward: meq.Backward, lost: int
) -> None:
    batch = len(next(iter(case.x.values())))
    lost %= batch
    spoilt = {name: x.clone() for name, x in case.x.items()}
    for name, x in spoilt.items():
        x[lost] = torch.inf
        if name in case.masks:
            case.masks[name][lost] = True
    leaves = {name: x.requires_grad_() for name, x in spoilt.items()}
    solution = Case(case.operator, leaves, case.masks).solve(solver=solver, steps=5, tol=0.0, backward=backward)
    assert solution.stop[lost] is Stop.DIVERGED
    others = torch.tensor([row for row in range(batch) if row != lost], dtype=torch.long)
    if not len(others):
        return
    alone = case.rows(others).solve(solver=solver, steps=5, tol=0.0)
    for name, z in alone.state.items():
        mask = alone.masks.get(name)
        torch.testing.assert_close(real(solution.state[name][others], mask), real(z, mask), rtol=1e-8, atol=1e-8)
    total = sum(real(z, case.masks.get(name))[others].square().sum() for name, z in solution.state.items())
    assert isinstance(total, Tensor)
    if total.requires_grad:
        total.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in case.operator.parameters())
