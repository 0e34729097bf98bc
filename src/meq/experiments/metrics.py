"""The metrics by name, so that a record's numbers can be computed again without its data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meq.core.options import nearest
from meq.data.metrics import ACCURACY, AUROC, SOFT_ACCURACY, Metric
from meq.data.sentiment import ACC2, ACC2_NONZERO, ACC7, acc7_of_scores
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
