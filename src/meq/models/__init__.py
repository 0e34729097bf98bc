"""Fusion models: the mutual equilibrium and what it is compared with."""

from meq.models.anytime import Anytime
from meq.models.base import FusionModel, Output
from meq.models.baselines import Concat, CrossAttention, LowRankFusion, SelfAttention
from meq.models.equilibrium import MutualEquilibrium
from meq.models.joint import FeatureSum, SingleState, SingleVector
from meq.models.quantise import quantise
from meq.models.sides import Parts
from meq.models.tree import EquilibriumTree

__all__ = [
    "Anytime",
    "Concat",
    "CrossAttention",
    "EquilibriumTree",
    "FeatureSum",
    "FusionModel",
    "LowRankFusion",
    "MutualEquilibrium",
    "Output",
    "Parts",
    "SelfAttention",
    "SingleState",
    "SingleVector",
    "quantise",
]
