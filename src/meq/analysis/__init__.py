"""Instruments: (operator or model, solution) in, a frozen result out that prints itself as a short table."""

from meq.analysis.attribution import Attribution, attribute
from meq.analysis.audit import audit_model
from meq.analysis.audit_findings import Audit
from meq.analysis.derivative import EquilibriumDerivative, derive_equilibrium
from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.analysis.influence import Influence, measure_influence
from meq.analysis.jacobian import BlockNorms, Conditions, check_conditions, dense_jacobian, measure_blocks
from meq.analysis.maps import Grounding, paint, score_grounding, spell
from meq.analysis.sensitivity import Sensitivity, measure_sensitivity
from meq.analysis.spectrum import Spectrum, leading_eigenvalue, spectral_radius
from meq.analysis.trajectory import Trajectory, follow
from meq.analysis.verdict import Verdict

__all__ = [
    "Attribution",
    "Audit",
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
    "audit_model",
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
