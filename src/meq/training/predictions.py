"""What a model answered, example by example: a Parquet file per split, enough to recompute every metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from meq.files import write_bytes


class PredictionsError(ValueError):
    """A file that does not hold predictions; the message names it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The answers to one split, in its order."""

    ids: Sequence[str]
    logits: Float[Tensor, "N C"]
    target: Tensor
    """(N) for classes, choices and scores, (N C) for soft labels."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.logits) == len(self.target):
            raise PredictionsError(
                f"{len(self.ids)} ids, {len(self.logits)} logits and {len(self.target)} targets: each once per example"
            )


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Columns id, target and logits; the file appears whole or not at all."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    columns = {
        "id": pa.array(list(predictions.ids), pa.string()),
        "target": _column(predictions.target),
        "logits": _column(predictions.logits),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, sink.getvalue().to_pybytes())


def read_predictions(path: Path) -> Predictions:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
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
    return values if x.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, x.shape[1])


def _tensor(column: Any) -> Tensor:
    import numpy as np
    import pyarrow as pa

    flat = column.combine_chunks()
    rows = pa.types.is_fixed_size_list(flat.type)
    values = flat.flatten() if rows else flat
    if flat.null_count or values.null_count:
        raise PredictionsError("an entry is empty")
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise PredictionsError(f"target and logits are numbers, or as many per row, not {flat.type}")
    x = torch.from_numpy(np.array(values))
    return x.reshape(len(flat), flat.type.list_size) if rows else x
