"""The answer at every step, by kind, and the tables of it."""

from __future__ import annotations

import math

import pytest
from studies.measures.subjects import CONCAT, COUPLED, study, untrained

from meq.studies.build import PreparedData
from meq.studies.measures import make_measure
from meq.studies.measures.contract import as_found, mean_and_spread
from meq.studies.measures.steps import Steps, StepsResult
from meq.studies.study import StudyError


def found(*scores: float, answer: float = 0.5, read: int = 2) -> StepsResult:
    steps = tuple(range(len(scores)))
    return StepsResult(
        split="test",
        metric="accuracy",
        count={"all": 4},
        answer={"all": answer},
        read=read,
        steps=steps,
        score={"all": scores},
        residual={"image": tuple(0.5**k for k in steps)},
    )


def test_the_score_at_the_read_step_is_the_models_own(scenes: PreparedData) -> None:
    trained = untrained(scenes)
    taken = Steps(by="kind").take(trained)
    assert taken.steps == (0, 1, 2, 3, 4)
    assert taken.score["all"][taken.read] == taken.answer["all"]
    assert taken.answer["all"] == trained.score(trained.data.splits["test"])


def test_kinds_share_out_all_examples(scenes: PreparedData) -> None:
    taken = Steps(by="kind").take(untrained(scenes))
    assert taken.count == {"all": 36, "existence": 18, "binding": 18}
    mean = (taken.answer["existence"] + taken.answer["binding"]) / 2
    assert mean == pytest.approx(taken.answer["all"])


def test_a_model_without_steps_has_an_answer_and_no_curve(scenes: PreparedData) -> None:
    taken = Steps().take(untrained(scenes, CONCAT))
    assert taken.answer.keys() == {"all"}
    assert taken.steps is None
    assert taken.there_at("all") is None
    assert as_found(taken).keys() == {"split", "metric", "count", "answer"}


def test_split_horizon_and_limit_are_what_was_asked_for(scenes: PreparedData) -> None:
    taken = Steps(split="dev", horizon=3, limit=5).take(untrained(scenes))
    assert (taken.split, taken.steps[-1], taken.count) == ("dev", 3, {"all": 5})


def test_dev_is_reported_where_test_has_no_labels(scenes: PreparedData) -> None:
    assert untrained(scenes, labelled="test").reported_split == "test"
    assert untrained(scenes, labelled="dev").reported_split == "dev"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"by": "kinds"}, "did you mean 'kind'"), ({"split": "tset"}, "no split 'tset'; it has train, dev, test")],
)
def test_what_the_data_does_not_have_is_said_before_training(scenes: PreparedData, options: dict, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        make_measure("steps", options).check(study(COUPLED), scenes)


def test_an_answer_is_there_from_the_step_after_which_it_stays_near() -> None:
    assert found(0.3, 0.9, 0.9).there_at("all") == 1
    assert found(0.9, 0.3, 0.9).there_at("all") == 2
    assert found(0.9, 0.9, 0.9, 0.1).there_at("all") == 0  # what comes after K does not matter
    assert found(0.9).there_at("binding") is None


def test_tables_show_means_over_seeds_and_mark_the_read_step() -> None:
    values = {("meq", 0): found(0.2, 0.4, 0.6), ("meq", 1): found(0.4, 0.6, 0.8)}
    tables = Steps().tables(study(COUPLED), values)
    assert tables.keys() == {"answers-by-kind", "steps-meq"}
    rows = tables["steps-meq"].rows
    assert [row[0] for row in rows] == ["0", "1", "2 = K"]
    assert rows[0][1:3] == pytest.approx((0.3, 0.2 / math.sqrt(2)))
    assert rows[2][3] == pytest.approx(0.25)


def test_a_run_that_is_missing_leaves_the_others_and_no_run_no_table() -> None:
    assert Steps().tables(study(COUPLED), {}) == {}
    answered = StepsResult(split="test", metric="accuracy", count={"all": 4}, answer={"all": 0.7})
    tables = Steps().tables(study(COUPLED, CONCAT), {("concat", 1): answered})
    assert tables.keys() == {"answers-by-kind"}
    assert tables["answers-by-kind"].rows == (("concat", 0.7, None, None),)


def test_a_number_that_is_not_finite_is_shown_and_breaks_nothing() -> None:
    assert mean_and_spread([]) == (None, None)
    assert mean_and_spread([0.5, None]) == (0.5, None)
    assert mean_and_spread([1.0, 3.0]) == (2.0, math.sqrt(2))
    mean, spread = mean_and_spread([math.nan, 1.0])
    assert math.isnan(float(mean or 0))
    assert math.isnan(float(spread or 0))
