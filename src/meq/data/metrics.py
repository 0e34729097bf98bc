"""What a data set is scored by: metrics for classes, labels and numbers, each under its name. Higher is better for all.

At the end, sentiment from -3 to 3: its seven classes, by either of the two rules in use, and what it is scored by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jaxtyping import Float, Int

from meq.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named score over all predictions of a split; higher is better."""

    name: str
    score: Callable[[Tensor, Tensor], float]
    """(logits N C, targets N ...) -> number"""
    by_sample: bool = False
    """It is the mean of a number per sample, so that a split can be scored batch by batch."""
    share: bool = False
    """It is the share of samples that are right: a number of successes among independent trials."""

    def __call__(self, logits: Tensor, target: Tensor) -> float:
        return self.score(logits, target)


class UnknownMetricError(ValueError):
    """There is no metric of that name: a record may name one that this version does not have."""


METRICS: Registry[Metric] = Registry("metric", error=UnknownMetricError)


def register_metric(
    name: str, *, by_sample: bool = False, share: bool = False
) -> Callable[[Callable[[Tensor, Tensor], float]], Metric]:
    """A decorator that makes a metric of a function (logits, targets) -> number, higher is better.

        @register_metric("my accuracy")
        def my_accuracy(logits: Tensor, target: Tensor) -> float: ...

    A data set has it as `metric=my_accuracy`. By its name a record's numbers are computed again. `by_sample`: it
    is the mean of a number per sample; then the logits of a large split need not be held to score it. `share`: that
    number is 1 where the answer is right and 0 elsewhere, and intervals are Wilson's.
    """

    def decorate(score: Callable[[Tensor, Tensor], float]) -> Metric:
        metric = Metric(name=name, score=score, by_sample=by_sample or share, share=share)
        METRICS.add(name, metric)
        return metric

    return decorate


def metric_named(name: str, facts: Mapping[str, Any]) -> Metric:
    """The metric of that name; `facts` of the data set say which form of it, where there are two."""
    if name == ACC7.name and facts.get("target") == "score":
        return acc7_of_scores(facts["rule"])
    return METRICS.get(name)


def _accuracy(logits: Tensor, target: Tensor) -> float:
    return (logits.argmax(1) == target).double().mean().item()


ACCURACY = register_metric("accuracy", share=True)(_accuracy)


def _token_accuracy(logits: Tensor, target: Tensor) -> float:
    """The share of right answers among all tokens that are asked, (logits N T C, targets N T); negative: not asked."""
    asked = target >= 0
    return (logits.argmax(-1) == target)[asked].double().mean().item()


def _whole_accuracy(logits: Tensor, target: Tensor) -> float:
    """The share of examples all of whose tokens answer right; an example that is asked nothing is left out."""
    asked = target >= 0
    right = ((logits.argmax(-1) == target) | ~asked).all(1)
    return right[asked.any(1)].double().mean().item()


TOKEN_ACCURACY = register_metric("token accuracy")(_token_accuracy)
WHOLE_ACCURACY = register_metric("whole accuracy")(_whole_accuracy)


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
    return _pairs_won(score, positive)


def _pairs_won(score: Tensor, positive: Tensor) -> float:
    """The share of pairs of a positive and a negative in the right order; there must be some of both."""
    if bool(score.isnan().any()):
        return float("nan")
    positives, negatives = int(positive.sum()), int((~positive).sum())
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


AUROC = register_metric("auroc")(_auroc)
SOFT_ACCURACY = register_metric("soft accuracy", by_sample=True)(_soft_accuracy)


# -- classes that are not equally frequent, and probabilities; NaN where a split cannot say ---------------------------


def _balanced_accuracy(logits: Tensor, target: Tensor) -> float:
    """The mean, over the classes that occur, of the share of their samples that is recognised."""
    right = (logits.argmax(1) == target).double()
    found = [right[target == place].mean().item() for place in target.unique()]
    return sum(found) / len(found) if found else math.nan


def _macro_f1(logits: Tensor, target: Tensor) -> float:
    """The mean of 2 TP / (2 TP + FP + FN) over the classes that occur or are answered."""
    answer = logits.argmax(1)
    either = {int(place) for place in (*target.unique(), *answer.unique())}
    found = []
    for place in either:
        both = int(((answer == place) & (target == place)).sum())
        found.append(2 * both / int((answer == place).sum() + (target == place).sum()))
    return sum(found) / len(found) if found else math.nan


def _macro_auroc(logits: Tensor, target: Tensor) -> float:
    """The AUROC of each class against the others, by its probability, and their mean; of two classes it is one."""
    return _one_against_rest(logits, target, _pairs_won)


def _average_precision(logits: Tensor, target: Tensor) -> float:
    """sum_k (R_k - R_{k-1}) P_k over thresholds, of the second of two classes; of more the mean over all."""
    return _one_against_rest(logits, target, _area_of_precision)


def _one_against_rest(logits: Tensor, target: Tensor, score: Callable[[Tensor, Tensor], float]) -> float:
    """The mean over classes that some samples have and others have not; NaN where there is no such class."""
    classes = [1] if logits.shape[1] == 2 else range(logits.shape[1])
    chances = logits.double().softmax(1)
    found = []
    for place in classes:
        positive = target == place
        if bool(positive.any()) and not bool(positive.all()):
            found.append(score(chances[:, place], positive))
    return sum(found) / len(found) if found else math.nan


def _area_of_precision(score: Tensor, positive: Tensor) -> float:
    if bool(score.isnan().any()):
        return math.nan
    order = score.argsort(descending=True)
    score, hits = score[order], positive[order].double().cumsum(0)
    last = score.diff(append=score[-1:] - 1) != 0  # of tied scores, the one after which a threshold can lie
    taken = (last.nonzero().flatten() + 1).double()
    precision, recall = hits[last] / taken, hits[last] / hits[-1]
    return (recall.diff(prepend=recall[:1] * 0) * precision).sum().item()


def _negative_log_loss(logits: Tensor, target: Tensor) -> float:
    """mean log p(true class)."""
    return logits.double().log_softmax(1).gather(1, target.long()[:, None]).mean().item()


def _negative_brier(logits: Tensor, target: Tensor) -> float:
    """-mean sum_c (p_c - [c is the true class])^2; of two classes half of it, the squared error of one probability."""
    chances = logits.double().softmax(1)
    off = chances.scatter_add(1, target.long()[:, None], -chances.new_ones(len(chances), 1)).square().sum(1)
    return -(off.mean() / (2 if logits.shape[1] == 2 else 1)).item()


BALANCED_ACCURACY = register_metric("balanced accuracy")(_balanced_accuracy)
MACRO_F1 = register_metric("macro f1")(_macro_f1)
MACRO_AUROC = register_metric("macro auroc")(_macro_auroc)
AVERAGE_PRECISION = register_metric("average precision")(_average_precision)
NEGATIVE_LOG_LOSS = register_metric("negative log loss", by_sample=True)(_negative_log_loss)
NEGATIVE_BRIER = register_metric("negative brier", by_sample=True)(_negative_brier)
OF_CLASSES = (BALANCED_ACCURACY, MACRO_F1, MACRO_AUROC, AVERAGE_PRECISION, NEGATIVE_LOG_LOSS, NEGATIVE_BRIER)
"""What answers of one class each are measured by besides accuracy."""


def as_shown(name: str, value: float) -> tuple[str, float]:
    """A score as people know it: "negative mae", of which higher is better, is shown as "mae"."""
    plain = name.removeprefix(NEGATIVE)
    return (name, value) if plain == name else (plain, -value)


NEGATIVE = "negative "


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


def _negative_rmse(logits: Tensor, target: Tensor) -> float:
    return -(_numbers(logits) - _numbers(target)).square().mean().sqrt().item()


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


R2 = register_metric("r2")(_r2)
PEARSON = register_metric("pearson")(_pearson)
NEGATIVE_MAE = register_metric("negative mae", by_sample=True)(_negative_mae)
NEGATIVE_RMSE = register_metric("negative rmse")(_negative_rmse)
MICRO_F1 = register_metric("micro f1")(_micro_f1)
EXACT_MATCH = register_metric("exact match", share=True)(_exact_match)


Rule = Literal["round", "sdk"]
CLASSES = ("-3", "-2", "-1", "0", "1", "2", "3")


def rounded(score: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """round(clip(x, -3, 3)) + 3, halves to the even number: the rule of MulT and MMSA."""
    return score.clamp(-3, 3).round().long() + 3


def away_from_zero(score: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The SDK's bins, closed on their outer side: [-3, -2) [-2, -1) [-1, 0), 0 alone, (0, 1] (1, 2] (2, 3]."""
    import torch

    inside = score.clamp(-3, 3)
    return torch.where(inside > 0, inside.ceil(), inside.floor()).long() + 3


def class_of(score: float, rule: Rule) -> int:
    """The class of one score: the rules above, without torch."""
    inside = min(max(score, -3.0), 3.0)
    return (round(inside) if rule == "round" else math.ceil(inside) if inside > 0 else math.floor(inside)) + 3


RULES: Mapping[str, Callable[[Tensor], Tensor]] = {"round": rounded, "sdk": away_from_zero}

ACC7 = register_metric("Acc-7", share=True)(ACCURACY.score)
"""Accuracy over seven classes, whichever rule made them."""


def acc7_of_scores(rule: Rule) -> Metric:
    """Share of scores that fall into the class of the true score."""
    classes = RULES[rule]

    def score(logits: Tensor, target: Tensor) -> float:
        return (classes(_numbers(logits)) == classes(_numbers(target))).double().mean().item()

    return Metric(name="Acc-7", score=score, by_sample=True, share=True)


def _acc2(logits: Tensor, target: Tensor) -> float:
    return ((_numbers(logits) >= 0) == (_numbers(target) >= 0)).double().mean().item()


def _acc2_nonzero(logits: Tensor, target: Tensor) -> float:
    score, truth = _numbers(logits), _numbers(target)
    real = truth != 0
    return ((score[real] > 0) == (truth[real] > 0)).double().mean().item()


ACC2 = register_metric("Acc-2", share=True)(_acc2)
"""Negative against not negative, zero on the second side."""
ACC2_NONZERO = register_metric("Acc-2 without 0")(_acc2_nonzero)
"""Negative against positive; clips whose true score is 0 are left out."""
SCORES = (ACC2, ACC2_NONZERO, NEGATIVE_MAE, PEARSON)
"""What a predicted score is measured by besides Acc-7."""
