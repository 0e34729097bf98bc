"""fit(): training on Accelerate, with checkpoints that survive anything."""

from meq.training.alarms import Alarm, Vitals
from meq.training.checkpoint import CheckpointError, Checkpoints
from meq.training.config import TrainConfig
from meq.training.fit import TrainingError, fit
from meq.training.seeds import seed_everything

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
