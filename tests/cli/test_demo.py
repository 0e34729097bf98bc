"""meq demo, at a size of seconds."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from studies.shrinking import shrunk
from typer.testing import CliRunner

from meq.cli import app
from meq.studies import make_study, verify


def test_the_demonstration_ends_in_tables_a_diagnosis_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiny(asked: str, *, quick: bool) -> Any:
        return shrunk(make_study(asked, quick=quick), seeds=(42,))

    monkeypatch.setattr(import_module("meq.studies.recipes"), "make_study", tiny)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert done.exit_code == 0, done.output
    assert "demo-duels-quick: right answers on deep, by depth" in done.output
    assert "demo-duels-quick: steps taken on deep, by depth" in done.output
    assert "spectral radius, undamped" in done.output
    report = tmp_path / "demo-report.html"
    assert str(report) in done.output
    assert report.stat().st_size > 100_000
    drawn = sorted(file.name for file in (tmp_path / "demo-pictures").glob("*.png"))
    assert drawn == ["staircase-1.png", "staircase-2.png", "steps-by-depth-1.png", "steps-by-depth-2.png", "trail.png"]
    assert verify(tmp_path / "demo").ok


def test_the_quick_one_says_that_it_is_smaller_and_needs_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib it goes on, says what to install, and has tables and a diagnosis all the same."""
    laboratory = import_module("meq.studies.laboratory")
    study = shrunk(laboratory.small_demo(), seeds=(42,))
    study = replace(study, arms=tuple(arm for arm in study.arms if arm.name == study.reference))
    monkeypatch.setattr(laboratory, "small_demo", lambda: study)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["demo", "--quick", "--out", str(tmp_path / "demo")])
    assert done.exit_code == 0, done.output
    assert "quick demonstration" in done.output
    assert done.output.count("pip install 'meq[viz]'") == 2, "at the outset, and where pictures would be named"
    assert "demo-quick: right answers on deep, by depth" in done.output
    assert "spectral radius, undamped" in done.output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["demo"]
    assert verify(tmp_path / "demo").ok


def test_the_quick_one_reads_trails_three_times_as_long_as_in_training() -> None:
    options = import_module("meq.studies.laboratory").small_demo().data.options
    assert options["deep"] == 3 * options["depth"]
