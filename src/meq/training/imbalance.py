"""What each label counts in the loss, where some are rare: balanced by the train split, or as a file says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meq.data.contract import Rows, Split
from meq.data.files import MAX_LINE_BYTES, read_regular
from meq.objectives.tasks import check_shaping
from meq.options import nearest
from meq.records import JsonError, parse_json

if TYPE_CHECKING:
    import numpy as np

    from meq.data.contract import DataSet
    from meq.training.config import TrainConfig

NONE, BALANCED = "none", "balanced"
LIKELY_FILE = (".", "/", "\\")
"""Marks of a path: what has none of them is taken for a misspelled word."""


def check_class_weight(data: DataSet, config: TrainConfig) -> None:
    """An error for weights or smoothing that this data cannot be trained with; a file of weights is read."""
    check_shaping(data.head, weighted=config.class_weight != NONE, smoothed=config.label_smoothing > 0)
    if config.class_weight not in (NONE, BALANCED):
        weights_from_file(config.class_weight, data.labels)


def class_weights(data: DataSet, config: TrainConfig) -> tuple[float, ...]:
    """One weight per label, or none where all count alike."""
    check_class_weight(data, config)
    if config.class_weight == NONE:
        return ()
    if config.class_weight == BALANCED:
        return balanced_weights(data)
    return weights_from_file(config.class_weight, data.labels)


def balanced_weights(data: DataSet) -> tuple[float, ...]:
    """N / (C n_c) for each of the C classes of train; of several labels, (N - n_c) / n_c. A label it lacks counts 1.

    So every class has the same sum of weights, and their mean over train is 1; and of each of several labels, having it
    weighs as much as not having it.
    """
    counts, total = label_counts(data)
    if data.head == "labels":
        return tuple((total - n) / n if 0 < n < total else 1.0 for n in counts)
    present = sum(n > 0 for n in counts)
    return tuple(sum(counts) / (present * n) if n > 0 else 1.0 for n in counts)


def label_counts(data: DataSet) -> tuple[list[float], int]:
    """How often each label occurs in train, and among how many examples; soft labels count by their size."""
    import numpy as np

    labels = len(data.labels)
    counts, total = np.zeros(labels), 0
    for target in _targets(data.splits["train"]):
        total += 1
        if data.head == "labels":
            counts += target
        else:
            counts += np.bincount(target[target >= 0].reshape(-1).astype(np.int64), minlength=labels)
    return counts.tolist(), total


def _targets(split: Split) -> Sequence[np.ndarray[Any, Any]]:
    import numpy as np

    examples = split.plain() if isinstance(split, Rows) else iter(split)
    return [np.asarray(example.target) for example in examples]


def weights_from_file(place: str, labels: Sequence[str]) -> tuple[float, ...]:
    """A JSON file such as {"yes": 5, "no": 1}; a label that it does not name counts 1."""
    path = Path(place)
    if not path.is_file():
        if not any(mark in place for mark in LIKELY_FILE):
            raise ValueError(
                f"class_weight cannot be {place!r}: {nearest(place, [NONE, BALANCED])} Or give a JSON file, such as "
                'weights.json with {"yes": 5, "no": 1}'
            )
        raise ValueError(f"class_weight: there is no file {place}; or say none or balanced")
    try:
        found = parse_json(read_regular(path, most=MAX_LINE_BYTES))
    except JsonError as error:
        raise ValueError(f"class_weight: {place}: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f'class_weight: {place} must hold labels with their weights, such as {{"yes": 5, "no": 1}}')
    for name, weight in found.items():
        if name not in labels:
            raise ValueError(f"class_weight: {place} has a weight for {name!r}, no label: {nearest(name, labels)}")
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight < 0:
            raise ValueError(f"class_weight: {place}: the weight of {name!r} must be 0 or a positive number")
    if not any(found.get(name, 1.0) > 0 for name in labels):
        raise ValueError(f"class_weight: {place} gives every label a weight of 0: there would be nothing to learn")
    return tuple(float(found.get(name, 1.0)) for name in labels)
