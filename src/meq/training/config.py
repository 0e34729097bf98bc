"""What a run is made of, apart from model and data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from meq.core.options import checked_options, nearest
from meq.training.optimiser import DECAYS

SELECTIONS = ("best", "last")
PRECISIONS = ("no", "bf16")


@checked_options
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The training recipe; the defaults are the paper's where it states one."""

    epochs: int = 10
    batch_size: int = 32
    """Samples per process and micro-batch; the update sees batch_size x processes x accumulate of them."""
    accumulate: int = 1
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    warmup: float = 0.05
    decay: str = "cosine"
    clip: float = 1.0
    """The largest norm of the whole gradient."""
    precision: str = "no"
    seed: int = 0
    select: str = "best"
    """Which weights are kept: those of the best epoch by the data set's metric on the dev split, or the last."""
    checkpoint_every: int = 200
    """Steps between checkpoints; there is one at the end of every epoch too."""
    stop_on_alarm: bool = False
    monitor_samples: int = 32
    """How many dev samples the once-per-epoch measurements look at."""
    radius_samples: int = 2
    trackers: tuple[str, ...] = ()
    """Experiment trackers that Accelerate knows by name: tensorboard, wandb, mlflow, trackio, ..."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "monitor_samples"):
            _check_whole(name, getattr(self, name), least=1)
        _check_whole("radius_samples", self.radius_samples, least=0)
        _check_whole("seed", self.seed, least=-(2**63))
        if self.seed >= 2**64:
            raise ValueError(f"seed must be less than 2**64, got {self.seed}")
        for name in ("learning_rate", "clip", "weight_decay", "warmup"):
            _check_number(name, getattr(self, name), positive=name in ("learning_rate", "clip"))
        if not self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1), got {self.warmup}: it is a share of all steps")
        for name, known in (("decay", DECAYS), ("select", SELECTIONS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} cannot be {value!r}: {nearest(str(value), known)}")
        if isinstance(self.trackers, str) or not all(isinstance(each, str) for each in self.trackers):
            raise TypeError(f"trackers must be a tuple of names such as ('tensorboard',), got {self.trackers!r}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "trackers": list(self.trackers)}


def _check_whole(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_number(name: str, value: Any, *, positive: bool) -> None:
    """NaN and infinity are no numbers to train with, and compare as false with everything."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not known or value < 0 or (positive and value == 0):
        raise ValueError(f"{name} must be {'positive' if positive else 'not negative'} and finite, got {value!r}")
