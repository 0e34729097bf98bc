"""fit(): training on Accelerate, with checkpoints that survive anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.training.alarms import Alarm, Vitals
    from meq.training.checkpoint import CheckpointError, Checkpoints
    from meq.training.config import TrainConfig
    from meq.training.fit import fit
    from meq.training.updates import TrainingError, seed_everything
else:
    make_lazy(__name__)

__all__ = [
    "Alarm",
    "CheckpointError",
    "Checkpoints",
    "TrainConfig",
    "TrainingError",
    "Vitals",
    "fit",
    "seed_everything",
]
