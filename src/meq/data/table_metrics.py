"""Scores for numbers and for sets of labels; higher is better for all of them."""

from __future__ import annotations

from torch import Tensor

from meq.data.metrics import Metric


def _r2(logits: Tensor, target: Tensor) -> float:
    """1 - sum (y - s)^2 / sum (y - mean y)^2: 1 is perfect, 0 as good as the mean; NaN if all targets are the same."""
    score, target = _numbers(logits), _numbers(target)
    return 1 - ((target - score).square().sum() / (target - target.mean()).square().sum()).item()


def _pearson(logits: Tensor, target: Tensor) -> float:
    """cov(s, y) / (std s std y); NaN where one of them does not vary."""
    score, target = _numbers(logits), _numbers(target)
    score, target = score - score.mean(), target - target.mean()
    return (score @ target / (score.norm() * target.norm())).item()


def _negative_mae(logits: Tensor, target: Tensor) -> float:
    return -(_numbers(logits) - _numbers(target)).abs().mean().item()


def _micro_f1(logits: Tensor, target: Tensor) -> float:
    """2 TP / (2 TP + FP + FN) over all labels of all samples; a label is chosen where its logit is above 0.

    1 where there is nothing to choose and nothing is chosen.
    """
    chosen, right = logits > 0, target > 0.5
    both, either = (chosen & right).sum().item(), (chosen.sum() + right.sum()).item()
    return 2 * both / either if either else 1.0


def _exact_match(logits: Tensor, target: Tensor) -> float:
    return ((logits > 0) == (target > 0.5)).all(1).double().mean().item()


def _numbers(x: Tensor) -> Tensor:
    """(N 1) or (N) as (N), precise enough for sums over a whole split."""
    return x.double().reshape(len(x))


R2 = Metric(name="r2", score=_r2)
PEARSON = Metric(name="pearson", score=_pearson)
NEGATIVE_MAE = Metric(name="negative mae", score=_negative_mae)
MICRO_F1 = Metric(name="micro f1", score=_micro_f1)
EXACT_MATCH = Metric(name="exact match", score=_exact_match)
