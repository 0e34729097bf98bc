"""Instruments: (operator, solution) in, numbers out."""

from meq.analysis.spectrum import spectral_radius

__all__ = ["spectral_radius"]
