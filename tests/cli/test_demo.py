"""meq demo, at a size of seconds."""

from __future__ import annotations

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
