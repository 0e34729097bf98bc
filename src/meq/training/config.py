"""How a model is trained: the options, and what must fit together, checked before anything that takes long."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from meq.options import checked_options, nearest, real_number
from meq.records import SINCE
from meq.training.depth import parse_depth

if TYPE_CHECKING:
    from meq.data.contract import DataSet
    from meq.models.base import FusionModel

DECAYS = ("cosine", "linear", "constant")
SELECTIONS = ("best", "last")
PRECISIONS = ("no", "bf16")
COUNTED = ("classes", "ordinal", "labels", "tokens")
"""Heads with one output per label."""
EXTRA = "tensorboard"
"""The tracker that an extra of meq brings."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The training recipe; the defaults are the paper's where it states one."""

    epochs: int = 10
    """Passes over the train split."""
    batch_size: int = 32
    """Samples per process and micro-batch; the update sees batch_size x processes x accumulate of them."""
    accumulate: int = 1
    """Micro-batches per update."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    weight_decay: float = 0.01
    """Weight decay of matrices; biases, norms and scalars have none."""
    warmup: float = 0.05
    """Share of all steps in which the learning rate rises."""
    decay: str = "cosine"
    """How the learning rate falls after that: cosine, linear or constant."""
    clip: float = 1.0
    """The largest norm of the whole gradient."""
    precision: str = "no"
    """Mixed precision: no or bf16."""
    seed: int = 0
    """Fixes everything that is random."""
    select: str = "best"
    """Which weights are kept: those of the best epoch by the data set's metric on the dev split, or the last."""
    checkpoint_every: int = 200
    """Steps between checkpoints; there is one at the end of every epoch too."""
    stop_on_alarm: bool = False
    """Stop when a collapse alarm is raised."""
    monitor_samples: int = 32
    """How many dev samples the once-per-epoch measurements look at."""
    radius_samples: int = 2
    """How many of them the spectral radius is measured on, to two per cent; 0 for none."""
    monitor_probes: int = field(default=1, metadata=SINCE)
    """Random probes per monitored sample and modality that the size of the Jacobian's blocks is estimated with."""
    depth: str = field(default="fixed", metadata=SINCE)
    """How deep updates go: fixed (the model's K), fixed(tracked=3) with gradients through the last three steps alone,
    uniform(2, 8), poisson(8), settle(2, 8, free=40, tracked=4).
    With per_sample=True, as in uniform(2, 8, per_sample=True), a depth is drawn for every sample."""
    random_start: float = field(default=0.0, metadata=SINCE)
    """Share of samples that start from random states while training."""
    path_noise: float = field(default=0.0, metadata=SINCE)
    """Standard deviation of the noise added to every step while training."""
    supervise: int = field(default=1, metadata=SINCE)
    """How many of the last steps are answered with while training; 0 for all of them."""
    supervise_decay: float = field(default=1.0, metadata=SINCE)
    """Weight of a supervised step, relative to the one after it."""
    average: float = field(default=0.0, metadata=SINCE)
    """Decay of a moving average of the weights, such as 0.999, which is then scored and kept; 0 for none."""
    scale_inputs: float = field(default=0.0, metadata=SINCE)
    """Scale the first layers before training, so that what they give has this root mean square; 0 leaves them alone."""
    patience: int = field(default=0, metadata=SINCE)
    """Epochs without a better score on dev after which training stops; 0 goes on to the last epoch."""
    least_updates: int = field(default=0, metadata=SINCE)
    """Updates that training takes at least: no stopping before; `meq train` adds epochs if none were asked for."""
    class_weight: str = field(default="none", metadata=SINCE)
    """What a class counts in the loss: none (all alike), balanced (each class of train as much as any other), or a JSON
    file that maps labels to weights."""
    label_smoothing: float = field(default=0.0, metadata=SINCE)
    """Share of a label's weight that is spread over all classes."""
    trackers: tuple[str, ...] = ()
    """Experiment tracker that Accelerate knows by name: tensorboard, wandb, mlflow, trackio; repeatable."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "monitor_samples", "monitor_probes"):
            _check_whole(name, getattr(self, name), least=1)
        _check_whole("radius_samples", self.radius_samples, least=0)
        for name in ("supervise", "patience", "least_updates"):
            _check_whole(name, getattr(self, name), least=0)
        real_number("label_smoothing", self.label_smoothing, wanted="must lie in [0, 1)", low=0.0, high=1.0)
        if not isinstance(self.class_weight, str) or not self.class_weight:
            raise ValueError(f"class_weight must be none, balanced or a file, got {self.class_weight!r}")
        object.__setattr__(self, "depth", str(parse_depth(self.depth)))
        for name, wanted in (("random_start", "is a share, from 0 to 1"), ("path_noise", "must be 0 or positive")):
            real_number(name, getattr(self, name), wanted=wanted, low=0.0, high=1 + 1e-9 if "share" in wanted else 1e9)
        real_number("scale_inputs", self.scale_inputs, wanted="must be 0 or positive", low=0.0, high=1e9)
        real_number("average", self.average, wanted="must lie in [0, 1)", low=0.0, high=1.0)
        real_number("supervise_decay", self.supervise_decay, wanted="must lie in [0, 1]", low=0.0, high=1 + 1e-9)
        _check_whole("seed", self.seed, least=-(2**63))
        if self.seed >= 2**64:
            raise ValueError(f"seed must be less than 2**64, got {self.seed}")
        for name in ("learning_rate", "clip", "weight_decay", "warmup"):
            value, positive = getattr(self, name), name in ("learning_rate", "clip")
            # NaN and infinity are no numbers to train with, and compare as false with everything
            finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not finite or value < 0 or (positive and value == 0):
                words = "positive" if positive else "not negative"
                raise ValueError(f"{name} must be {words} and finite, got {value!r}")
        if not self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1), got {self.warmup}: it is a share of all steps")
        for name, known in (("decay", DECAYS), ("select", SELECTIONS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} cannot be {value!r}: {nearest(str(value), known)}")
        if isinstance(self.trackers, str) or not all(isinstance(each, str) for each in self.trackers):
            raise TypeError(f"trackers must be a tuple of names such as ('tensorboard',), got {self.trackers!r}")

    def to_json(self) -> dict[str, Any]:
        """All options; those that older versions did not have only where they are set, as their records are."""
        unset = [each.name for each in fields(self) if each.metadata and getattr(self, each.name) == each.default]
        values = {**asdict(self), "trackers": list(self.trackers)}
        return {name: value for name, value in values.items() if name not in unset}


def _check_whole(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_depth(model: FusionModel, config: TrainConfig) -> None:
    """An error for options of depth that this model cannot have."""
    asked = asked_depth(config)
    if asked and model.operator is None:
        raise ValueError(
            f"{type(model).__name__} does not iterate, so it has no depth to train: leave out {', '.join(asked)}"
        )
    backward, depth = type(getattr(model, "backward", None)).__name__, parse_depth(config.depth)
    if getattr(depth, "tracked", None) and not depth.per_sample and backward not in ("Unrolled", "NoneType"):
        raise ValueError(
            f"the depth {config.depth!r} and the backward {backward!r} both say which steps have gradients: leave one "
            "of them out"
        )
    if config.path_noise and backward in ("Checkpointed", "Implicit"):
        raise ValueError(
            f"path_noise cannot go with the backward {backward!r}, which computes steps again with other noise: use "
            "unrolled or phantom"
        )
    if config.supervise != 1 and depth.per_sample:
        raise ValueError(
            "supervise cannot go with a depth per sample: the last steps of one are not those of another; leave it at 1"
        )
    if config.supervise != 1 and backward == "Implicit":
        raise ValueError("supervise cannot go with the backward 'Implicit', which has no gradients of earlier steps")


def asked_depth(config: TrainConfig) -> list[str]:
    """The options of depth that are set."""
    depths = ("depth", "random_start", "path_noise", "supervise")
    return [name for name in depths if getattr(config, name) != getattr(PLAIN, name)]


PLAIN = TrainConfig()
SMALL = TrainConfig(epochs=15, batch_size=64, learning_rate=1e-3, patience=5, least_updates=100)
"""How small models are trained unless told otherwise."""


# -- what model, data and options must have in common ------------------------------------------------------------------


def check_splits(data: DataSet, config: TrainConfig) -> None:
    """An error if there is nothing to train on, nothing to choose the epoch by, not enough for one update, or if the
    loss is to weigh labels that the data does not have."""
    from meq.training.imbalance import check_class_weight  # which imports torch

    for name in ("train", "dev"):
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
    check_class_weight(data, config)


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
    if model.classes is not None and model.answering != tuple(data.answering):
        raise ValueError(
            f"in {data.name} the tokens of {_listed(data.answering)} have answers, and the model answers for those of "
            f"{_listed(model.answering)}: build it with answering={tuple(data.answering)!r}"
        )
    widths, given = model.widths, {name: modality.width for name, modality in data.modalities.items()}
    if set(widths) != set(given):
        raise ValueError(
            f"the model reads the modalities {_listed(widths)}, and {data.name} has {_listed(given)}: build the model "
            "with the widths of the data"
        )
    for name, width in widths.items():
        if given[name] != width:
            came = "raw contents, which must be encoded first" if given[name] is None else f"features of {given[name]}"
            raise ValueError(f"the model reads {name!r} as features of width {width}, and {data.name} has {came}")


def check_trackers(names: tuple[str, ...]) -> None:
    """Accelerate leaves out a tracker that is not installed; a run that should be tracked must not go untracked."""
    from accelerate.tracking import get_available_trackers
    from accelerate.utils import LoggerType

    known = [str(each.value) for each in LoggerType if each is not LoggerType.ALL]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no tracker {name!r}: {nearest(name, known)}")
    available = {str(getattr(tracker, "value", tracker)) for tracker in get_available_trackers()}
    missing = [name for name in names if name not in available]
    if missing:
        packages = ["'meq[tracking]'" if name == EXTRA else name for name in missing]
        raise ValueError(f"the trackers {', '.join(missing)} are not installed: pip install {' '.join(packages)}")


def _listed(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8:,} more" if len(shown) > 8 else "")
