"""Depth made visible: the heat map of a measured study, and a trail drawn from what a run said at every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import AxesImage
from rich.console import Console
from studies.shrinking import shrunk

from meq.data.request import DataRequest, open_data
from meq.studies import make_study, run_study
from meq.viz.figures import draw_figure
from meq.viz.staircase import INKS, NOT_YET, staircase_figure, staircases, trail, trail_figure
from meq.viz.study_figures import ReportedStudy, open_reported_study


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("duels") / "study"
    study = shrunk(make_study("duels", DataRequest(data="duels", options={"form": "symbols"})))
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


def test_a_trail_of_symbols_is_drawn_with_the_cards_they_stand_for(reported: ReportedStudy) -> None:
    (drawing,) = trail(reported)
    assert drawing.photograph
    assert "What was read are symbols" in drawing.caption
    config = reported.study.data
    followed = next(iter(reported.measured["staircase"].values()))["example"]
    symbols = open_data("duels", **config.options)
    pictures = open_data("duels", **{**config.options, "form": "pixels", "signs": 9})
    pair = [next(each for each in data.splits["deep"] if each.id == followed["id"]) for data in (symbols, pictures)]
    assert pair[0].target.tolist() == pair[1].target.tolist()
    assert pair[0].facts["trail"] == pair[1].facts["trail"]


def test_frames_have_the_colour_that_is_said_and_are_grey_until_it_is_right() -> None:
    data = open_data("duels", train=9, dev=9, test=9, deep_test=9)
    example = data.splits["deep"][0]
    truth = example.target.tolist()
    wrong = [(colour + 1) % 3 for colour in truth]
    depth = int(example.facts["depth"])
    steps = list(range(depth + 1))
    answers = [wrong if k < depth else truth for k in steps]
    figure = trail_figure(example, {"steps": steps, "answers": answers}, data.labels)
    first, last = figure.axes[0], figure.axes[depth]
    assert {tuple(patch.get_edgecolor()[:3]) for patch in first.patches[:9]} == {to_rgb(NOT_YET)}
    said = [tuple(patch.get_edgecolor()[:3]) for patch in last.patches[:9]]
    assert said == [to_rgb(INKS[data.labels[colour]]) for colour in truth[:9]]
    assert first.get_title(loc="left") == "k = 0"
