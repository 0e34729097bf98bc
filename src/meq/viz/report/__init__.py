"""A report that one can send: one HTML file, from what lies on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.viz.figures import is_study
    from meq.viz.report.write import check_report, default_place, write_report
else:
    make_lazy(__name__)

__all__ = ["check_report", "default_place", "is_study", "write_report"]
