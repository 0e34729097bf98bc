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
from meq.models import FusionModel, MutualEquilibrium, Output, Parts
from meq.version import __version__

__all__ = [
    "Adjoint",
    "Anderson",
    "Backward",
    "Broyden",
    "Checkpointed",
    "Damped",
    "FusionModel",
    "Implicit",
    "MutualEquilibrium",
    "Operator",
    "Output",
    "Parts",
    "Phantom",
    "Solution",
    "Solver",
    "State",
    "Stop",
    "Unrolled",
    "__version__",
    "solve",
    "spectral_radius",
]
