"""A model's answers to a split, shared out among the processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from meq.data.contract import DataSet, Split, collate
from meq.data.metrics import Metric
from meq.models.base import FusionModel
from meq.objectives import task_loss
from meq.training.predictions import Predictions

Row = tuple[str, Tensor, Tensor]


def predict_split(
    model: FusionModel, data: DataSet, split: str, *, accelerator: Accelerator, batch_size: int
) -> Predictions:
    """Every example's answer, in the order of the split, on every process."""
    examples = data.splits[split]
    world, rank = accelerator.num_processes, accelerator.process_index
    rows: list[Row] = []
    model.eval()
    with torch.no_grad(), accelerator.autocast():
        mine = range(rank, len(examples), world)
        for start in range(0, len(mine), batch_size):
            part = mine[start : start + batch_size]
            batch = collate([examples[row] for row in part], data.widths).to(accelerator.device)
            logits = model(batch.features, batch.masks).logits
            rows += zip(batch.ids, logits.float().cpu(), batch.target.cpu(), strict=True)
    if world > 1:
        rows = _interleaved(gather_object([rows]))
    logits, target = torch.stack([row[1] for row in rows]), torch.stack([row[2] for row in rows])
    return Predictions(ids=[row[0] for row in rows], logits=logits, target=target)


def scores(metrics: Sequence[Metric], task: str, predictions: Predictions) -> dict[str, float]:
    """Every metric, and the mean loss of the task: of what is kept on disk, so that it can be computed again."""
    found = {metric.name: metric(predictions.logits, predictions.target) for metric in metrics}
    return {**found, "loss": float(task_loss(task)(predictions.logits, predictions.target).double().mean())}


def labelled(split: Split) -> bool:
    """There is something to score: a split whose labels its makers kept can only be predicted."""
    return len(split) > 0 and split[0].target is not None


def _interleaved(shares: list[list[Any]]) -> list[Any]:
    """What process r of P took was every P-th element from r on."""
    merged: list[Any] = [None] * sum(len(share) for share in shares)
    for rank, share in enumerate(shares):
        merged[rank :: len(shares)] = share
    return merged
