"""A run's model with int8 weights, written so that it loads as any other run does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from meq.models.hub import CONFIG, WEIGHTS
from meq.models.quantise import LEAST_WEIGHTS
from meq.records import dumps, sha256, write_bytes, write_seal
from meq.runs.load import TrainedRun
from meq.showing import Shown
from meq.studies.study import StudyError
from meq.training.bundle import CARD, TASK

ROUNDED = (
    "int8: the weights of its large linear layers are rounded to int8, for answers on a CPU. Scores, where there are "
    "any above, are those of the float model."
)


@dataclass(frozen=True, kw_only=True)
class QuantisedRun(Shown):
    """What was written."""

    folder: Path
    size: float
    """Bytes of the weights' file, by those of the float one."""
    note: str | None
    """What of the run did not come along."""

    def __str__(self) -> str:
        words = f"the int8 model is in {self.folder}; its weights take {self.size:.2f} of the float ones' bytes"
        return "\n".join([words, *([self.note] if self.note else [])])


def save_quantised(run: TrainedRun, folder: Path, *, least_weights: int = LEAST_WEIGHTS) -> QuantisedRun:
    """Write the run's int8 model, its task, its card and a seal; `load_run(folder)` loads it.

    The record stays with the float run, whose training it tells of. So does a calibrated rule: its promise was checked
    with other weights.
    """
    folder = Path(folder)
    if folder.exists():
        raise StudyError(f"{folder} is there already: choose another name")
    made = run.quantised(least_weights=least_weights)
    made.model.save_pretrained(folder)
    card = run.folder / CARD  # before the Hub's own, which knows nothing of the task
    if card.is_file():
        write_bytes(folder / CARD, f"{card.read_text(encoding='utf-8')}\n{ROUNDED}\n".encode())
    task = dumps(replace(run.task, weights_sha256=sha256(folder / WEIGHTS))).encode()
    write_seal(folder, (CONFIG, WEIGHTS, CARD), to_come={TASK: task})
    write_bytes(folder / TASK, task)
    sizes = [(place / WEIGHTS).stat().st_size for place in (folder, run.folder)]
    note = None if run.calibration is None else "the calibrated rule stays behind: it was checked with other weights"
    return QuantisedRun(folder=folder, size=sizes[0] / sizes[1], note=note)
