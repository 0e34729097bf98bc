"""What is minimised: the task's loss, and penalties on the map at the state that was read."""

from meq.objectives.correction import ResidualCorrection
from meq.objectives.evaluation import Evaluation
from meq.objectives.floors import CrossFloor
from meq.objectives.jacobian_range import JacobianRange
from meq.objectives.objective import Loss, Objective
from meq.objectives.penalty import Penalty
from meq.objectives.tasks import task_loss

__all__ = [
    "CrossFloor",
    "Evaluation",
    "JacobianRange",
    "Loss",
    "Objective",
    "Penalty",
    "ResidualCorrection",
    "task_loss",
]
