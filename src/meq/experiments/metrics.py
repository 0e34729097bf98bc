"""The metrics by name, so that a record's numbers can be computed again without its data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from meq.core.options import nearest
from meq.data.metrics import ACCURACY, AUROC, SOFT_ACCURACY, Metric
from meq.data.sentiment import ACC2, ACC2_NONZERO, ACC7, RULES, acc7_of_scores
from meq.data.table_metrics import EXACT_MATCH, MICRO_F1, NEGATIVE_MAE, PEARSON, R2
from meq.training.evaluation import scores
from meq.training.predictions import Predictions
from meq.training.record import RunRecord

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        AUROC,
        SOFT_ACCURACY,
        R2,
        PEARSON,
        NEGATIVE_MAE,
        MICRO_F1,
        EXACT_MATCH,
        ACC7,
        ACC2,
        ACC2_NONZERO,
    )
}


class UnknownMetricError(ValueError):
    """A record names a metric that this version does not know."""


def metric_named(name: str, facts: Mapping[str, Any]) -> Metric:
    """The metric of that name; `facts` of the data set say which form of it, where there are two."""
    if name not in METRICS:
        raise UnknownMetricError(f"there is no metric {name!r}: {nearest(name, METRICS)}")
    if name == ACC7.name and facts.get("target") == "score":
        return acc7_of_scores(facts["rule"])
    return METRICS[name]


def recompute(record: RunRecord, split: str, predictions: Predictions) -> dict[str, float]:
    """Every score that the record has for a split, from the answers themselves."""
    metrics = [metric_named(name, record.data.facts) for name in record.metrics[split] if name != "loss"]
    return scores(metrics, record.objective.task, predictions)


# -- the same metrics over many draws of the examples ------------------------------------------------------------------

Parts = Callable[[Tensor, Tensor], list[Tensor]]
"""(logits, targets) -> numbers per example whose means a metric is made of."""
Whole = Callable[[list[npt.NDArray[np.float64]]], npt.NDArray[np.float64]]
"""Those means, for every draw -> the metric for every draw."""


def resampled(
    record: RunRecord, metric: str, given: Predictions, counts: npt.NDArray[np.int16]
) -> npt.NDArray[np.float64]:
    """A record's metric for every row of counts, which says how often each example is taken; all rows at once."""
    logits, target = given.logits, given.target
    if metric == AUROC.name:
        return _resampled_auroc(logits, target, counts)
    parts, whole = _form_of(metric, record.data.facts)
    values = np.stack([part.double().numpy() for part in parts(logits, target)], axis=1)
    means = counts.astype(np.float64) @ values / max(1, len(values))
    return whole(list(means.T))


def _form_of(metric: str, facts: Mapping[str, Any]) -> tuple[Parts, Whole]:
    if metric not in METRICS:
        raise UnknownMetricError(f"there is no metric {metric!r}: {nearest(metric, METRICS)}")
    if metric == ACC7.name and facts.get("target") == "score":
        classes = RULES[facts["rule"]]
        return lambda x, y: [classes(x.double().reshape(-1)) == classes(y.double().reshape(-1))], _only
    return FORMS[metric]


def _only(means: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return means[0]


def _ratio(means: list[npt.NDArray[np.float64]], empty: float = np.nan) -> npt.NDArray[np.float64]:
    above, below = means
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), empty)


def _r2_of(means: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    error, target, square = means
    return 1 - _ratio([error, square - target**2])


def _pearson_of(means: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    score, target, scores, targets, both = means
    spread = np.sqrt(np.clip((scores - score**2) * (targets - target**2), 0, None))
    return _ratio([both - score * target, spread])


def _right(logits: Tensor, target: Tensor) -> list[Tensor]:
    return [logits.argmax(1) == target]


def _numbers(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and targets around the targets' mean: squares of large numbers would lose the digits that matter."""
    middle = target.double().mean()
    return logits.double().reshape(-1) - middle, target.double().reshape(-1) - middle


def _r2_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    s, y = _numbers(logits, target)
    return [(y - s).square(), y, y.square()]


def _pearson_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    s, y = _numbers(logits, target)
    s = s - s.mean()
    return [s, y, s.square(), y.square(), s * y]


def _f1_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    chosen, right = logits > 0, target > 0.5
    return [2.0 * (chosen & right).sum(1), chosen.sum(1) + right.sum(1)]


def _nonzero_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    s, y = logits.reshape(-1), target.reshape(-1)
    return [((s > 0) == (y > 0)) & (y != 0), y != 0]


FORMS: Mapping[str, tuple[Parts, Whole]] = {
    ACCURACY.name: (_right, _only),
    ACC7.name: (_right, _only),
    SOFT_ACCURACY.name: (lambda x, y: [y.gather(1, x.argmax(1, keepdim=True))[:, 0]], _only),
    EXACT_MATCH.name: (lambda x, y: [((x > 0) == (y > 0.5)).all(1)], _only),
    NEGATIVE_MAE.name: (lambda x, y: [-(x.double().reshape(-1) - y.double().reshape(-1)).abs()], _only),
    ACC2.name: (lambda x, y: [(x.reshape(-1) >= 0) == (y.reshape(-1) >= 0)], _only),
    ACC2_NONZERO.name: (_nonzero_parts, _ratio),
    MICRO_F1.name: (_f1_parts, lambda means: _ratio(means, empty=1.0)),
    R2.name: (_r2_parts, _r2_of),
    PEARSON.name: (_pearson_parts, _pearson_of),
}
"""All but AUROC, which is made of pairs of examples."""


def _resampled_auroc(logits: Tensor, target: Tensor, counts: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    """P(score of a positive > score of a negative), ties one half, every example taken as often as its count says."""
    columns = logits.double().reshape(len(logits), -1)
    score = columns[:, -1] - columns[:, 0] if columns.shape[1] == 2 else columns[:, 0]
    if bool(score.isnan().any()):
        return np.full(len(counts), np.nan)
    order = torch.argsort(score, stable=True).numpy()
    _, first = np.unique(score.numpy()[order], return_index=True)
    positive = target.reshape(-1).numpy()[order] == 1
    taken = counts[:, order].astype(np.float64)
    above = np.add.reduceat(taken * positive, first, axis=1)  # by score, from the lowest: ties are one place
    below = np.add.reduceat(taken * ~positive, first, axis=1)
    won = (above * (below.cumsum(axis=1) - below / 2)).sum(axis=1)
    return _ratio([won, above.sum(axis=1) * below.sum(axis=1)])
