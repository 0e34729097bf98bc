"""What is wrong with a training, said before anything that takes long: reading, encoding, the first epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.models.base import FusionModel
from meq.training.config import TrainConfig

NEEDED = ("train", "dev")
COUNTED = ("classes", "ordinal", "labels")
"""Heads with one output per label."""
EXTRA = "tensorboard"
"""The tracker that an extra of meq brings."""


def check_splits(data: DataSet, config: TrainConfig) -> None:
    """An error if there is nothing to train on, nothing to choose the epoch by, or not enough for one update."""
    for name in NEEDED:
        if not len(data.splits.get(name, ())):
            why = "it is what the weights learn from" if name == "train" else "every epoch is scored on it"
            there = ", ".join(f"{split} ({len(part):,})" for split, part in data.splits.items()) or "none"
            raise ValueError(f"{data.name} has no {name} split, which training needs: {why}. Its splits: {there}")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    size, needed = len(data.splits["train"]), config.batch_size * processes * config.accumulate
    if size < needed:
        raise ValueError(
            f"the train split of {data.name!r} has {size:,} examples, fewer than the {needed:,} of one update "
            "(batch_size x processes x accumulate): lower one of them"
        )


def check_model(model: FusionModel, data: DataSet) -> None:
    """An error if the model was made for other labels, or for other modalities, than the data has."""
    labels = len(data.labels)
    if model.classes is not None and data.head in COUNTED and model.classes != labels:
        raise ValueError(
            f"{type(model).__name__} has {model.classes} classes and {data.name} has {labels} labels "
            f"({_listed(data.labels)}): build the model with classes={labels}"
        )
    if model.classes is not None and model.head_kind != data.head:
        raise ValueError(
            f"{type(model).__name__} has the head {model.head_kind!r} and {data.name} asks for {data.head!r}: build it "
            f"with head={data.head!r}"
        )
    _check_modalities(model.widths, data)


def check_trackers(names: tuple[str, ...]) -> None:
    """Accelerate leaves out a tracker that is not installed; a run that should be tracked must not go untracked."""
    known = [str(each.value) for each in LoggerType if each is not LoggerType.ALL]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no tracker {name!r}: {nearest(name, known)}")
    available = {str(getattr(tracker, "value", tracker)) for tracker in get_available_trackers()}
    missing = [name for name in names if name not in available]
    if missing:
        packages = ["'meq[tracking]'" if name == EXTRA else name for name in missing]
        raise ValueError(f"the trackers {', '.join(missing)} are not installed: pip install {' '.join(packages)}")


def _check_modalities(widths: Mapping[str, int], data: DataSet) -> None:
    given = {name: modality.width for name, modality in data.modalities.items()}
    if set(widths) != set(given):
        raise ValueError(
            f"the model reads the modalities {_listed(widths)}, and {data.name} has {_listed(given)}: build the model "
            "with the widths of the data"
        )
    for name, width in widths.items():
        if given[name] != width:
            came = "raw contents, which must be encoded first" if given[name] is None else f"features of {given[name]}"
            raise ValueError(f"the model reads {name!r} as features of width {width}, and {data.name} has {came}")


def _listed(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8:,} more" if len(shown) > 8 else "")
