"""Mutual equilibrium: modalities whose states update each other until they agree."""

from meq.analysis import spectral_radius
from meq.core import (
    Adjoint,
    Anderson,
    Backward,
    Broyden,
    Checkpointed,
    Damped,
    Implicit,
    Operator,
    Phantom,
    Solution,
    Solver,
    State,
    Stop,
    Unrolled,
    solve,
)

__version__ = "0.1.0"

__all__ = [
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
    "solve",
    "spectral_radius",
]
