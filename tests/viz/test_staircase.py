"""Depth made visible: the heat map of a measured study, and a trail drawn from what a run said at every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from rich.console import Console
from studies.shrinking import shrunk

from meq.data.request import DataRequest, open_data
from meq.studies import make_study, run_study
from meq.studies.measures.stopping import FULL, OWN
from meq.viz.figures import draw_figure
from meq.viz.staircase import (
    INKS,
    NOT_YET,
    staircase_figure,
    staircases,
    steps_by_depth,
    steps_figure,
    trail,
    trail_figure,
)
from meq.viz.study_figures import ReportedStudy, open_reported_study


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("duels") / "study"
    study = shrunk(make_study("duels", DataRequest(data="duels", options={"form": "symbols", "signs": 12})))
    arms = tuple(arm for arm in study.arms if arm.name in ("meq", "concat"))
    groups = {"best single pass": ("concat",)}
    run_study(replace(study, arms=arms, groups=groups), folder, console=Console(quiet=True))
    return folder


@pytest.fixture(scope="module")
def reported(measured: Path) -> ReportedStudy:
    return open_reported_study(measured)


def test_a_staircase_is_drawn_for_every_split_and_can_be_saved(measured: Path, reported: ReportedStudy) -> None:
    drawings = staircases(reported)
    assert len(drawings) == 2
    assert "on test" in drawings[0].alt
    assert "on deep" in drawings[1].alt
    files = draw_figure(measured, "staircase", measured.parent / "figures")
    assert [file.name for file in files if file.suffix == ".png"] == ["staircase-1.png", "staircase-2.png"]


def test_the_heat_map_has_a_row_per_depth_and_a_column_per_step() -> None:
    score = {"tokens": (0.5, 1, 1), "whole": (0, 1, 1), "0": (1, 1, 1), "1": (0.25, 1, 1), "2": (0, 0.5, 1)}
    seed = {"score": {"test": score}, "steps": [0, 1, 2], "read": {"test": 2}}
    other = {**seed, "score": {"test": {**score, "1": (0.75, 1, 1)}}}
    (image,) = [
        each for each in staircase_figure([seed, other], "test").axes[0].get_children() if isinstance(each, AxesImage)
    ]
    np.testing.assert_allclose(image.get_array(), [[1, 1, 1], [0.5, 1, 1], [0, 0.5, 1]])


def test_steps_far_beyond_are_left_out_of_the_heat_map() -> None:
    seed = {"score": {"test": {"0": (1.0, 1.0, 0.0)}}, "steps": [0, 1, 300], "read": {"test": 1}}
    axes = staircase_figure([seed], "test").axes[0]
    (image,) = [each for each in axes.get_children() if isinstance(each, AxesImage)]
    assert image.get_array().shape == (1, 2)


def test_the_dashed_line_joins_depths_with_their_own_step_where_there_is_one() -> None:
    score = {"2": (0.0, 0.5, 1.0), "9": (0.0, 0.0, 0.5)}
    axes = staircase_figure([{"score": {"deep": score}, "steps": [0, 1, 2], "read": {"deep": 2}}], "deep").axes[0]
    dashed = axes.lines[0]
    assert (list(dashed.get_xdata()), list(dashed.get_ydata())) == ([2], [0])


# -- steps by depth ----------------------------------------------------------------------------------------------------


def taken(**rules: dict[str, float]) -> dict[str, Any]:
    """What one seed took on the split `deep`, by rule and by depth; full and own depth besides."""
    fixed = {FULL: dict.fromkeys(("9", "10"), 24.0), OWN: dict.fromkeys(("9", "10"), 8.0)}
    return {"readings": {"deep": {rule: {"by_depth": steps} for rule, steps in (fixed | rules).items()}}}


def drawn_lines(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    lines = figure.axes[0].get_lines()
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}  # type: ignore[arg-type]


def test_every_rule_has_a_line_of_mean_steps_over_depths_beside_the_line_of_as_many_steps() -> None:
    seeds = [taken(change={"9": 10.0, "10": 12.0}), taken(change={"9": 12.0, "10": 16.0}, residual={"9": 9, "10": 11})]
    lines = drawn_lines(steps_figure(seeds, "deep"))
    assert lines.pop("change") == ([9, 10], [11, 14])
    assert lines.pop("residual") == ([9, 10], [9, 11]), "of the seed that has it"
    assert list(lines.values()) == [([9, 10], [9, 10])], "neither K nor the full depth is a rule"


def test_a_seed_that_was_measured_before_steps_were_kept_by_depth_is_left_out_of_the_line() -> None:
    older = {"readings": {"deep": {FULL: {}, OWN: {}, "change": {}}}}
    lines = drawn_lines(steps_figure([taken(change={"9": 10.0, "10": 12.0}), older], "deep"))
    assert lines["change"] == ([9, 10], [10, 12])


def test_without_any_rule_that_keeps_the_promise_there_is_only_the_line_of_as_many_steps() -> None:
    figure = steps_figure([taken()], "deep")
    assert len(figure.axes[0].get_lines()) == 1
    assert figure.axes[0].get_legend() is None


def test_steps_by_depth_are_drawn_for_splits_whose_examples_have_a_depth(reported: ReportedStudy) -> None:
    found = taken(change={"9": 10.0, "10": 12.0})
    found["readings"]["test"] = {FULL: {"by_depth": {}}, OWN: {"by_depth": {}}}
    (drawing,) = steps_by_depth(replace(reported, measured={"stopping": {("meq", reported.study.seeds[0]): found}}))
    assert "on deep by depth" in drawing.alt
    assert steps_by_depth(replace(reported, measured={})) == []


# -- trails ------------------------------------------------------------------------------------------------------------


def test_a_trail_of_symbols_is_drawn_with_the_cards_they_stand_for(reported: ReportedStudy) -> None:
    (drawing,) = trail(reported)
    assert drawing.photograph
    assert "What was read are symbols" in drawing.caption
    config = reported.study.data
    followed = next(iter(reported.measured["staircase"].values()))["example"]
    symbols = open_data("duels", **config.options)
    example = next(each for each in symbols.splits["deep"] if each.id == followed["id"])
    assert f"{example.facts['because']}. What was read" in drawing.caption
    pictures = open_data("duels", **{**config.options, "form": "pixels"})
    other = next(each for each in pictures.splits["deep"] if each.id == followed["id"])
    assert example.target.tolist() == other.target.tolist()
    assert example.facts["trail"] == other.facts["trail"]


def test_frames_have_the_colour_that_is_said_and_are_grey_until_it_is_right() -> None:
    data = open_data("duels", train=9, dev=9, test=9, deep_test=9)
    example = data.splits["deep"][0]
    truth = example.target.tolist()
    wrong = [(colour + 1) % 3 for colour in truth]
    depth = int(example.facts["depth"])
    steps = list(range(depth + 1))
    answers = [wrong if k < depth else truth for k in steps]
    figure = trail_figure(example, {"steps": steps, "answers": answers}, data.labels)
    first, last = figure.axes[:2]  # the steps at which an answer changes
    assert {tuple(patch.get_edgecolor()[:3]) for patch in first.patches[:9]} == {to_rgb(NOT_YET)}
    said = [tuple(patch.get_edgecolor()[:3]) for patch in last.patches[:9]]
    assert said == [to_rgb(INKS[data.labels[colour]]) for colour in truth[:9]]
    assert [axes.texts[-1].get_text() for axes in (first, last)] == ["k = 0", f"k = {depth}"]
    many = [[*truth[:-1], k % 3] for k in range(30)]
    shown = trail_figure(example, {"steps": list(range(30)), "answers": many}, data.labels)
    assert [axes.texts[-1].get_text() for axes in (shown.axes[0], shown.axes[7])] == ["k = 0", "k = 29"]
