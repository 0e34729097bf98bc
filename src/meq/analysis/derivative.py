"""Lemma 1: how the equilibrium moves with a parameter or an input, and how the state that was read does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from meq.analysis.products import Entries, Inverse, Matrix, one_sample, reachable_tolerance, solve_linear
from meq.analysis.tables import column, join_samples, spread, text_table
from meq.core.operator import Inputs, Operator, evaluate
from meq.core.solution import Solution
from meq.core.solve import solve
from meq.core.state import State, take_rows
from meq.options import checked_options, nearest


@dataclass(frozen=True, eq=False, kw_only=True)
class EquilibriumDerivative:
    """dz/d(.) along one direction, at the equilibrium in two forms and at the read state.

    The two forms take the read state for the equilibrium: `solution.final_residual` says how far it is from one.
    """

    equilibrium: State
    """(I - J)^-1 dT/d(.), solved at once."""
    nested: State | None
    """The paper's closed form, modality by modality: with R all the others,
    dz_a = (I - J_aa - J_aR (I - J_RR)^-1 J_Ra)^-1 (dT_a + J_aR (I - J_RR)^-1 dT_R)."""
    read: State | None
    """The derivative of the state that was read, through the steps that led to it. It is not a root, so this is what
    training by backpropagation sees."""
    residual: Float[Tensor, " B"]
    """|b - (I - J) x| / |b| of the one-shot solve."""
    nested_residual: Float[Tensor, " B"]
    disagreement: Float[Tensor, " B"]
    """|equilibrium - nested| / |equilibrium|"""
    read_distance: Float[Tensor, " B"]
    """|equilibrium - read| / |equilibrium|: what backpropagation through the steps misses of the equilibrium."""
    products: int

    def __str__(self) -> str:
        rows = [
            ["one-shot solve, residual", spread(self.residual)],
            ["nested solves, residual", spread(self.nested_residual)],
            ["one-shot against nested", spread(self.disagreement)],
            ["read state against equilibrium", spread(self.read_distance)],
        ]
        return text_table(["derivative of the equilibrium", f"{self.products} products"], rows)


@checked_options
def derive_equilibrium(
    operator: Any,
    solution: Solution,
    *,
    inputs: Inputs | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    nested: bool = True,
    tol: float | None = None,
    budget: int = 1000,
) -> EquilibriumDerivative:
    """The derivative along a direction: tangents of some of the operator's inputs, of some of its parameters, or both.

    `inputs` has the layout of the solution's inputs, as far as it goes: parts that are left out, or None, stand still.
    In a model these are, among others, the features x, `{"features": {"image": dx}}`, and what f makes of them,
    `{"injection": {"image": df}}`. `parameters` maps names of the operator's parameters to tangents, those of f among
    them; what neither T nor its start depends on is an error. `tol` and `budget` are those of GMRES; unless given, the
    tolerance is what the dtype allows.
    """
    tol = reachable_tolerance(solution.state) if tol is None else tol
    direction = _Direction(operator, solution, inputs, parameters or {})
    direction.check(solution)
    return join_samples(
        [_derive(operator, solution, row, direction, nested, tol, budget) for row in range(len(solution.steps))]
    )


def nested_solve(matrix: Matrix, b: np.ndarray, *, tol: float, budget: int) -> tuple[np.ndarray, float]:
    """(I - J)^-1 b by the closed form of Lemma 1, one modality after the other, and the largest residual on the way."""
    x, worst = np.zeros_like(b), 0.0
    for name in matrix.rows.places:
        own, rest = matrix.rows.own(name), matrix.rows.others(name)
        if len(own):
            x[own], residual = _eliminated(matrix, b, own, rest, tol=tol, budget=budget)
            worst = max(worst, residual)
    return x, worst


def _eliminated(
    matrix: Matrix, b: np.ndarray, own: np.ndarray, rest: np.ndarray, *, tol: float, budget: int
) -> tuple[np.ndarray, float]:
    """(I - J_aa - J_aR (I - J_RR)^-1 J_Ra)^-1 (b_a + J_aR (I - J_RR)^-1 b_R)"""
    inner = Inverse(matrix, within=rest, tol=tol / 10, budget=budget)
    through = matrix.block(own, rest).after(inner)
    own_own, rest_own = matrix.block(own, own), matrix.block(rest, own)
    x, residual = solve_linear(
        lambda v: v - own_own.push(v) - through.push(rest_own.push(v)),
        b[own] + through.push(b[rest]),
        tol=tol,
        budget=budget,
    )
    return x, max(residual, inner.residual)


class _Direction:
    """Tangents of inputs and parameters, and the operator with both moved along them by a step s."""

    def __init__(self, operator: Any, solution: Solution, inputs: Any, parameters: Mapping[str, Tensor]) -> None:
        known = dict(operator.named_parameters()) if isinstance(operator, nn.Module) else {}
        for name, tangent in parameters.items():
            if name not in known:
                raise ValueError(f"the operator has no parameter {name!r}: {nearest(name, known)}")
            if tangent.shape != known[name].shape:
                expected = tuple(known[name].shape)
                raise ValueError(f"the tangent of {name!r} has shape {tuple(tangent.shape)}, expected {expected}")
        if inputs is None and not parameters:
            raise ValueError("a derivative needs a direction: give tangents of some inputs or of some parameters")
        self.operator, self.inputs = operator, _complete(inputs, solution.inputs, "inputs")
        self.parameters, self.known = dict(parameters), known

    def moved(self, rows: Tensor, step: Tensor, inputs: Inputs) -> tuple[Any, Inputs]:
        """The operator and one sample's inputs at the point p + s d."""
        values, layout = pytree.tree_flatten(inputs)
        tangents = layout.flatten_up_to(take_rows(self.inputs, rows))
        pairs = zip(values, tangents, strict=True)
        moved = layout.unflatten([x if d is None else x.detach() + step * d for x, d in pairs])
        return self._at(moved, {name: self.known[name].detach() + step * d for name, d in self.parameters.items()})

    def check(self, solution: Solution) -> None:
        """What moves must be read by T or its start, for some sample, or its derivative would be a zero that says
        nothing."""
        values, layout = pytree.tree_flatten_with_path(solution.inputs)
        tangents = layout.flatten_up_to(self.inputs)
        leaves = [x if d is None else x.detach().requires_grad_() for (_, x), d in zip(values, tangents, strict=True)]
        named = {
            f"inputs{pytree.keystr(path)}": leaf
            for (path, _), leaf, d in zip(values, leaves, tangents, strict=True)
            if d is not None
        }
        weights = {name: self.known[name].detach().requires_grad_() for name in self.parameters}
        named |= {f"the parameter {name!r}": weight for name, weight in weights.items()}
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            operator, inputs = self._at(layout.unflatten(leaves), weights)
            reached = [*evaluate(operator, solution.state, inputs).values(), *operator.start(inputs).values()]
            # drawn weights: a plain sum over normalised entries is constant, whatever moves them
            drawn = torch.Generator().manual_seed(0)
            total = torch.stack([(x * torch.randn(x.shape, generator=drawn).to(x)).sum() for x in reached]).sum()
        unread = list(named)
        if total.requires_grad:
            found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
            unread = [name for name, x in zip(named, found, strict=True) if x is None or not bool(x.any())]
        if unread:
            raise ValueError(
                f"{unread[0]} cannot matter here: neither T nor its start depends on it, so there is nothing to derive"
            )

    def _at(self, inputs: Inputs, weights: dict[str, Tensor]) -> tuple[Any, Inputs]:
        """The operator with these weights, and its inputs with what f makes of them by these weights."""
        operator: Any = _OperatorAt(self.operator, weights) if weights else self.operator
        if self._moves_injections:
            anew = (operator.call("injected_anew", inputs) if weights else operator.injected_anew(inputs))["injection"]
            # from the old ones, which may have been set by hand, along the path of those that f makes anew
            moved = {name: x + (anew[name] - anew[name].detach()) for name, x in inputs["injection"].items()}
            inputs = {**inputs, "injection": moved}
        return operator, inputs

    @property
    def _moves_injections(self) -> bool:
        """Does the operator make injections of features, and does any of these move, or a parameter?"""
        if not hasattr(self.operator, "injected_anew"):
            return False
        return bool(self.parameters) or any(x is not None for x in pytree.tree_leaves(self.inputs["features"]))


class _OperatorAt(Operator):
    """An operator with some of its parameters replaced."""

    def __init__(self, operator: Any, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.methods, self.weights = _Methods(operator), {f"of.{name}": x for name, x in weights.items()}

    def call(self, method: str, *args: Any) -> Any:
        return torch.func.functional_call(self.methods, self.weights, (method, *args))

    def start(self, inputs: Inputs) -> State:
        return self.call("start", inputs)

    def forward(self, state: State, inputs: Inputs) -> State:
        return self.call("__call__", state, inputs)


class _Methods(nn.Module):
    """The methods of an operator behind one forward, which is what functional_call can call."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of

    def forward(self, method: str, *args: Any) -> Any:
        return getattr(self.of, method)(*args)


def _derive(
    operator: Any, solution: Solution, row: int, direction: _Direction, nested: bool, tol: float, budget: int
) -> EquilibriumDerivative:
    """The derivative of one sample."""
    sample = one_sample(solution, row)
    rows = torch.tensor([row], device=solution.steps.device)
    matrix = Matrix.of(operator, sample)
    if nested:  # solves within solves: hundreds of products, which a stored matrix has for nothing
        matrix = matrix.formed(exact=False)

    def image(step: Tensor) -> State:
        moved, inputs = direction.moved(rows, step, sample.inputs)
        return evaluate(moved, sample.state, inputs)

    b = matrix.rows.flat(_along(image, sample.state))
    solved, residual = solve_linear(lambda v: v - matrix.push(v), b, tol=tol, budget=budget)
    equilibrium, closed_form, worst = matrix.rows.state(solved), None, math.nan
    if nested:
        x, worst = nested_solve(matrix, b, tol=tol, budget=budget)
        closed_form = matrix.rows.state(x)
    read = _read_derivative(direction, rows, sample, matrix.rows)
    return EquilibriumDerivative(
        equilibrium=equilibrium,
        nested=closed_form,
        read=read,
        residual=column([residual]),
        nested_residual=column([worst]),
        disagreement=column([_distance(equilibrium, closed_form)]),
        read_distance=column([_distance(equilibrium, read)]),
        products=matrix.products,
    )


def _read_derivative(direction: _Direction, rows: Tensor, sample: Solution, entries: Entries) -> State | None:
    """d z(k) / d(.) by unrolling the steps that this sample took."""
    if sample.solver is None:
        return None
    steps = int(sample.steps[0])

    def path(step: Tensor) -> State:
        operator, inputs = direction.moved(rows, step, sample.inputs)
        if steps == 0:
            return operator.start(inputs)
        return solve(operator, inputs, solver=sample.solver, steps=steps, tol=0.0, masks=dict(sample.masks)).state

    return entries.state(entries.flat(_along(path, sample.state)))


def _along(path: Callable[[Tensor], State], like: State) -> State:
    """d path(s) / ds at s = 0, by two walks backwards: u -> u^T dpath, which is linear in u."""
    some = next(iter(like.values()))
    step = torch.zeros((), dtype=some.dtype, device=some.device)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        _, found = torch.autograd.functional.jvp(
            lambda s: tuple(path(s)[name] for name in like), step, torch.ones_like(step)
        )
    return dict(zip(like, found, strict=True))


def _complete(tangents: Any, inputs: Any, place: str) -> Any:
    """Tangents in the layout of the inputs, None where nothing moves."""
    if isinstance(inputs, dict):
        given = tangents if tangents is not None else {}
        if not isinstance(given, dict):
            raise TypeError(f"the tangents of {place} must be a dictionary like it, got {type(given).__name__}")
        for name in given:
            if name not in inputs:
                raise ValueError(f"{place} has no {name!r} to move: {nearest(str(name), map(str, inputs))}")
        return {name: _complete(given.get(name), x, f"{place}[{name!r}]") for name, x in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        given = tangents if tangents is not None else [None] * len(inputs)
        if len(given) != len(inputs):
            raise ValueError(f"{place} has {len(inputs)} parts, the tangents have {len(given)}")
        return type(inputs)(
            _complete(t, x, f"{place}[{k}]") for k, (t, x) in enumerate(zip(given, inputs, strict=True))
        )
    if tangents is not None and (not isinstance(inputs, Tensor) or tangents.shape != inputs.shape):
        found = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"the tangent of {place} has shape {tuple(tangents.shape)}, but {place} is {found}")
    if tangents is not None and not inputs.is_floating_point():
        raise ValueError(f"{place} is {inputs.dtype}, which has no direction to move in")
    return tangents


def _distance(exact: State, other: State | None) -> float:
    if other is None:
        return float("nan")
    gap = sum(float((exact[name] - other[name]).double().square().sum()) for name in exact) ** 0.5
    size = sum(float(x.double().square().sum()) for x in exact.values()) ** 0.5
    return gap / size if size else 0.0 if gap == 0 else float("inf")
