"""Studies: runs of several arms and seeds, their records, tables and verification."""

from meq.experiments.compare import compare
from meq.experiments.recipes import STUDIES, make_study
from meq.experiments.render import Table
from meq.experiments.runner import run_study
from meq.experiments.runs.answers import Answer, Answers
from meq.experiments.runs.evaluation import Evaluation
from meq.experiments.runs.load import TrainedRun, load_run
from meq.experiments.runs.train_on import train_on
from meq.experiments.study import ArmConfig, DataConfig, Study, StudyError, read_study
from meq.experiments.tables import make_tables, records_of
from meq.experiments.verify import Fault, Verification, verify
from meq.training.predictions import Predictions, read_predictions
from meq.training.record import RunRecord, read_record

__all__ = [
    "STUDIES",
    "Answer",
    "Answers",
    "ArmConfig",
    "DataConfig",
    "Evaluation",
    "Fault",
    "Predictions",
    "RunRecord",
    "Study",
    "StudyError",
    "Table",
    "TrainedRun",
    "Verification",
    "compare",
    "load_run",
    "make_study",
    "make_tables",
    "read_predictions",
    "read_record",
    "read_study",
    "records_of",
    "run_study",
    "train_on",
    "verify",
]
