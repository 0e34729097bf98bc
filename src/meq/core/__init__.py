"""The engine: State, Operator, Solver, Backward, Solution, and solve()."""

from meq.core.backward import Backward, Checkpointed, Implicit, Phantom, Unrolled
from meq.core.operator import Operator
from meq.core.registry import BACKWARDS, SOLVERS, register_backward, register_solver
from meq.core.solution import Adjoint, Solution, Stop
from meq.core.solve import solve
from meq.core.solvers import Anderson, Broyden, Damped, Solver
from meq.core.state import State

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
    "register_backward",
    "register_solver",
    "solve",
]
