"""What a data set is scored by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named score over all predictions of a split; higher is better."""

    name: str
    score: Callable[[Tensor, Tensor], float]
    """(logits N C, targets N ...) -> number"""

    def __call__(self, logits: Tensor, target: Tensor) -> float:
        return self.score(logits, target)


def _accuracy(logits: Tensor, target: Tensor) -> float:
    return (logits.argmax(1) == target).double().mean().item()


ACCURACY = Metric(name="accuracy", score=_accuracy)
