"""A report that one can send: one HTML file, from what lies on disk."""

from meq.viz.report.write import check_report, default_place, write_report

__all__ = ["check_report", "default_place", "write_report"]
