"""Fusion models: the mutual equilibrium and what it is compared with."""

from meq.models.base import FusionModel, Output
from meq.models.equilibrium import MutualEquilibrium
from meq.models.sides import Parts

__all__ = ["FusionModel", "MutualEquilibrium", "Output", "Parts"]
