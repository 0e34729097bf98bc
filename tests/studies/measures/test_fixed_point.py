"""Radius, drift, residual and score at K, and far beyond it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from studies.measures.subjects import CONCAT, COUPLED, study, untrained
from studies.samples import SAMPLE

from meq.records import typed
from meq.studies.build import PreparedData
from meq.studies.measures import make_measure, read_measured, take_measure, write_measured
from meq.studies.measures.fixed_point import FixedPoint, FixedPointResult
from meq.studies.study import StudyError


def found(radius: list[float], *, drift: float = 0.1, score: float = 0.5) -> FixedPointResult:
    found = {
        "split": "test",
        "samples": 4,
        "read": 2,
        "horizon": 30,
        "metric": "accuracy",
        "radius": radius,
        "drift": {"image": math.nan, "text": drift},
        "residual": {"image": [0.2, 0.01], "text": [0.1, 0.02]},
        "score": [score, score - 0.1],
        "flips": 1,
        "diverged": 0,
    }
    return typed(FixedPointResult, found, "memory")


def test_what_is_found_is_plain_and_complete(scenes: PreparedData) -> None:
    trained = untrained(scenes)
    taken = FixedPoint(horizon=8, radii=2, limit=6).take(trained)
    assert taken is not None
    assert (taken.read, taken.horizon, taken.samples, taken.split) == (2, 8, 6, "test")
    assert len(taken.radius) == 2
    assert taken.score[0] == trained.score(trained.data.splits["test"][:6])
    assert taken.drift.keys() == taken.residual.keys() == {"image", "text"}
    assert all(first >= far > 0 for first, far in taken.residual.values())  # it comes nearer to rest
    assert taken.diverged == 0


def test_samples_that_diverged_have_no_radius(scenes: PreparedData) -> None:
    trained = untrained(scenes)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.fill_(math.inf)
    taken = FixedPoint(horizon=3, radii=2, limit=2).take(trained)
    assert taken is not None
    assert taken.radius == ()
    assert taken.diverged == 2
    assert math.isnan(taken.drift["image"])
    rows = FixedPoint().tables(study(COUPLED), {("meq", 0): taken, ("meq", 1): taken})["fixed-point"].rows
    assert rows[0][2] is None
    assert math.isnan(rows[-1][4])


def test_what_is_not_finite_is_written_and_read_again(scenes: PreparedData, tmp_path: Path) -> None:
    trained = untrained(scenes)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.fill_(math.inf)
    asked = study(COUPLED, measures={"fixed-point": {"horizon": 3, "radii": 1, "limit": 2}})
    write_measured(tmp_path, take_measure("fixed-point", asked, trained))
    read = read_measured(tmp_path, "fixed-point")
    assert read is not None
    assert math.isnan(read.found["drift"]["image"])
    assert read.weights_sha256 == SAMPLE.checkpoint.sha256


def test_models_without_steps_have_no_fixed_point(scenes: PreparedData) -> None:
    assert FixedPoint().take(untrained(scenes, CONCAT)) is None
    assert FixedPoint().tables(study(CONCAT), {}) == {}


def test_the_table_has_every_seed_and_their_mean() -> None:
    values = {("meq", 0): found([0.5, 0.7]), ("meq", 1): found([0.9], drift=0.3, score=0.7)}
    rows = FixedPoint().tables(study(COUPLED), values)["fixed-point"].rows
    assert [row[:2] for row in rows] == [("meq", "0"), ("meq", "1"), ("meq", "mean")]
    assert rows[0][2:4] == pytest.approx((0.6, 0.7))
    assert rows[0][4:7] == (0.1, 0.2, 0.02)  # the larger modality, of those that have a number
    assert rows[2][2:9] == pytest.approx((0.75, 0.8, 0.2, 0.2, 0.02, 0.6, 0.5))
    assert rows[2][9:] == (None, None)


def test_a_split_that_is_not_there_is_said_before_training(scenes: PreparedData) -> None:
    with pytest.raises(StudyError, match="no split 'val'"):
        make_measure("fixed-point", {"split": "val"}).check(study(COUPLED), scenes)
