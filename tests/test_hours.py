"""The table of hours in docs/reproduce.md is what docs/hours.py computes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from meq.tables import as_markdown

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "hours.py"


def hours() -> Any:
    spec = importlib.util.spec_from_file_location("hours", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hours"] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_hours_of_one_benchmark_are_those_on_the_page() -> None:
    """One of them: all would take minutes."""
    module = hours()
    made = [line for line in as_markdown(module.hours_table(("mosei",))).splitlines() if line.startswith("| mosei")]
    page = [line for line in module.PAGE.read_text().splitlines() if line.startswith("| mosei")]
    assert made == page
    assert len(made) == 6


def test_every_study_of_the_plan_has_its_line_on_the_page() -> None:
    module = hours()
    lines = [line.split(" | ")[:2] for line in module.PAGE.read_text().splitlines() if line.startswith("| ")]
    planned = [[f"| {name}", study] for name, studies in module.PLAN.items() for study in studies]
    assert [line for line in lines if line in planned] == planned
