"""What `meq.fit` gives back: how every epoch went, and whose weights the model has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one epoch came to."""

    epoch: int
    """Counted from 0."""
    step: int
    """Updates so far."""
    train_loss: float
    dev_loss: float | None = None
    score: float | None = None
    """By the metric, on dev."""
    seconds: float
    """Since training began."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """How training went. The model itself holds the weights of the best epoch."""

    history: tuple[Epoch, ...]
    best_epoch: int
    """Whose weights the model has: the best on dev, or the last."""
    seconds: float
    task: str
    """The kind of answer that the loss was for, see `meq.models.heads.HEADS`."""
    metric: str | None
    why: str
    """Why it ended, in words."""

    @property
    def best(self) -> Epoch:
        return self.history[self.best_epoch]

    def __str__(self) -> str:
        best, first = self.best, self.history[0]
        numbers = [f"train loss {first.train_loss:.3g} -> {best.train_loss:.3g}"]
        if best.dev_loss is not None:
            numbers.append(f"dev loss {first.dev_loss:.3g} -> {best.dev_loss:.3g}")
        if best.score is not None:
            numbers.append(f"{self.metric} {first.score:.3f} -> {best.score:.3f}")
        count = f"{len(self.history)} epoch{'s' if len(self.history) > 1 else ''}"
        return (
            f"{count}, {self.history[-1].step} updates, {self.seconds:.1f} s: {self.why}\n"
            f"the weights are those of epoch {self.best_epoch}: {', '.join(numbers)}"
        )
