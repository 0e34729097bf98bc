"""A trained run in use: loaded, asked, scored again, explained and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.runs.answers import Answer, Answers
    from meq.runs.evaluate import Evaluation
    from meq.runs.load import Run, TrainedRun, load_run
    from meq.runs.train_on import train_on
else:
    make_lazy(__name__)

__all__ = ["Answer", "Answers", "Evaluation", "Run", "TrainedRun", "load_run", "train_on"]
