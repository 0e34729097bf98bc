"""The peak of live tensor bytes inside a block, counted by storage."""

from __future__ import annotations

from meq.studies.cost import PeakBytes

__all__ = ["PeakBytes"]
