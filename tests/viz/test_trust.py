"""Reliability and importance, drawn and reported from the files of a run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from runs.number_table import FEW, SHAPE, numbers_request, write_numbers

from meq.runs import train_on
from meq.runs.importance import importance_of_run
from meq.viz.figures import RUN_FIGURES
from meq.viz.report.run import run_context, run_sections
from meq.viz.run_figures import ReportedRun, open_reported_run


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> ReportedRun:
    folder = tmp_path_factory.mktemp("trust")
    request = numbers_request(write_numbers(folder / "numbers.csv", rows=450))
    run = train_on(request, folder / "run", shape=SHAPE, config=replace(FEW, epochs=1))
    importance_of_run(run, repeats=2)
    return open_reported_run(folder / "run")


def test_the_report_shows_errors_before_and_after_and_how_often_sets_hold_the_truth(reported: ReportedRun) -> None:
    context = run_context(reported)
    titles = [section.title for section in run_sections(context)]
    assert titles[:3] == ["Scores", "What each modality is worth", "How far probabilities can be relied on"]
    errors = context["probabilities"]["errors"]
    assert [row[0] for row in errors.rows] == ["expected calibration error", "log loss"]
    assert all(isinstance(cell, float) for row in errors.rows for cell in row[1:])
    assert "Temperature" in errors.notes[0]
    assert [row[0] for row in context["probabilities"]["sets"].rows] == [0.8, 0.9, 0.95]
    assert context["importance"].rows[0][1] == "modality"


@pytest.mark.parametrize(("name", "count"), [("reliability", 1), ("importance", 2)])
def test_figures_have_words_for_those_who_do_not_see_them(reported: ReportedRun, name: str, count: int) -> None:
    drawings = RUN_FIGURES.get(name).draw(reported)
    assert len(drawings) == count
    assert all(each.alt and each.caption for each in drawings)
    assert ("calibration error" if name == "reliability" else "lost when shuffled") in drawings[0].alt


def test_a_run_that_was_not_calibrated_or_measured_says_so(reported: ReportedRun, tmp_path: Path) -> None:
    shutil.copytree(reported.files.folder, tmp_path / "run")
    (tmp_path / "run" / "model" / "calibration.json").unlink()
    shutil.rmtree(tmp_path / "run" / "analysis")
    found = open_reported_run(tmp_path / "run")
    context = run_context(found)
    assert "No temperature was fitted" in context["probabilities"]["errors"].notes[0]
    assert context["probabilities"]["sets"] is None
    assert RUN_FIGURES.get("importance").draw(found) == []
