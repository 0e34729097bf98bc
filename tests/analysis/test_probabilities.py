from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from meq.analysis.probabilities import (
    classes_within,
    conformity,
    fit_temperature,
    log_loss,
    promise,
    reliability,
    rows_needed,
)


def drawn(rows: int, classes: int, *, seed: int = 0, sharper: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits, and targets drawn from their probabilities; logits that are then `sharper` times as sure as they may."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=random)
    target = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
    return sharper * logits, target


@pytest.mark.parametrize("sharper", [0.5, 1.0, 3.0])
def test_a_temperature_undoes_how_much_too_sure_the_logits_are(sharper: float) -> None:
    logits, target = drawn(4000, 4, sharper=sharper)
    found = fit_temperature(logits, target, "classes")
    assert found == pytest.approx(sharper, rel=0.06)
    for other in (0.95 * found, 1.05 * found):
        assert log_loss(logits, target, "classes", temperature=found) < log_loss(
            logits, target, "classes", temperature=other
        )
    assert reliability(logits, target, "classes", temperature=found).error < 0.03


def test_the_calibration_error_is_the_gap_between_confidence_and_the_share_that_is_right() -> None:
    logits = torch.tensor([[math.log(9.0), 0.0]] * 10)
    target = torch.tensor([0] * 6 + [1] * 4)
    found = reliability(logits, target, "classes")
    assert found.counts == (10,)
    assert found.confidence == pytest.approx((0.9,), abs=1e-6)
    assert found.right == (0.6,)
    assert found.error == pytest.approx(0.3, abs=1e-6)


def test_soft_labels_and_tokens_have_a_temperature_too() -> None:
    random = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3000, 3, generator=random)
    target = (torch.rand(3000, 3, generator=random) < logits.sigmoid()).float()
    assert fit_temperature(2 * logits, target, "labels") == pytest.approx(2, rel=0.1)
    logits, target = drawn(3000, 3, sharper=2.0)
    padded = torch.cat([logits.reshape(1000, 3, 3), torch.zeros(1000, 1, 3)], dim=1)
    asked = torch.cat([target.reshape(1000, 3), torch.full((1000, 1), -1)], dim=1)
    assert fit_temperature(padded, asked, "tokens") == fit_temperature(logits, target, "classes")


def test_logits_that_are_not_finite_are_left_out_and_answers_all_right_stay_finite() -> None:
    logits, target = drawn(500, 3)
    broken = torch.cat([logits, torch.full((5, 3), math.nan)])
    longer = torch.cat([target, torch.zeros(5, dtype=torch.long)])
    assert fit_temperature(broken, longer, "classes") == fit_temperature(logits, target, "classes")
    assert 0 < fit_temperature(logits, logits.argmax(1), "classes") < 0.1


def test_the_threshold_is_the_order_statistic_of_the_finite_sample_correction() -> None:
    scores = [k / 10 for k in range(1, 10)]
    assert rows_needed(0.9) == 9
    assert promise(scores, 0.9).threshold == 0.9
    assert promise(scores, 0.5).threshold == 0.5
    with pytest.raises(ValueError, match=r"`coverage` 0.95 needs at least 19 rows of calibration, and there are 9"):
        promise(scores, 0.95)
    for wrong in (0, 1, 1.5, True):
        with pytest.raises(ValueError, match="a share between 0 and 1"):
            promise(scores, wrong)


def test_sets_hold_the_true_class_as_often_as_promised_on_fresh_rows_over_100_resamples() -> None:
    """However wrong the probabilities are: the sets of logits that are three times too sure cover as well."""
    logits, target = drawn(20_000, 5, sharper=3.0)
    covered = fresh = 0
    for seed in range(100):
        rows = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))[:400]
        known, new = rows[:200], rows[200:]
        made = promise(conformity(logits[known], target[known], "classes").tolist(), 0.9)
        sets = classes_within(logits[new], "classes", made.threshold)
        covered += sum(int(true) in held for true, held in zip(target[new], sets, strict=True))
        fresh += len(new)
    # the variance of a resample: that of its rows, and that of its threshold, which 200 rows decided
    deviation = math.sqrt(0.9 * 0.1 * (1 / fresh + 1 / (100 * 202)))
    assert abs(covered / fresh - 0.9) < 3 * deviation + 1 / 201
    assert covered / fresh > 0.9 - 3 * deviation


def test_intervals_hold_the_true_number_as_often_as_promised() -> None:
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(4000, 1, generator=random)
    target = logits[:, 0] + torch.randn(4000, generator=random)
    made = promise(conformity(logits[:1000], target[:1000], "score").tolist(), 0.8)
    inside = ((target - logits[:, 0]).abs() <= made.threshold)[1000:].double().mean()
    low, high = made.range
    assert low - 0.02 < inside < high + 0.02
    assert made.threshold == pytest.approx(1.2816, rel=0.1)


def test_a_set_is_never_empty_and_has_the_answer_first() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5], [3.0, 0.0, 0.0]])
    assert classes_within(logits, "classes", 0.0) == [[1], [0]]
    assert classes_within(logits, "classes", 1.0) == [[1, 2, 0], [0, 1, 2]]
