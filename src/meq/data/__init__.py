"""Data sets behind one contract: examples, splits, labels, metric, collation, fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.data.contract import (
        AUDIO,
        IMAGE,
        REGIONS,
        TEXT,
        Batch,
        DataSet,
        Example,
        Modality,
        Rows,
        Split,
        collate,
        features,
    )
    from meq.data.findings import DataError, Findings
    from meq.data.metrics import METRICS, Metric, register_metric
    from meq.data.request import DATA_SETS, open_data, register_data_set
else:
    make_lazy(__name__)

__all__ = [
    "AUDIO",
    "DATA_SETS",
    "IMAGE",
    "METRICS",
    "REGIONS",
    "TEXT",
    "Batch",
    "DataError",
    "DataSet",
    "Example",
    "Findings",
    "Metric",
    "Modality",
    "Rows",
    "Split",
    "collate",
    "features",
    "open_data",
    "register_data_set",
    "register_metric",
]
