"""The engine: State, Operator, Solver, Backward, Solution, and solve()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.core.backward import Backward, Checkpointed, Implicit, Phantom, Unrolled
    from meq.core.operator import Operator, held_still
    from meq.core.registry import BACKWARDS, SOLVERS, register_backward, register_solver
    from meq.core.solution import Adjoint, Solution, Stop
    from meq.core.solve import solve
    from meq.core.solvers import Anderson, Broyden, Damped, Solver
    from meq.core.state import State
else:
    make_lazy(__name__)

__all__ = [
    "BACKWARDS",
    "SOLVERS",
    "Adjoint",
    "Anderson",
    "Backward",
    "Broyden",
    "Checkpointed",
    "Damped",
    "Implicit",
    "Operator",
    "Phantom",
    "Solution",
    "Solver",
    "State",
    "Stop",
    "Unrolled",
    "held_still",
    "register_backward",
    "register_solver",
    "solve",
]
