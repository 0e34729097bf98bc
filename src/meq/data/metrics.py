"""What a data set is scored by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named score over all predictions of a split; higher is better."""

    name: str
    score: Callable[[Tensor, Tensor], float]
    """(logits N C, targets N ...) -> number"""

    def __call__(self, logits: Tensor, target: Tensor) -> float:
        return self.score(logits, target)


def _accuracy(logits: Tensor, target: Tensor) -> float:
    return (logits.argmax(1) == target).double().mean().item()


ACCURACY = Metric(name="accuracy", score=_accuracy)


def _auroc(logits: Tensor, target: Tensor) -> float:
    """P(score of a positive > score of a negative), ties one half; by ranks, exact.

    The score is the second logit minus the first, or the only one. A score that is not a number makes the result none.
    """
    columns = logits.double().reshape(len(logits), -1)
    if columns.shape[1] > 2:
        raise ValueError(f"AUROC needs one or two logits per sample, got {columns.shape[1]}")
    score = columns[:, -1] - columns[:, 0] if columns.shape[1] == 2 else columns[:, 0]
    positive = target.flatten() == 1
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        raise ValueError(f"AUROC needs samples of both classes, got {positives} positive and {negatives} negative")
    if bool(score.isnan().any()):
        return float("nan")
    _, place, count = score.unique(return_inverse=True, return_counts=True)
    middle = count.cumsum(0).double() - (count.double() - 1) / 2  # tied scores share the mean of their ranks
    above = float(middle[place][positive].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def _soft_accuracy(logits: Tensor, target: Tensor) -> float:
    """mean_n target[n, argmax logits[n]]: what the answer that was given is worth."""
    return target.gather(1, logits.argmax(1, keepdim=True)).double().mean().item()


def joint_accuracy(q2a_logits: Tensor, q2a_target: Tensor, qa2r_logits: Tensor, qa2r_target: Tensor) -> float:
    """Q->AR of VCR: the share of questions with both the right answer and the right rationale."""
    if not len(q2a_logits) == len(q2a_target) == len(qa2r_logits) == len(qa2r_target):
        raise ValueError(
            "the answers and the rationales must be of the same questions, in the same order, got "
            f"{len(q2a_logits)} logits and {len(q2a_target)} targets of answers, "
            f"{len(qa2r_logits)} and {len(qa2r_target)} of rationales"
        )
    right = (q2a_logits.argmax(1) == q2a_target) & (qa2r_logits.argmax(1) == qa2r_target)
    return right.double().mean().item()


AUROC = Metric(name="auroc", score=_auroc)
SOFT_ACCURACY = Metric(name="soft accuracy", score=_soft_accuracy)
