"""Metrics over many draws of the examples, all draws at once: a draw is how often it takes each example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from meq.data.metrics import (
    ACC2,
    ACC2_NONZERO,
    ACC7,
    ACCURACY,
    AUROC,
    AVERAGE_PRECISION,
    BALANCED_ACCURACY,
    EXACT_MATCH,
    MACRO_AUROC,
    MACRO_F1,
    MICRO_F1,
    NEGATIVE_BRIER,
    NEGATIVE_LOG_LOSS,
    NEGATIVE_MAE,
    NEGATIVE_RMSE,
    PEARSON,
    R2,
    SOFT_ACCURACY,
    TOKEN_ACCURACY,
    WHOLE_ACCURACY,
    Metric,
)

if TYPE_CHECKING:
    from torch import Tensor

Numbers: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int16]
"""Draws by examples."""
ENTRIES = 4_000_000
"""Of the table of counts that is worked on at a time."""
Parts: TypeAlias = "Callable[[Tensor, Tensor], list[Tensor]]"
"""(logits, targets) -> numbers per example whose means a metric is made of."""
Whole = Callable[[list[Numbers]], Numbers]
"""Those means, for every draw -> the metric for every draw."""


def scores_of_draws(metric: Metric, logits: Tensor, target: Tensor, counts: Counts) -> Numbers:
    """The metric for every row of counts; NaN where a draw cannot be scored."""
    rows = max(1, ENTRIES // max(1, counts.shape[1]))
    parts = [counts[start : start + rows] for start in range(0, len(counts), rows)]
    return np.concatenate([_scores(metric, logits, target, part) for part in parts])


def _scores(metric: Metric, logits: Tensor, target: Tensor, counts: Counts) -> Numbers:
    if metric.name == AUROC.name:
        columns = logits.double().reshape(len(logits), -1)
        score = columns[:, -1] - columns[:, 0] if columns.shape[1] == 2 else columns[:, 0]
        return _pairs_won(score.numpy(), target.reshape(-1).numpy() == 1, counts)
    if metric.name in AGAINST_REST:
        return _one_against_rest(AGAINST_REST[metric.name], logits, target, counts)
    if metric.name in BY_CLASS:
        return BY_CLASS[metric.name](*_tallies(logits, target, counts))
    if metric.name == ACC7.name and metric.score is not ACC7.score:  # classes by a rule that the data states
        values = [[metric(logits[row : row + 1], target[row : row + 1])] for row in range(len(logits))]
        return _only(_means(np.array(values), counts))
    if metric.name not in FORMS:
        return _one_by_one(metric, logits, target, counts)
    parts, whole = FORMS[metric.name]
    return whole(_means(np.stack([part.double().numpy() for part in parts(logits, target)], axis=1), counts))


def _means(values: Numbers, counts: Counts) -> list[Numbers]:
    """By column of values (examples by numbers): its mean for every draw."""
    return list((counts.astype(np.float64) @ values / max(1, len(values))).T)


def _one_by_one(metric: Metric, logits: Tensor, target: Tensor, counts: Counts) -> Numbers:
    """For metrics that somebody else has registered."""
    import torch

    def scored(row: npt.NDArray[np.int16]) -> float:
        taken = torch.from_numpy(np.repeat(np.arange(len(logits)), row))
        try:
            return metric(logits[taken], target[taken])
        except ValueError:  # a draw of one class alone
            return float("nan")

    return np.array([scored(row) for row in counts])


def _only(means: list[Numbers]) -> Numbers:
    return means[0]


def _negative_root(means: list[Numbers]) -> Numbers:
    return -np.sqrt(means[0])


def _ratio(means: list[Numbers], empty: float = np.nan) -> Numbers:
    above, below = means
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), empty)


def _r2_of(means: list[Numbers]) -> Numbers:
    error, target, square = means
    return 1 - _ratio([error, square - target**2])


def _pearson_of(means: list[Numbers]) -> Numbers:
    score, target, scores, targets, both = means
    spread = np.sqrt(np.clip((scores - score**2) * (targets - target**2), 0, None))
    return _ratio([both - score * target, spread])


def _right(logits: Tensor, target: Tensor) -> list[Tensor]:
    return [logits.argmax(1) == target]


def _numbers(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and targets around the targets' mean: squares of large numbers would lose the digits that matter."""
    middle = target.double().mean()
    return logits.double().reshape(-1) - middle, target.double().reshape(-1) - middle


def _brier_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    chances = logits.double().softmax(1)
    off = chances.scatter_add(1, target.long()[:, None], -chances.new_ones(len(chances), 1)).square().sum(1)
    return [-off / (2 if logits.shape[1] == 2 else 1)]


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


def _token_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    asked = target >= 0
    return [((logits.argmax(-1) == target) & asked).sum(1), asked.sum(1)]


def _whole_parts(logits: Tensor, target: Tensor) -> list[Tensor]:
    asked = target >= 0
    return [((logits.argmax(-1) == target) | ~asked).all(1) & asked.any(1), asked.any(1)]


FORMS: Mapping[str, tuple[Parts, Whole]] = {
    ACCURACY.name: (_right, _only),
    ACC7.name: (_right, _only),
    TOKEN_ACCURACY.name: (_token_parts, _ratio),
    WHOLE_ACCURACY.name: (_whole_parts, _ratio),
    SOFT_ACCURACY.name: (lambda x, y: [y.gather(1, x.argmax(1, keepdim=True))[:, 0]], _only),
    EXACT_MATCH.name: (lambda x, y: [((x > 0) == (y > 0.5)).all(1)], _only),
    NEGATIVE_MAE.name: (lambda x, y: [-(x.double().reshape(-1) - y.double().reshape(-1)).abs()], _only),
    ACC2.name: (lambda x, y: [(x.reshape(-1) >= 0) == (y.reshape(-1) >= 0)], _only),
    ACC2_NONZERO.name: (_nonzero_parts, _ratio),
    MICRO_F1.name: (_f1_parts, lambda means: _ratio(means, empty=1.0)),
    NEGATIVE_RMSE.name: (lambda x, y: [(x.double().reshape(-1) - y.double().reshape(-1)).square()], _negative_root),
    NEGATIVE_LOG_LOSS.name: (lambda x, y: [x.double().log_softmax(1).gather(1, y.long()[:, None])[:, 0]], _only),
    NEGATIVE_BRIER.name: (_brier_parts, _only),
    R2.name: (_r2_parts, _r2_of),
    PEARSON.name: (_pearson_parts, _pearson_of),
}
"""Metrics that are made of means over examples."""


# -- classes -----------------------------------------------------------------------------------------------------------


def _tallies(logits: Tensor, target: Tensor, counts: Counts) -> tuple[Numbers, Numbers, Numbers]:
    """By draw and class: right answers, examples of it, answers of it."""
    classes = np.arange(logits.shape[1])
    answer, truth = logits.argmax(1).numpy()[:, None] == classes, target.numpy()[:, None] == classes
    taken = counts.astype(np.float64)
    return taken @ (answer & truth), taken @ truth, taken @ answer


def _balanced(right: Numbers, there: Numbers, answered: Numbers) -> Numbers:
    return _mean_where(there > 0, right, there)


def _macro_f1(right: Numbers, there: Numbers, answered: Numbers) -> Numbers:
    return _mean_where(there + answered > 0, 2 * right, there + answered)


def _mean_where(counted: npt.NDArray[np.bool_], above: Numbers, below: Numbers) -> Numbers:
    """The mean over classes of above / below, where they count."""
    shares = np.where(counted, above / np.where(counted, below, 1.0), 0.0)
    return _ratio([shares.sum(axis=1), counted.sum(axis=1).astype(np.float64)])


BY_CLASS: Mapping[str, Callable[[Numbers, Numbers, Numbers], Numbers]] = {
    BALANCED_ACCURACY.name: _balanced,
    MACRO_F1.name: _macro_f1,
}


# -- rankings ----------------------------------------------------------------------------------------------------------

Ranking = Callable[[Numbers, npt.NDArray[np.bool_], Counts], Numbers]
"""Scores, which examples are positive, and counts -> a number for every draw."""


def _one_against_rest(ranking: Ranking, logits: Tensor, target: Tensor, counts: Counts) -> Numbers:
    """The mean over classes that some examples of a draw have and others have not."""
    chances = logits.double().softmax(1).numpy()
    classes = [1] if chances.shape[1] == 2 else range(chances.shape[1])
    scores = np.stack([ranking(chances[:, place], target.numpy() == place, counts) for place in classes])
    known = np.isfinite(scores)
    both = _ratio([np.where(known, scores, 0.0).sum(axis=0), known.sum(axis=0).astype(np.float64)])
    return np.full_like(both, np.nan) if np.isnan(chances).any() else both


def _by_score(score: Numbers, positive: npt.NDArray[np.bool_], counts: Counts) -> tuple[Numbers, Numbers]:
    """By draw and score, from the lowest: how many positive examples are taken, how many others. Ties are one place."""
    order = np.argsort(score, kind="stable")
    _, first = np.unique(score[order], return_index=True)
    taken, positive = counts[:, order].astype(np.float64), positive[order]
    return np.add.reduceat(taken * positive, first, axis=1), np.add.reduceat(taken * ~positive, first, axis=1)


def _pairs_won(score: Numbers, positive: npt.NDArray[np.bool_], counts: Counts) -> Numbers:
    """P(score of a positive > score of a negative), ties one half."""
    if np.isnan(score).any():
        return np.full(len(counts), np.nan)
    above, below = _by_score(score, positive, counts)
    won = (above * (below.cumsum(axis=1) - below / 2)).sum(axis=1)
    return _ratio([won, above.sum(axis=1) * below.sum(axis=1)])


def _area_of_precision(score: Numbers, positive: npt.NDArray[np.bool_], counts: Counts) -> Numbers:
    """sum_k (R_k - R_{k-1}) P_k over thresholds, from the highest score down."""
    above, below = (each[:, ::-1] for each in _by_score(score, positive, counts))
    hits, taken = above.cumsum(axis=1), (above + below).cumsum(axis=1)
    precision = np.where(taken > 0, hits / np.where(taken > 0, taken, 1.0), 0.0)
    found = _ratio([(above * precision).sum(axis=1), above.sum(axis=1)])
    return np.where(below.sum(axis=1) > 0, found, np.nan)  # of one class alone there is no ranking


AGAINST_REST: Mapping[str, Ranking] = {MACRO_AUROC.name: _pairs_won, AVERAGE_PRECISION.name: _area_of_precision}
