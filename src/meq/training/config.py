"""What a run is made of, apart from model and data."""

from __future__ import annotations

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
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or self.clip <= 0 or self.weight_decay < 0:
            raise ValueError("learning_rate and clip must be positive, weight_decay not negative")
        for name, known in (("decay", DECAYS), ("select", SELECTIONS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} cannot be {getattr(self, name)!r}: {nearest(getattr(self, name), known)}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "trackers": list(self.trackers)}
