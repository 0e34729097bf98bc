"""Data sets behind one contract: examples, splits, labels, metric, collation, fingerprint."""

from meq.data.contract import Batch, DataSet, Example, Split, collate

__all__ = ["Batch", "DataSet", "Example", "Split", "collate"]
