"""Data sets behind one contract: examples, splits, labels, metric, collation, fingerprint."""

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
from meq.data.registry import DATA_SETS, open_data

__all__ = [
    "AUDIO",
    "DATA_SETS",
    "IMAGE",
    "REGIONS",
    "TEXT",
    "Batch",
    "DataError",
    "DataSet",
    "Example",
    "Findings",
    "Modality",
    "Rows",
    "Split",
    "collate",
    "features",
    "open_data",
]
