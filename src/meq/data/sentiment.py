"""Sentiment from -3 to 3: its seven classes, by either of the two rules in use, and what predictions are scored by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from meq.data.metrics import ACCURACY, Metric
from meq.data.table_metrics import NEGATIVE_MAE, PEARSON

Rule = Literal["round", "sdk"]
CLASSES = ("-3", "-2", "-1", "0", "1", "2", "3")


def rounded(score: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """round(clip(x, -3, 3)) + 3, halves to the even number: the rule of MulT and MMSA."""
    return score.clamp(-3, 3).round().long() + 3


def away_from_zero(score: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The SDK's bins, closed on their outer side: [-3, -2) [-2, -1) [-1, 0), 0 alone, (0, 1] (1, 2] (2, 3]."""
    inside = score.clamp(-3, 3)
    return torch.where(inside > 0, inside.ceil(), inside.floor()).long() + 3


RULES: Mapping[str, Callable[[Tensor], Tensor]] = {"round": rounded, "sdk": away_from_zero}

ACC7 = Metric(name="Acc-7", score=ACCURACY.score)
"""Accuracy over seven classes, whichever rule made them."""


def acc7_of_scores(rule: Rule) -> Metric:
    """Share of scores that fall into the class of the true score."""
    classes = RULES[rule]

    def score(logits: Tensor, target: Tensor) -> float:
        return (classes(_flat(logits)) == classes(_flat(target))).double().mean().item()

    return Metric(name="Acc-7", score=score)


def _acc2(logits: Tensor, target: Tensor) -> float:
    return ((_flat(logits) >= 0) == (_flat(target) >= 0)).double().mean().item()


def _acc2_nonzero(logits: Tensor, target: Tensor) -> float:
    score, truth = _flat(logits), _flat(target)
    real = truth != 0
    return ((score[real] > 0) == (truth[real] > 0)).double().mean().item()


def _flat(x: Tensor) -> Tensor:
    return x.detach().double().reshape(-1)


ACC2 = Metric(name="Acc-2", score=_acc2)
"""Negative against not negative, zero on the second side."""
ACC2_NONZERO = Metric(name="Acc-2 without 0", score=_acc2_nonzero)
"""Negative against positive; clips whose true score is 0 are left out."""
SCORES = (ACC2, ACC2_NONZERO, NEGATIVE_MAE, PEARSON)
"""What a predicted score is measured by besides Acc-7."""
