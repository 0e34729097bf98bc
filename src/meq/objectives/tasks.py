"""The loss of the task, sample by sample: one function per kind of head (`meq.models.heads.HEADS`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from meq.options import nearest

TaskLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, target) -> the loss of each sample, in float32 or better."""


def task_loss(kind: str) -> TaskLoss:
    """The loss for one kind of head."""
    if kind not in TASKS:
        raise ValueError(f"there is no task {kind!r}: {nearest(kind, TASKS)}")
    return TASKS[kind]


def shaped_loss(kind: str, *, weights: Sequence[float] = (), smoothing: float = 0.0) -> TaskLoss:
    """The loss for one kind of head, with a weight per label and with smoothed labels; an error where it has neither.

    A weight multiplies the loss of the samples, or tokens, of that class; of several labels, the part of a sample that
    has the label.
    """
    plain = task_loss(kind)
    if not weights and not smoothing:
        return plain
    check_shaping(kind, weighted=bool(weights), smoothed=bool(smoothing))
    return partial(SHAPED[kind], weights=tuple(weights), smoothing=smoothing)


def check_shaping(kind: str, *, weighted: bool, smoothed: bool) -> None:
    """An error for a kind of answer whose loss has no weights of classes, or no labels to smooth."""
    if weighted and kind not in WEIGHTED:
        why = "an answer is one of the choices of its own example" if kind == "choices" else "there are no classes"
        raise ValueError(f"class_weight has no meaning for the task {kind!r}, where {why}: leave it out")
    if smoothed and kind not in SHAPED:
        raise ValueError(f"label_smoothing has no meaning for the task {kind!r}, which has no labels: leave it out")


def cross_entropy(logits: Float[Tensor, "B C"], target: Tensor) -> Float[Tensor, " B"]:
    """-log softmax(logits)[target]: one of C classes, or of C choices."""
    return F.cross_entropy(_precise(logits), _check_classes(logits, target), reduction="none")


def binary_cross_entropy(logits: Float[Tensor, "B C"], target: Tensor) -> Float[Tensor, " B"]:
    """-sum_c (t_c log s_c + (1 - t_c) log(1 - s_c)), s = sigmoid(logits), for soft targets t in [0, 1].

    Summed over the labels, as is usual for VQA: a mean would make the few right answers of thousands count for nothing.
    """
    target = _check_numbers(target, tuple(logits.shape))
    outside = ((target < 0) | (target > 1)).any(1)
    if bool(outside.any()):
        raise ValueError(f"soft labels must lie in [0, 1]; {_rows(outside)} of the target have others")
    logits = _precise(logits)
    return F.binary_cross_entropy_with_logits(logits, target.to(logits), reduction="none").sum(1)


def smooth_l1(logits: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    """d^2 / 2 for an error d of at most 1, |d| - 1/2 beyond: smooth near the target, and an outlier does not dominate.

    The score may come as (B 1) or (B), and so may the target.
    """
    if logits.ndim > 2 or logits.shape[1:].numel() != 1:
        raise ValueError(f"a score is one number per sample, but the logits have shape {tuple(logits.shape)}")
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    score = _precise(logits).reshape(len(logits))
    target = _check_numbers(target, tuple(score.shape))
    return F.smooth_l1_loss(score, target.to(score), reduction="none")


def ordinal_nll(logits: Float[Tensor, "B C"], target: Tensor) -> Float[Tensor, " B"]:
    """-logits[target]: an ordinal head's logits are log-probabilities already."""
    return F.nll_loss(_precise(logits), _check_classes(logits, target), reduction="none")


def token_cross_entropy(logits: Tensor, target: Tensor) -> Float[Tensor, " B"]:
    """The mean over a sample's tokens of -log softmax(logits)[target]; tokens with a negative target are not asked.

    Logits are (B N C), the target (B N). A sample that is asked nothing has a loss of 0.
    """
    if logits.ndim != 3:
        raise ValueError(f"answers per token are logits of shape (B N C), got {tuple(logits.shape)}")
    _check_whole(target)
    _check_shape(target, tuple(logits.shape[:2]))
    outside = (target >= logits.shape[2]).any(1)
    if bool(outside.any()):
        raise ValueError(f"the target must be at most {logits.shape[2] - 1}; {_rows(outside)} have tokens beyond")
    asked = target >= 0
    losses = F.cross_entropy(_precise(logits).mT, target.long().clamp(min=0), reduction="none")
    return (losses * asked).sum(1) / asked.sum(1).clamp(min=1)


TASKS: Mapping[str, TaskLoss] = {
    "classes": cross_entropy,
    "labels": binary_cross_entropy,
    "choices": cross_entropy,
    "tokens": token_cross_entropy,
    "score": smooth_l1,
    "ordinal": ordinal_nll,
}


# -- weights of classes, smoothed labels -------------------------------------------------------------------------------


def _shaped_classes(
    logits: Tensor, target: Tensor, *, weights: Sequence[float], smoothing: float, logs: bool = False
) -> Float[Tensor, " B"]:
    """-w_y ((1 - e) log p_y + e mean_c log p_c); `logs`: the logits are log-probabilities already."""
    target = _check_classes(logits, target)
    return _shaped(_precise(logits) if logs else F.log_softmax(_precise(logits), 1), target, weights, smoothing)


def _shaped_tokens(logits: Tensor, target: Tensor, *, weights: Sequence[float], smoothing: float) -> Tensor:
    """The mean over a sample's asked tokens, each weighted by its class."""
    token_cross_entropy(logits.detach(), target)  # its checks
    asked, log = target >= 0, F.log_softmax(_precise(logits), -1)
    losses = _shaped(log.flatten(0, 1), target.long().clamp(min=0).flatten(), weights, smoothing).reshape(asked.shape)
    return (losses * asked).sum(1) / asked.sum(1).clamp(min=1)


def _shaped_labels(logits: Tensor, target: Tensor, *, weights: Sequence[float], smoothing: float) -> Tensor:
    """-sum_c (w_c t_c log s_c + (1 - t_c) log(1 - s_c)), with t moved towards 1/2 by the smoothing."""
    binary_cross_entropy(logits.detach(), target)  # its checks
    logits = _precise(logits)
    soft = target.to(logits) * (1 - smoothing) + smoothing / 2
    present = torch.tensor(weights or [1.0] * logits.shape[1], dtype=logits.dtype, device=logits.device)
    return F.binary_cross_entropy_with_logits(logits, soft, reduction="none", pos_weight=present).sum(1)


def _shaped(log: Tensor, target: Tensor, weights: Sequence[float], smoothing: float) -> Tensor:
    chosen = -log.gather(1, target[:, None])[:, 0]
    if smoothing:  # an impossible choice, whose logarithm is minus infinity, has no share
        real = log.isfinite()
        spread = -log.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
        chosen = (1 - smoothing) * chosen + smoothing * spread
    return chosen * torch.tensor(weights, dtype=log.dtype, device=log.device)[target] if weights else chosen


WEIGHTED = ("classes", "ordinal", "tokens", "labels")
SHAPED: Mapping[str, Callable[..., Tensor]] = {
    "classes": _shaped_classes,
    "choices": _shaped_classes,
    "ordinal": partial(_shaped_classes, logs=True),
    "tokens": _shaped_tokens,
    "labels": _shaped_labels,
}


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check_classes(logits: Tensor, target: Tensor) -> Tensor:
    """One whole number in [0, C) per sample. On an accelerator a wrong one would be an assertion without a name."""
    _check_whole(target)
    _check_shape(target, tuple(logits.shape[:1]))
    outside = (target < 0) | (target >= logits.shape[1])
    if bool(outside.any()):
        first = int(target[outside][0])
        raise ValueError(
            f"the target must lie between 0 and {logits.shape[1] - 1}; {_rows(outside)} do not, the first is {first}"
        )
    return target.long()


def _check_whole(target: Tensor) -> None:
    if target.is_floating_point() or target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"the target must be whole numbers, the index of each sample's class, got {target.dtype}")


def _check_numbers(target: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not target.is_floating_point():
        raise TypeError(f"the target must be floating-point numbers, got {target.dtype}")
    _check_shape(target, shape)
    broken = ~torch.isfinite(target).reshape(len(target), -1).all(1)
    if bool(broken.any()):
        raise ValueError(f"the target must be finite; {_rows(broken)} are not")
    return target


def _check_shape(target: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(target.shape) != shape:
        raise ValueError(f"the target has shape {tuple(target.shape)}; with these logits it must be {shape}")


def _rows(which: Tensor) -> str:
    return f"rows {which.nonzero().flatten().tolist()[:8]}"
