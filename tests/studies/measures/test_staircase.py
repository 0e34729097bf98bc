"""Right answers by depth and by step: counted by hand, and read off models that have not learned anything."""

from __future__ import annotations

import pytest
import torch
from studies.measures.subjects import CONCAT, COUPLED, study, untrained

from meq.studies import DataConfig
from meq.studies.build import PreparedData, prepare_data
from meq.studies.measures.contract import as_found
from meq.studies.measures.staircase import Staircase, arrivals, lateness, shares
from meq.studies.study import StudyError

SIZES = {"train": 9, "dev": 9, "test": 18, "deep_test": 18, "form": "symbols"}


@pytest.fixture(scope="module")
def duels() -> PreparedData:
    return prepare_data(DataConfig(name="duels", options=SIZES))


RIGHT = torch.tensor(
    [
        [[True, False, False], [True, False, False]],
        [[True, True, False], [True, False, True]],
        [[True, True, True], [True, True, True]],
    ]
)
DEPTHS = torch.tensor([[0, 1, 2], [0, 2, -1]])
"""The last token of the second example is not asked."""


def test_shares_are_counted_over_tokens_whole_examples_and_depths() -> None:
    count, score = shares(RIGHT, DEPTHS)
    assert count == {"tokens": 5, "whole": 2, "0": 2, "1": 1, "2": 2}
    assert score["tokens"] == (2 / 5, 3 / 5, 1.0)
    assert score["whole"] == (0.0, 0.0, 1.0)
    assert score["0"] == (1.0, 1.0, 1.0)
    assert score["1"] == (0.0, 1.0, 1.0)
    assert score["2"] == (0.0, 0.0, 1.0)


def test_an_answer_has_arrived_at_the_step_from_which_on_it_stays_right() -> None:
    assert arrivals(RIGHT, DEPTHS) == {"0": 0.0, "1": 1.0, "2": 2.0}
    flickering = torch.tensor([True, False, True, True]).reshape(4, 1, 1)
    assert arrivals(flickering, torch.tensor([[3]])) == {"3": 2.0}
    lost = torch.tensor([True, True, False]).reshape(3, 1, 1)
    assert arrivals(lost, torch.tensor([[3]])) == {}


def test_deep_problems_are_read_at_three_times_the_depth_and_others_at_k(duels: PreparedData) -> None:
    trained = untrained(duels)
    taken = Staircase().take(trained)
    assert taken.read == {"test": 2, "deep": 6}
    assert taken.steps == (0, 1, 2, 3, 4, 5, 6, 32, 48, 100, 300)
    assert taken.answer["test"]["tokens"] == taken.score["test"]["tokens"][2]
    assert taken.answer["deep"]["tokens"] == taken.score["deep"]["tokens"][6]
    assert taken.answer["test"]["tokens"] == pytest.approx(trained.score(trained.data.splits["test"]))
    assert taken.count["test"]["tokens"] == 18 * 18


def test_depths_within_and_beyond_training_are_told_apart(duels: PreparedData) -> None:
    taken = Staircase(limit=9).take(untrained(duels))
    assert max(int(name) for name in taken.count["test"] if name.isdigit()) <= 4
    assert max(int(name) for name in taken.count["deep"] if name.isdigit()) >= 5
    assert taken.count["deep"]["whole"] == 9


def test_the_latest_example_is_the_one_whose_answers_arrive_last_of_those_that_are_right_in_the_end() -> None:
    never, early, late, lost = (
        torch.tensor(rows, dtype=torch.bool)
        for rows in (
            [[0, 0], [0, 1], [0, 1]],
            [[1, 1], [1, 1], [1, 1]],
            [[1, 0], [1, 0], [1, 1]],
            [[0, 0], [1, 1], [1, 0]],
        )
    )
    right = torch.stack([never, early, late, lost], 1)
    assert lateness(right, torch.ones(4, 2, dtype=torch.long)).tolist() == [-1, 0, 1, -1]
    half = torch.tensor([[-1, 1]] * 4)  # the first token of each is not asked
    assert lateness(right, half).tolist() == [1, 0, 2, -1]


def test_one_example_is_followed_token_by_token(duels: PreparedData) -> None:
    trained = untrained(duels)
    followed = Staircase().take(trained).example
    assert followed is not None
    assert followed.steps == (0, 1, 2, 3, 4, 5, 6)
    example = next(each for each in trained.data.splits["deep"] if each.id == followed.id)
    batch = trained.data.collate([example])
    with torch.no_grad():
        last = trained.model(batch.features, batch.masks, steps=6).logits
    assert list(followed.answers[6]) == last[0].argmax(-1).tolist()


def test_a_model_without_steps_has_answers_only(duels: PreparedData) -> None:
    taken = Staircase().take(untrained(duels, CONCAT))
    assert as_found(taken).keys() == {"count", "answer"}
    assert set(taken.answer) == {"test", "deep"}


def test_tables_show_every_arm_and_the_steps_of_those_that_have_some(duels: PreparedData) -> None:
    measured = study(CONCAT, COUPLED)
    results = {
        (arm.name, seed): Staircase().take(untrained(duels, arm, seed=seed)) for arm in measured.arms for seed in (0, 1)
    }
    made = Staircase().tables(measured, results)
    assert made.keys() == {"depths", "by-depth-test", "by-depth-deep", "staircase-meq-test", "staircase-meq-deep"}
    rows = {
        row[0]: dict(zip([column.key for column in made["depths"].columns], row, strict=True))
        for row in made["depths"].rows
    }
    assert rows["meq"]["deep k"] == 6
    assert rows["concat"]["deep k"] is None
    assert rows["meq"]["test verdict"] == "reference"
    gaps = [
        results["concat", seed].answer["test"]["tokens"] - results["meq", seed].answer["test"]["tokens"]
        for seed in (0, 1)
    ]
    assert rows["concat"]["test difference"] == pytest.approx(sum(gaps) / 2)


def test_sets_without_answers_per_token_are_refused_before_training(scenes: PreparedData) -> None:
    with pytest.raises(StudyError, match="has no split 'deep'"):
        Staircase().check(study(COUPLED), scenes)
    with pytest.raises(StudyError, match="needs answers per token and their depths"):
        Staircase(splits=("test",)).check(study(COUPLED), scenes)
