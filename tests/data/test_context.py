"""What scores are held against."""

from __future__ import annotations

import pytest
import torch

from meq.data.context import TINY, context_of, intervals, tiny_split, wilson
from meq.data.metrics import ACCURACY, AUROC, BALANCED_ACCURACY, MICRO_F1, NEGATIVE_MAE, R2, TOKEN_ACCURACY


def drawn(count: int, share: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers of two classes, right with that probability."""
    target = torch.randint(2, (count,), generator=generator)
    right = torch.rand(count, generator=generator) < share
    return torch.nn.functional.one_hot(torch.where(right, target, 1 - target), 2).double(), target


def test_wilsons_interval_is_the_textbooks() -> None:
    found = wilson(0.8, 10)
    assert (found.low, found.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(1.0, 5).high == 1.0
    assert 0.5 < wilson(1.0, 5).low < 0.6, "five of five is not certainty"
    assert wilson(0.0, 5).low == 0.0


def test_shares_have_wilsons_interval_and_others_a_bootstrap() -> None:
    logits, target = drawn(80, 0.7, torch.Generator().manual_seed(0))
    found = intervals((ACCURACY, BALANCED_ACCURACY), logits, target)
    assert found["accuracy"] == wilson(ACCURACY(logits, target), 80)
    assert found["balanced accuracy"].method == "bootstrap, 200 resamples"
    assert found["balanced accuracy"].low < BALANCED_ACCURACY(logits, target) < found["balanced accuracy"].high
    assert intervals((BALANCED_ACCURACY,), logits, target) == {"balanced accuracy": found["balanced accuracy"]}


def test_a_bootstrap_holds_the_true_score_about_as_often_as_it_says() -> None:
    generator, held = torch.Generator().manual_seed(1), 0
    for _ in range(60):
        logits, target = drawn(60, 0.7, generator)
        found = intervals((BALANCED_ACCURACY,), logits, target)["balanced accuracy"]
        held += found.low <= 0.7 <= found.high
    assert held >= 50, "95 % of 60 are 57; fewer than 50 would be the work of chance once in thousands"


def test_a_score_is_held_against_always_the_same_answer_and_against_chance() -> None:
    target = torch.tensor([0, 1, 1, 1, 2])
    found = context_of((ACCURACY,), torch.eye(3)[target], target, head="classes", labels=("a", "b", "c"))
    assert (found.examples, found.majority, found.constant, found.chance) == (5, "b", 0.6, 1 / 3)
    assert found.in_words == "always 'b': 0.6000, chance: 0.3333"
    balanced = context_of((BALANCED_ACCURACY,), torch.eye(3)[target], target, head="classes", labels=("a", "b", "c"))
    assert balanced.constant == pytest.approx(1 / 3), "by the metric that is shown, not by accuracy"
    area = context_of((AUROC,), torch.eye(2)[target[:4]], target[:4], head="classes", labels=("a", "b"))
    assert (area.constant, area.chance) == (0.5, 0.5)


def test_tokens_that_are_not_asked_do_not_count() -> None:
    target = torch.tensor([[0, 1, -1, -1, -1], [1, 1, -1, -1, -1]])
    found = context_of((TOKEN_ACCURACY,), torch.zeros(2, 5, 4), target, head="tokens", labels=tuple("abcd"))
    assert (found.majority, found.constant, found.chance) == ("b", 0.75, 0.25)


def test_numbers_are_held_against_their_mean_and_several_labels_against_nothing() -> None:
    score = torch.randn(20, 1, generator=torch.Generator().manual_seed(2))
    found = context_of((R2, NEGATIVE_MAE), score, score[:, 0] + 0.1, head="score", labels=("y",))
    assert (found.majority, found.constant, found.chance) == ("the mean", 0.0, None)
    assert found.intervals["negative mae"].shown_for("negative mae") == "[0.10, 0.10]"
    none = context_of((MICRO_F1,), torch.zeros(4, 2), torch.ones(4, 2), head="labels", labels=("a", "b"))
    assert (none.majority, none.constant, none.chance) == (None, None, None)


def test_what_cannot_be_scored_has_no_interval() -> None:
    one_class = torch.zeros(6).long()
    assert intervals((AUROC,), torch.zeros(6, 2), one_class) == {}
    assert intervals((R2,), torch.zeros(3, 1), torch.ones(3)) == {}


def test_few_examples_are_told_with_the_width_they_allow() -> None:
    assert tiny_split("dev", TINY) is None
    said = tiny_split("dev", 12)
    assert said is not None
    assert "dev has 12 examples" in said
    assert "+-0.25" in said
