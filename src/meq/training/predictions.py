"""What a model answers to a split, example by example: computed, scored, and kept as a Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor

from meq.core.operator import held_still
from meq.data.contract import Batch, DataSet, Example, Split, collate
from meq.data.metrics import Metric
from meq.devices import device_of
from meq.encoders.contract import Progress
from meq.models.base import FusionModel, Output
from meq.objectives import task_loss
from meq.records import write_bytes

BATCH_SIZE = 64
"""Of a model whose training is not known. A run's own batch size pads as its recorded answers were: same bits."""


class PredictionsError(ValueError):
    """A file that does not hold predictions; the message names it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The answers to one split, in its order."""

    ids: Sequence[str]
    logits: Float[Tensor, "N C"] | Float[Tensor, "N T C"]
    """For answers per token (N T C): an example's tokens come first, then zeros up to the T of the longest."""
    target: Tensor
    """(N) for classes, choices and scores, (N C) for soft labels, (N T) for tokens, negative where none is asked."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.logits) == len(self.target):
            raise PredictionsError(
                f"{len(self.ids)} ids, {len(self.logits)} logits and {len(self.target)} targets: each once per example"
            )


def predict_split(
    model: FusionModel,
    data: DataSet,
    split: str,
    *,
    batch_size: int = BATCH_SIZE,
    accelerator: Accelerator | None = None,
    progress: Progress | None = None,
    look: Callable[[Output], None] | None = None,
) -> Predictions:
    """Every example's answer, in the order of the split. Processes of an accelerator share the work; all get all.

    `look` is shown every output of this process.
    """
    examples, (world, rank) = data.splits[split], (1, 0)
    if accelerator is not None:
        world, rank = accelerator.num_processes, accelerator.process_index
    rows: list[tuple[str, Tensor, Tensor]] = []
    with held_still(model):  # once for all batches: a model has many parts
        for part in batched(examples, batch_size, rank, world):
            batch, output = _answer(model, collate(part, data.widths, data.answering), accelerator)
            if look is not None:
                look(output)
            rows += zip(batch.ids, *answer_rows(output, batch.target), strict=True)
            if progress is not None:
                progress(f"scoring {split}", len(rows), len(examples))
    if world > 1:
        shares = gather_object([rows])  # what process r of P took was every P-th example from r on
        rows = [shares[place % world][place // world] for place in range(len(examples))]
    logits, target = _stacked([row[1] for row in rows], 0), _stacked([row[2] for row in rows], -1)
    return Predictions(ids=[row[0] for row in rows], logits=logits, target=target)


def answer_rows(output: Output, target: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Logits and target of each example, on the CPU; of answers per token those of its real tokens."""
    logits, target = answer_logits(output).cpu(), target.cpu()
    if output.answered is None:
        return list(logits), list(target)
    real = output.answered.cpu()
    asked = target if target.shape == real.shape else torch.full(real.shape, -1)  # to be predicted: nothing is known
    return [x[row] for x, row in zip(logits, real, strict=True)], [y[row] for y, row in zip(asked, real, strict=True)]


def _stacked(rows: list[Tensor], filling: int) -> Tensor:
    """Rows of one shape, or of different numbers of tokens, filled up to the longest."""
    if len({x.shape for x in rows}) > 1:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filling)
    return torch.stack(rows)


def batched(examples: Split, size: int, first: int = 0, step: int = 1) -> Iterator[list[Example]]:
    """The examples, or every `step`-th of them from `first` on, so many at a time."""
    mine = range(first, len(examples), step)
    for start in range(0, len(mine), size):
        yield [examples[row] for row in mine[start : start + size]]


def answer_batch(
    model: FusionModel,
    examples: Sequence[Example],
    widths: Mapping[str, int],
    answering: Sequence[str] = (),
    *,
    accelerator: Accelerator | None = None,
) -> tuple[Batch, Output]:
    """What the model says of these examples: dropout off, no gradient, on the accelerator's device and precision."""
    with held_still(model):
        return _answer(model, collate(examples, widths, answering), accelerator)


def _answer(model: FusionModel, batch: Batch, accelerator: Accelerator | None) -> tuple[Batch, Output]:
    """`answer_batch` of a model that is held still."""
    with torch.no_grad():
        if accelerator is None:
            batch = batch.to(device_of(model))
            return batch, model(batch.features, batch.masks)
        batch = batch.to(accelerator.device)
        with accelerator.autocast():
            return batch, model(batch.features, batch.masks)


def without_targets(examples: Split) -> list[Example]:
    """Examples that can be collated though nothing is known of their answers: the target is a zero."""
    return [replace(example, target=torch.zeros(())) for example in examples]


def answer_logits(output: Output) -> Tensor:
    """The logits of an output, in single precision; an error for a model without a head."""
    if output.logits is None:
        raise ValueError("this model was built with classes=None: it has no head to answer with")
    return output.logits.float()


def scores(metrics: Sequence[Metric], task: str, predictions: Predictions) -> dict[str, float]:
    """Every metric, and the mean loss of the task: of what is kept on disk, so that it can be computed again."""
    found = {metric.name: metric(predictions.logits, predictions.target) for metric in metrics}
    return {**found, "loss": float(task_loss(task)(predictions.logits, predictions.target).double().mean())}


def labelled(split: Split) -> bool:
    """There is something to score: a split whose labels its makers kept can only be predicted."""
    return len(split) > 0 and split[0].target is not None


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Columns id, target and logits; the file appears whole or not at all."""
    import pyarrow as pa  # type: ignore[import-untyped]

    columns = {
        "id": pa.array(list(predictions.ids), pa.string()),
        "target": _column(predictions.target),
        "logits": _column(predictions.logits),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, as_parquet(columns))


def as_parquet(columns: Mapping[str, Any]) -> bytes:
    """A Parquet file of these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_predictions(path: Path) -> Predictions:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(path.read_bytes())).read()  # read_table would import pandas
    except (OSError, pa.ArrowException) as error:
        raise PredictionsError(f"{path}: not a readable Parquet file: {error}") from error
    if table.column_names != ["id", "target", "logits"]:
        raise PredictionsError(
            f"{path}: expected the columns id, target, logits, found {', '.join(table.column_names)}"
        )
    try:
        ids = table["id"].to_pylist()
        return Predictions(ids=ids, logits=_tensor(table["logits"]), target=_tensor(table["target"]))
    except (pa.ArrowException, ValueError, TypeError, UnicodeDecodeError) as error:
        raise PredictionsError(f"{path}: {error}") from error


def _column(x: Tensor) -> Any:
    """A row's numbers, or its only one, in the type they have."""
    import pyarrow as pa

    values = pa.array(x.detach().cpu().contiguous().numpy().reshape(-1))
    for size in reversed(x.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values


def _tensor(column: Any) -> Tensor:
    import numpy as np
    import pyarrow as pa

    rows = values = column.combine_chunks()
    shape = [len(rows)]
    while pa.types.is_fixed_size_list(values.type) and len(shape) < 3:
        if values.null_count:
            raise PredictionsError("an entry is empty")
        shape.append(values.type.list_size)
        values = values.flatten()
    if values.null_count:
        raise PredictionsError("an entry is empty")
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise PredictionsError(f"target and logits are numbers, or as many per row, not {rows.type}")
    kind, end = values.type.to_pandas_dtype(), values.offset + len(values)  # asking for an array would import pandas
    numbers = np.frombuffer(values.buffers()[1], dtype=kind, count=end)[values.offset :] if end else np.zeros(0, kind)
    return torch.from_numpy(numbers.copy()).reshape(shape)
