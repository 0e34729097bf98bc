"""Heads turn a summary vector into the answer that the task asks for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from meq.models.blocks import MLP
from meq.options import nearest

HEADS = {
    "classes": "one of C classes: logits for a softmax",
    "labels": "any of C labels, with soft targets (VQA): logits for C sigmoids",
    "choices": "one of A choices, each scored by the same model (VCR): logits for a softmax over the choices",
    "score": "one number (regression)",
    "tokens": "one of C classes for every token of the modalities that answer: logits for a softmax per token",
    "ordinal": "one of C ordered classes (sentiment): log-probabilities from one score and C - 1 thresholds",
}


def make_head(kind: str, width: int, classes: int, hidden: int) -> nn.Module:
    """An MLP of one hidden layer that answers in the form `kind` asks for; see HEADS."""
    if kind not in HEADS:
        raise ValueError(f"there is no head {kind!r}: {nearest(kind, HEADS)}")
    if kind == "ordinal":
        return OrdinalHead(width, classes, hidden)
    return MLP(width, hidden, 1 if kind in ("choices", "score") else classes)


def probabilities(logits: Float[Tensor, "*axes C"], kind: str) -> Float[Tensor, "*axes C"]:
    """What a head's logits say of each class: any of several labels (sigmoid), or one of them (softmax)."""
    return logits.sigmoid() if kind == "labels" else logits.softmax(-1)


def by_example(rows: Shaped[Tensor, R * axes], choices: int) -> Shaped[Tensor, "B A *axes"]:
    """Multiple choice has a row per choice, R = B A; those of an example come one after the other."""
    return rows.unflatten(0, (-1, choices))


class OrdinalHead(nn.Module):
    """log P(y = k) = log (sigmoid(s - t_k) - sigmoid(s - t_{k+1})), thresholds t in ascending order."""

    def __init__(self, width: int, classes: int, hidden: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"an ordinal head needs at least two classes, got {classes}")
        self.score = MLP(width, hidden, 1)
        self.first = nn.Parameter(torch.tensor([2.0 - classes]))
        self.gaps = nn.Parameter(torch.full((classes - 2,), 1.8546))  # softplus of this is 2: every class can win

    def forward(self, x: Float[Tensor, "B W"]) -> Float[Tensor, "B C"]:
        thresholds = torch.cat([self.first, self.first + F.softplus(self.gaps).cumsum(0)])
        above = self.score(x) - thresholds  # B C-1: logits of y > k
        # log(sigmoid(a) - sigmoid(b)) with a > b, written so that neither tail loses its digits
        between = torch.log(-torch.expm1(-thresholds.diff()))
        inner = F.logsigmoid(above[:, :-1]) + F.logsigmoid(-above[:, 1:]) + between
        return torch.cat([F.logsigmoid(-above[:, :1]), inner, F.logsigmoid(above[:, -1:])], dim=1)
