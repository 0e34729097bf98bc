"""A report that one can send: one HTML file, from what lies on disk."""

from meq.viz.report.write import default_place, write_report

__all__ = ["default_place", "write_report"]
