"""Mutual equilibrium: modalities whose states update each other until they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy
from meq.version import __version__

if TYPE_CHECKING:
    from meq.analysis import diagnose, spectral_radius
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
    from meq.models import (
        Anytime,
        Concat,
        CrossAttention,
        EquilibriumTree,
        FeatureSum,
        FusionModel,
        LowRankFusion,
        MutualEquilibrium,
        Output,
        Parts,
        SelfAttention,
        SingleState,
        SingleVector,
        quantise,
    )
    from meq.objectives import CrossFloor, JacobianRange, Objective, ResidualCorrection
    from meq.runs.audit import audit
    from meq.runs.compare import compare
    from meq.runs.front import load, train
    from meq.runs.run import Run
    from meq.runs.tune import tune
    from meq.training.loop import fit
else:
    make_lazy(__name__)

__all__ = [
    "Adjoint",
    "Anderson",
    "Anytime",
    "Backward",
    "Broyden",
    "Checkpointed",
    "Concat",
    "CrossAttention",
    "CrossFloor",
    "Damped",
    "EquilibriumTree",
    "FeatureSum",
    "FusionModel",
    "Implicit",
    "JacobianRange",
    "LowRankFusion",
    "MutualEquilibrium",
    "Objective",
    "Operator",
    "Output",
    "Parts",
    "Phantom",
    "ResidualCorrection",
    "Run",
    "SelfAttention",
    "SingleState",
    "SingleVector",
    "Solution",
    "Solver",
    "State",
    "Stop",
    "Unrolled",
    "__version__",
    "audit",
    "compare",
    "diagnose",
    "fit",
    "load",
    "quantise",
    "solve",
    "spectral_radius",
    "train",
    "tune",
]
