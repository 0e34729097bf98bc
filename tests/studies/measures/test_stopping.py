"""Stopping rules of a measured run: calibrated on dev, read elsewhere, and left as the model was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from studies.measures.subjects import CONCAT, COUPLED, study, untrained

from meq.studies import DataConfig
from meq.studies.build import PreparedData, prepare_data
from meq.studies.measures.stopping import FULL, OWN, Reading, Stopping, StoppingResult
from meq.studies.study import StudyError


@pytest.fixture(scope="module")
def duels() -> PreparedData:
    sizes = {"train": 9, "dev": 54, "test": 18, "deep_test": 18, "form": "symbols"}
    return prepare_data(DataConfig(name="duels", options=sizes))


def test_own_and_full_depth_are_what_reading_there_gives(duels: PreparedData) -> None:
    trained = untrained(duels)
    model = trained.iterated
    assert model is not None
    taken = Stopping(splits=["test", "deep"], risk=0.9, most=6).take(trained)
    assert taken is not None
    assert (taken.own, taken.full) == (2, 6)
    for split in ("test", "deep"):
        assert taken.readings[split][OWN].steps <= 2
        assert taken.readings[split][FULL].steps <= 6
        with model.run_as(steps=6):
            assert taken.readings[split][FULL].score == pytest.approx(trained.score(trained.data.splits[split]))


def test_steps_are_told_by_the_depth_of_examples(duels: PreparedData) -> None:
    trained = untrained(duels)
    taken = Stopping(splits=["test", "deep"], risk=0.9, most=6).take(trained)
    assert taken is not None
    for split in ("test", "deep"):
        depths = [example.facts["depth"] for example in trained.data.splits[split]]
        for reading in taken.readings[split].values():
            assert set(reading.by_depth) == {str(depth) for depth in depths}
            assert sum(reading.by_depth[str(depth)] for depth in depths) / len(depths) == pytest.approx(reading.steps)
    made = Stopping().tables(study(COUPLED), {("meq", 0): taken})["steps-by-depth-deep"]
    assert [row[0] for row in made.rows] == list(taken.readings["deep"][FULL].by_depth)


def test_a_depth_that_is_no_whole_number_is_passed_over(duels: PreparedData) -> None:
    trained = untrained(duels)
    said = [
        replace(each, facts={"depth": 3 if row % 2 else "deep"}) for row, each in enumerate(trained.data.splits["test"])
    ]
    data = replace(trained.data, splits={**trained.data.splits, "test": said})
    taken = Stopping(risk=0.9, most=6).take(replace(trained, data=data))
    assert taken is not None
    assert {tuple(reading.by_depth) for reading in taken.readings["test"].values()} == {("3",)}


def test_a_risk_of_nearly_everything_lets_rules_stop_early(duels: PreparedData) -> None:
    trained = untrained(duels)
    taken = Stopping(risk=0.9, most=6).take(trained)
    assert taken is not None
    assert taken.settings
    assert set(taken.settings) == set(taken.holds)
    for rule in taken.settings:
        assert taken.readings["test"][rule].steps < taken.readings["test"][FULL].steps


def test_the_model_is_read_as_before_afterwards(duels: PreparedData) -> None:
    trained = untrained(duels)
    Stopping(risk=0.9, most=6).take(trained)
    assert trained.iterated is not None
    assert trained.iterated.anytime is None
    assert trained.iterated.steps == 2


def test_a_model_without_steps_has_nothing_to_stop(duels: PreparedData) -> None:
    assert Stopping().take(untrained(duels, CONCAT)) is None


def test_the_table_has_a_line_for_every_way_of_reading() -> None:
    def found(score: float, steps: float, *, holds: bool) -> StoppingResult:
        readings = {OWN: Reading(score=0.5, steps=2), FULL: Reading(score=0.9, steps=6)}
        return StoppingResult(
            metric="token accuracy",
            risk=0.01,
            own=2,
            full=6,
            settings={"change": "change 0.001"},
            holds={"change": holds},
            readings={"test": {**readings, "change": Reading(score=score, steps=steps)}},
        )

    results = {("meq", 0): found(0.88, 3.0, holds=True), ("meq", 1): found(0.9, 4.0, holds=False)}
    table = Stopping().tables(study(COUPLED), results)["stopping-test"]
    rows = {row[1]: dict(zip([column.key for column in table.columns], row, strict=True)) for row in table.rows}
    assert list(rows) == [OWN, FULL, "change"]
    assert rows["change"]["score"] == pytest.approx(0.89)
    assert rows["change"]["steps"] == pytest.approx(3.5)
    assert rows["change"]["promise kept"] == "1 of 2"


def test_a_split_that_is_not_there_is_refused_before_training(duels: PreparedData) -> None:
    with pytest.raises(StudyError, match="has no split 'tset'"):
        Stopping(splits=["tset"]).check(study(COUPLED), duels)
