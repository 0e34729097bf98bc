"""How far a study has come."""

from __future__ import annotations

from pathlib import Path

from meq.experiments.render import Cell, Column, Table
from meq.experiments.study import Study, run_place
from meq.training.record import RECORD, RunRecord, read_record


def status_table(folder: Path, study: Study) -> Table:
    """One line per planned run, in the order they are made."""
    rows: list[tuple[Cell, ...]] = []
    over = 0
    for arm, seed in study.runs():
        place = folder / run_place(arm, seed)
        record = read_record(place) if (place / RECORD).is_file() else None
        over += record is not None and record.over
        rows.append((arm, str(seed), *_state(record)))
    return Table(
        title=f"{study.name}: {over} of {len(rows)} runs are over",
        columns=(
            Column(key="arm", title="arm"),
            Column(key="seed", title="seed"),
            Column(key="status", title="status"),
            Column(key="epochs", title="epochs"),
            Column(key="best", title="best on dev"),
            Column(key="wall_seconds", title="seconds", digits=1),
            Column(key="alarms", title="alarms"),
        ),
        rows=tuple(rows),
    )


def _state(record: RunRecord | None) -> tuple[Cell, ...]:
    if record is None:
        return ("not begun", None, None, None, None)
    # a process that was killed had no time to say so
    status = "running, or killed" if record.status == "running" else record.status
    epochs = f"{len(record.curves)} of {record.config['epochs']}"
    return (status, epochs, record.selected.value, record.wall_seconds, len(record.alarms))
