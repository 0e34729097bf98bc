"""Sensitivity: how far the equilibrium moves when the inputs do, as a bound, as a derivative, and as measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.analysis.influence import SolvedProbes
from meq.analysis.jacobian import Blocks, pull_probes, random_signs, sizes_by_block
from meq.analysis.products import Inverse, LinearMap, Matrix, find_sources, one_sample, reachable_tolerance
from meq.analysis.tables import column, join_samples, middle, number, spread, square_table, text_table
from meq.core.operator import RestartedOperator
from meq.core.solution import Solution, Stop
from meq.core.solve import solve
from meq.core.solvers import Anderson
from meq.core.state import State
from meq.options import checked_options

NORM_TOLERANCE = 1e-2
"""Relative: asked of the operator norms."""


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
    found = []
    for row in range(len(solution.steps)):
        one = one_sample(solution, row)
        sample = _Sample(operator, one, Matrix.of(operator, one).formed(exact=exact), tol, seed)
        sample.drive = sample.drive.formed(exact=exact)
        found.append(sample.measure(directions, size, probes, steps, exact=exact))
    return join_samples(found)


@checked_options
def input_responses(
    operator: Any, solution: Solution, matrices: Sequence[Matrix], solved: Sequence[SolvedProbes]
) -> Blocks:
    """The `inputs` table of `Sensitivity` alone, from solves that are at hand: v_a^T (I - J)^-1 dT/du."""
    found = []
    for row, (matrix, each) in enumerate(zip(matrices, solved, strict=True)):
        one = one_sample(solution, row)
        drive = Matrix.of_sources(operator, one, find_sources(operator, one))
        pulled = {a: [drive.pull(x) for x in rows] for a, rows in each.pulled.items()}
        found.append(sizes_by_block(pulled, matrix.rows, drive.columns))
    return join_samples(found)


class _Sample:
    """One sample: J and dT/du as matrices known by their products, and the equilibrium as a function of u."""

    def __init__(self, operator: Any, sample: Solution, matrix: Matrix, tol: float, seed: int) -> None:
        self.operator, self.sample, self.tol = operator, sample, tol
        self.sources = find_sources(operator, sample)
        self.jacobian, self.drive = matrix, Matrix.of_sources(operator, sample, self.sources)
        self.inverse = Inverse(self.jacobian, tol=tol)
        self.random = np.random.default_rng(seed)

    @property
    def response(self) -> LinearMap:
        """(I - J)^-1 dT/du"""
        return self.inverse.after(self.drive)

    def measure(self, directions: int, size: float, probes: int, steps: int, *, exact: bool) -> Sensitivity:
        derivative, worst = self.response.most_stretched(tol=NORM_TOLERANCE, exact=exact)
        inverse, drive = (each.norm(tol=NORM_TOLERANCE, exact=exact) for each in (self.inverse, self.drive))
        rest, settled = self._settle(self.sources.values, steps)
        step = size * (np.linalg.norm(self.drive.columns.flat(self.sources.values)) or 1.0)
        drawn = [self.random.standard_normal(len(worst)) for _ in range(directions)]
        shifts = [worst, *(v / np.linalg.norm(v) for v in drawn)]
        measured = [self._measured(step * shift, rest, steps) for shift in shifts]
        names = [name for name in self.sources.values if name in self.sample.state]
        random = float(np.mean([value for value, _ in measured[1:]])) if directions else math.nan
        return Sensitivity(
            bound=column([inverse * drive]),
            derivative=column([derivative]),
            worst=column([measured[0][0]]),
            random=column([random]),
            settled=torch.tensor([settled and all(found for _, found in measured)]),
            self_sides={name: self._sides(name, exact=exact) for name in names},
            inputs=self.inputs(probes),
            residual=column([self.inverse.residual]),
        )

    def inputs(self, probes: int) -> Blocks:
        """|dz_a/du_b|_F / sqrt(n_a) by Hutchinson."""
        entries = self.jacobian.rows
        signs = random_signs(entries, probes, self.random)
        return sizes_by_block(pull_probes(self.response, entries, signs), entries, self.drive.columns)

    def _sides(self, name: str, *, exact: bool) -> tuple[Tensor, Tensor]:
        """|dz_a/du_a| and |total influence of a| |dF_a/du_a|."""
        mine, own = self.jacobian.rows.own(name), self.drive.columns.own(name)
        if len(mine) == 0 or len(own) == 0:
            return column([math.nan]), column([math.nan])
        blocks = self.response.block(mine, own), self.inverse.block(mine, mine), self.drive.block(mine, own)
        left, influence, drive = (each.norm(tol=NORM_TOLERANCE, exact=exact) for each in blocks)
        return column([left]), column([influence * drive])

    def _measured(self, shift: np.ndarray, rest: State, steps: int) -> tuple[float, bool]:
        """|z*(u + du) - z*(u)| / |du|, both settled."""
        values = self.sources.values
        moved = {name: x + values[name] for name, x in self.drive.columns.state(shift).items()}
        there, settled = self._settle(moved, steps)
        entries = self.jacobian.rows
        return float(np.linalg.norm(entries.flat(there) - entries.flat(rest)) / np.linalg.norm(shift)), settled

    def _settle(self, values: State, steps: int) -> tuple[State, bool]:
        """The equilibrium for other inputs, from the state that was read."""
        with torch.no_grad():
            found = solve(
                RestartedOperator(self.operator, self.sample.state),
                self.sources.rebuild(values),
                solver=Anderson(),
                steps=steps,
                tol=10 * self.tol,
                masks=dict(self.sample.masks),
            )
        return found.state, found.stop == [Stop.SETTLED]
