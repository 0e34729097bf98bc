"""Studies: runs of several arms and seeds, their records, tables and verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.studies.compare import compare
    from meq.studies.recipes import STUDIES, make_study
    from meq.studies.runner import run_study
    from meq.studies.study import ArmConfig, DataConfig, Study, StudyError, read_study
    from meq.studies.tables import make_tables, records_of
    from meq.studies.verify import Fault, Verification, verify
    from meq.tables import Table
    from meq.training.predictions import Predictions, read_predictions
    from meq.training.record import RunRecord, read_record
else:
    make_lazy(__name__)

__all__ = [
    "STUDIES",
    "ArmConfig",
    "DataConfig",
    "Fault",
    "Predictions",
    "RunRecord",
    "Study",
    "StudyError",
    "Table",
    "Verification",
    "compare",
    "make_study",
    "make_tables",
    "read_predictions",
    "read_record",
    "read_study",
    "records_of",
    "run_study",
    "verify",
]
