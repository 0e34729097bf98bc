"""Sensitivity: how far the equilibrium moves when the inputs do, as a bound, as a derivative, and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.analysis.differential import one_sample
from meq.analysis.jacobian import Blocks, mean_size
from meq.analysis.linear import Inverse, Matrix, largest_singular_value, placed, reachable_tolerance
from meq.analysis.sources import Sources, find_sources
from meq.analysis.tables import middle, number, spread, square_table, stacked, text_table
from meq.core.operator import Inputs, Operator
from meq.core.options import checked_options
from meq.core.solution import Solution, Stop
from meq.core.solve import solve
from meq.core.solvers import Anderson
from meq.core.state import State


@dataclass(frozen=True, eq=False, kw_only=True)
class Sensitivity:
    """|dz| / |du| per sample, u what the modalities bring in: the inputs, or the injections f(x) of a model.

    Bound and derivative are taken at the state that was read, the measured values at the equilibrium near it: they
    agree as far as the two do.
    """

    bound: Float[Tensor, " B"]
    """|(I - J)^-1| |dT/du|, the paper's bound; operator norms."""
    derivative: Float[Tensor, " B"]
    """|(I - J)^-1 dT/du|: the worst case itself, which the bound is to cover."""
    worst: Float[Tensor, " B"]
    """Measured: the equilibrium solved again after a small step along the worst direction."""
    random: Float[Tensor, " B"]
    """Measured, the mean over random directions."""
    settled: Bool[Tensor, " B"]
    """Did all the solves that were measured reach the tolerance? If not, the measured values are not to be trusted."""
    self_sides: dict[str, tuple[Float[Tensor, " B"], Float[Tensor, " B"]]]
    """Both sides of |dz_a/du_a| <= |total influence of a| |dF_a/du_a|, per modality that brings something in."""
    inputs: Blocks
    """inputs[a][b] = |dz_a/du_b|_F / sqrt(n_a): how far b's input moves a's equilibrium."""
    residual: Float[Tensor, " B"]
    """The largest relative residual of the linear solves."""

    def __str__(self) -> str:
        rows = [
            ["bound |(I-J)^-1| |dT/du|", spread(self.bound)],
            ["derivative |(I-J)^-1 dT/du|", spread(self.derivative)],
            ["measured, worst direction", spread(self.worst)],
            ["measured, random directions", spread(self.random)],
        ]
        sides = [[name, number(middle(left)), number(middle(right))] for name, (left, right) in self.self_sides.items()]
        unsettled = int((~self.settled).sum())
        closing = f"linear solves left a residual of {number(float(self.residual.max()))} at most"
        if unsettled:
            closing += f"; {unsettled} samples did not settle when solved again, so their measured values are rough"
        return "\n".join(
            [
                text_table(["|dz| / |du|", "median [min, max]"], rows),
                square_table("equilibrium of / input of", self.inputs),
                text_table(["self bound", "|dz_a/du_a|", "at most"], sides),
                closing,
            ]
        )


@checked_options
def measure_sensitivity(
    operator: Any,
    solution: Solution,
    *,
    directions: int = 4,
    size: float = 1e-3,
    probes: int = 4,
    seed: int = 0,
    steps: int = 500,
    exact: bool = False,
    tol: float | None = None,
) -> Sensitivity:
    """The bound, the derivative it bounds, and the response to perturbations of `size` relative to the input.

    Operator norms come from products with the linear maps, or exactly from their matrices with `exact`. `tol` is the
    residual asked of every linear solve, `steps` the budget for settling again after a perturbation.
    """
    tol = reachable_tolerance(solution.state) if tol is None else tol
    rows = [
        _Sample.alone(operator, one_sample(solution, row), tol, seed, exact=exact).measure(
            directions, size, probes, steps
        )
        for row in range(len(solution.steps))
    ]
    sources = rows[0]["sides"]
    return Sensitivity(
        **{name: _column(rows, name) for name in ("bound", "derivative", "worst", "random", "residual")},
        settled=torch.tensor([row["settled"] for row in rows]),
        self_sides={name: (_pick(rows, name, 0), _pick(rows, name, 1)) for name in sources},
        inputs=stacked([row["inputs"] for row in rows]),
    )


@checked_options
def input_responses(
    operator: Any, solution: Solution, matrices: Sequence[Matrix], *, probes: int, seed: int, tol: float
) -> tuple[Blocks, Float[Tensor, " B"]]:
    """The `inputs` table of `Sensitivity` alone, with Jacobians that are at hand, and the residual of its solves."""
    samples = [_Sample(operator, one_sample(solution, row), matrix, tol, seed) for row, matrix in enumerate(matrices)]
    table = stacked([sample.inputs(probes) for sample in samples])
    return table, torch.tensor([sample.inverse.residual for sample in samples], dtype=torch.float64)


class _Sample:
    """One sample: J and dT/du as matrices known by their products, and the equilibrium as a function of u."""

    def __init__(self, operator: Any, sample: Solution, matrix: Matrix, tol: float, seed: int) -> None:
        self.operator, self.sample, self.tol = operator, sample, tol
        self.sources: Sources = find_sources(operator, sample)
        self.jacobian, self.drive = matrix, Matrix.of_sources(operator, sample, self.sources)
        self.inverse = Inverse(self.jacobian, tol=tol)
        self.random, self.exact = np.random.default_rng(seed), False

    @classmethod
    def alone(cls, operator: Any, sample: Solution, tol: float, seed: int, *, exact: bool) -> _Sample:
        """With a Jacobian of its own, and both matrices stored where that pays."""
        matrix = Matrix.of(operator, sample)
        made = cls(operator, sample, matrix.formed() if exact else matrix.formed_if_small(), tol, seed)
        made.drive = made.drive.formed() if exact else made.drive.formed_if_small()
        made.exact = exact
        return made

    def measure(self, directions: int, size: float, probes: int, steps: int) -> dict[str, Any]:
        derivative, worst = self._norm(self.response, self.response_transposed, self.drive.columns.size)
        inverse, _ = self._norm(self.inverse.push, self.inverse.pull, self.jacobian.rows.size)
        drive, _ = self._norm(self.drive.push, self.drive.pull, self.drive.columns.size)
        rest, settled = self._settle(self.sources.values, steps)
        step = size * (np.linalg.norm(self.drive.columns.flat(self.sources.values)) or 1.0)
        shifts = [worst, *(_unit(self.random.standard_normal(len(worst))) for _ in range(directions))]
        measured = [self._measured(step * shift, rest, steps) for shift in shifts]
        return {
            "bound": inverse * drive,
            "derivative": derivative,
            "worst": measured[0][0],
            "random": float(np.mean([value for value, _ in measured[1:]])) if directions else float("nan"),
            "settled": settled and all(found for _, found in measured),
            "sides": {name: self._sides(name) for name in self.sources.values if name in self.sample.state},
            "inputs": self.inputs(probes),
            "residual": self.inverse.residual,
        }

    def response(self, du: np.ndarray) -> np.ndarray:
        """(I - J)^-1 dT/du du"""
        return self.inverse.push(self.drive.push(du))

    def response_transposed(self, v: np.ndarray) -> np.ndarray:
        return self.drive.pull(self.inverse.pull(v))

    def _sides(self, name: str) -> tuple[float, float]:
        """|dz_a/du_a| and |total influence of a| |dF_a/du_a|."""
        mine, own = self.jacobian.rows.own(name), self.drive.columns.own(name)
        if len(mine) == 0 or len(own) == 0:
            return float("nan"), float("nan")
        blocks = [
            (self.response, self.response_transposed, self.drive.columns.size, own),
            (self.inverse.push, self.inverse.pull, self.jacobian.rows.size, mine),
            (self.drive.push, self.drive.pull, self.drive.columns.size, own),
        ]
        left, influence, drive = (self._block_norm(push, pull, size, at, mine) for push, pull, size, at in blocks)
        return left, influence * drive

    def _block_norm(self, push: Any, pull: Any, size: int, columns: np.ndarray, rows: np.ndarray) -> float:
        count = self.jacobian.rows.size

        def pushed(v: np.ndarray) -> np.ndarray:
            return push(placed(v, columns, size))[rows]

        def pulled(u: np.ndarray) -> np.ndarray:
            return pull(placed(u, rows, count))[columns]

        return self._norm(pushed, pulled, len(columns))[0]

    def inputs(self, probes: int) -> dict[str, dict[str, float]]:
        """|dz_a/du_b|_F / sqrt(n_a) by Hutchinson."""
        entries, columns = self.jacobian.rows, self.drive.columns
        table = {}
        for a in entries.places:
            signs = self.random.choice([-1.0, 1.0], (probes, entries.count(a)))
            rows = [self.response_transposed(placed(v, entries.own(a), entries.size)) for v in signs]
            table[a] = {
                b: mean_size([row[columns.places[b]] for row in rows], entries.count(a)) for b in columns.places
            }
        return table

    def _measured(self, shift: np.ndarray, rest: State, steps: int) -> tuple[float, bool]:
        """|z*(u + du) - z*(u)| / |du|, both settled."""
        values = self.sources.values
        moved = {name: x + values[name] for name, x in self.drive.columns.state(shift).items()}
        there, settled = self._settle(moved, steps)
        entries = self.jacobian.rows
        return float(np.linalg.norm(entries.flat(there) - entries.flat(rest)) / np.linalg.norm(shift)), settled

    def _settle(self, values: State, steps: int) -> tuple[State, bool]:
        """The equilibrium for other inputs, from the state that was read."""
        start = self.sample.state
        with torch.no_grad():
            found = solve(
                From(self.operator, start),
                self.sources.rebuild(values),
                solver=Anderson(),
                steps=steps,
                tol=10 * self.tol,
                masks=dict(self.sample.masks),
            )
        return found.state, found.stop == [Stop.SETTLED]

    def _norm(self, push: Any, pull: Any, size: int) -> tuple[float, np.ndarray]:
        return largest_singular_value(push, pull, size, tol=1e-2, exact=self.exact)


class From(Operator):
    """The operator, starting from a given state."""

    def __init__(self, operator: Any, state: State) -> None:
        super().__init__()
        self.operator, self.state = operator, state

    def start(self, inputs: Inputs) -> State:
        return dict(self.state)

    def forward(self, state: State, inputs: Inputs) -> State:
        return self.operator(state, inputs)


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


def _column(rows: list[dict[str, Any]], name: str) -> Float[Tensor, " B"]:
    return torch.tensor([row[name] for row in rows], dtype=torch.float64)


def _pick(rows: list[dict[str, Any]], name: str, side: int) -> Float[Tensor, " B"]:
    return torch.tensor([row["sides"][name][side] for row in rows], dtype=torch.float64)
