"""Objective: the task's loss and the penalties, one number to minimise and everything worth looking at beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from meq.objectives.penalties import Penalty
from meq.objectives.probe import Evaluation
from meq.objectives.tasks import TaskLoss, shaped_loss
from meq.options import checked_options


@dataclass(frozen=True, eq=False)
class Loss:
    """What an objective makes of one batch. Only `total` carries gradients."""

    total: Float[Tensor, ""]
    """The task's mean and the weighted terms."""
    task: Float[Tensor, ""]
    per_sample: Float[Tensor, " B"]
    """The task's loss of each sample."""
    terms: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    """Unweighted batch means of the penalties, by name."""
    statistics: dict[str, Float[Tensor, " R"]] = field(default_factory=dict)
    """What the penalties saw, per sample (per choice, for multiple choice): "residual/image", "jacobian_norm",
    "cross/image<-text", "self/image". NaN where a sample lacks the modality, or diverged and was left out."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class Objective:
    """L = mean task loss + sum_p weight_p mean penalty_p.

    All penalties share one evaluation of T at the read state, which is not made if none of them has a weight. A tree is
    held at its root, the pair that is read.

    >>> objective = meq.Objective(penalties=[meq.JacobianRange(weight=0.5)])
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> objective(model, out, torch.tensor([0, 2])).total.shape  # one number
    torch.Size([])
    """

    task: str = "classes"
    """A kind of head, see `meq.models.heads.HEADS`."""
    penalties: tuple[Penalty, ...] = ()
    decay: float = 1.0
    """Where earlier steps are supervised too (`output.along`): the weight of a step, relative to the one after it."""
    class_weights: tuple[float, ...] = ()
    """One per label, which multiplies the loss of its samples; none where all count alike."""
    label_smoothing: float = 0.0
    """Share of a label's weight that is spread over all classes."""

    def __post_init__(self) -> None:
        self._task_loss()
        names = [penalty.name for penalty in self.penalties]
        if len(set(names)) != len(names):
            raise ValueError(f"an objective has each penalty once, got {names}")

    def __call__(
        self,
        model: Any,
        output: Any,
        target: Tensor,
        *,
        seeds: Int[Tensor, " B"] | None = None,
        weight: Float[Tensor, " B"] | None = None,
    ) -> Loss:
        """`model` has the iterated map as `operator`; `output`, which it gave, has `logits` and `solution`.

        With `seeds`, one per sample, the penalties' random probes depend on nothing else. `weight` says how much each
        sample counts in the task's mean; penalties hold for all alike.
        """
        if output.logits is None:
            raise ValueError("the model was built with classes=None: it has no logits to compare with a target")
        answered = getattr(output, "answered", None)
        if answered is not None and answered.shape == target.shape:  # a modality that was dropped is not asked
            target = target.masked_fill(~answered, -1)
        task_loss = self._task_loss()
        per_sample = task_loss(output.logits, target)
        if seeds is not None and len(seeds) != len(per_sample):
            raise ValueError(f"there are {len(seeds)} seeds for {len(per_sample)} samples: give one per sample")
        task = total = mean_loss(per_sample, weight)
        if along := getattr(output, "along", ()):
            weights = [self.decay**before for before in range(len(along), 0, -1)]
            earlier = [mean_loss(task_loss(logits, target), weight) for logits in along]
            total = (task + sum(w * x for w, x in zip(weights, earlier, strict=True))) / (1 + sum(weights))
        terms, statistics = {}, {}
        active = [penalty for penalty in self.penalties if penalty.weight > 0]
        if active:
            evaluation = self._evaluate(active, model, output, seeds)
            statistics = {f"residual/{name}": x for name, x in evaluation.residuals.items()}
            for penalty in active:
                measured = penalty.measure(evaluation)
                term = evaluation.mean(measured.per_sample)
                total = total + penalty.weight * term
                terms[penalty.name] = term.detach()
                statistics |= measured.statistics
            statistics = {name: evaluation.everyone(x) for name, x in statistics.items()}
        return Loss(total, task.detach(), per_sample.detach(), terms, statistics)

    def _task_loss(self) -> TaskLoss:
        return shaped_loss(self.task, weights=self.class_weights, smoothing=self.label_smoothing)

    @staticmethod
    def _evaluate(active: list[Penalty], model: Any, output: Any, seeds: Tensor | None) -> Evaluation:
        if model.operator is None or output.solution is None:
            names = " and ".join(type(penalty).__name__ for penalty in active)
            raise ValueError(
                f"{names} cannot be measured: {type(model).__name__} does not iterate, so there is no map to hold. "
                "Give it an objective without penalties, or with weight 0"
            )
        split = max(penalty.split_probes for penalty in active)
        return Evaluation.at(model.operator, output.solution, seeds=seeds, split=split)


def mean_loss(per_sample: Float[Tensor, " B"], weight: Float[Tensor, " B"] | None = None) -> Float[Tensor, ""]:
    """sum_i w_i l_i / sum_i w_i, and 0 where no sample counts."""
    if weight is None:
        return per_sample.mean()
    if weight.shape != per_sample.shape:
        raise ValueError(f"there are {tuple(weight.shape)} weights for {len(per_sample)} samples: give one per sample")
    weight = weight.to(per_sample)
    return (weight * per_sample).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
