"""What is minimised: the task's loss, and penalties on the map at the state that was read."""

from meq.objectives.objective import Loss, Objective, mean_loss
from meq.objectives.penalties import (
    PENALTIES,
    CrossFloor,
    JacobianRange,
    Penalty,
    PenaltyValues,
    ResidualCorrection,
    register_penalty,
)
from meq.objectives.probe import Evaluation
from meq.objectives.tasks import task_loss

__all__ = [
    "PENALTIES",
    "CrossFloor",
    "Evaluation",
    "JacobianRange",
    "Loss",
    "Objective",
    "Penalty",
    "PenaltyValues",
    "ResidualCorrection",
    "mean_loss",
    "register_penalty",
    "task_loss",
]
