"""Instruments: (operator or model, solution) in, a frozen result out that prints itself as a short table."""

from meq.analysis.attribution import Attribution, attribute
from meq.analysis.collapse import Verdict
from meq.analysis.conditions import Conditions, check_conditions
from meq.analysis.derivative import EquilibriumDerivative, derive_equilibrium
from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.analysis.grounding import Grounding, score_grounding
from meq.analysis.influence import Influence, measure_influence
from meq.analysis.jacobian import BlockNorms, dense_jacobian, measure_blocks
from meq.analysis.maps import paint, spell
from meq.analysis.sensitivity import Sensitivity, measure_sensitivity
from meq.analysis.spectrum import Spectrum, leading_eigenvalue, spectral_radius
from meq.analysis.trajectory import Trajectory, follow

__all__ = [
    "Attribution",
    "BlockNorms",
    "Conditions",
    "Diagnosis",
    "EquilibriumDerivative",
    "Grounding",
    "Influence",
    "Sensitivity",
    "Spectrum",
    "Trajectory",
    "Verdict",
    "attribute",
    "check_conditions",
    "dense_jacobian",
    "derive_equilibrium",
    "diagnose",
    "follow",
    "leading_eigenvalue",
    "measure_blocks",
    "measure_influence",
    "measure_sensitivity",
    "paint",
    "score_grounding",
    "spectral_radius",
    "spell",
]
