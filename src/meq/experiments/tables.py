"""The tables of a study, from its records and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from meq.experiments.bootstrap import DRAWS, Answers, Interval, intervals
from meq.experiments.compare import FEWEST, ArmLine, Records, called_with, compare, compare_groups, scored_pairs
from meq.experiments.measures import make_measure
from meq.experiments.measures.contract import Values
from meq.experiments.metrics import METRICS
from meq.experiments.paper import PaperFigures, figures
from meq.experiments.render import FORMATS, Cell, Column, Table
from meq.experiments.study import Study, run_place
from meq.training.record import RECORD, RunRecord, read_record

TABLE_FORMAT = 2
"""Raised when the same records give other bytes than before."""
OLDER_FORMS: Mapping[int, int] = {1: 2}
"""Forms that can still be made, and so verified: how many seeds they called a difference with; none had intervals."""
RUNS_TABLE, BOOTSTRAP = "runs", "bootstrap"
OVER_EXAMPLES = (
    "Difference: arm minus {reference}, mean over paired seeds. Interval: a paired bootstrap, the middle 95 % of that "
    f"difference over {DRAWS:,} draws of the examples with replacement. An example brings the answers of both arms and "
    "all seeds; the metric is computed anew for each run and draw. It says how far the choice of examples matters "
    "for these trained models; how far the seeds matter is in the table of means."
)
MEANING = (
    "Mean and spread (sample standard deviation) over seeds; difference: arm minus {reference}, mean over paired "
    "seeds; called: its absolute value exceeds twice the sample standard deviation of the paired differences."
)


def records_of(folder: Path, study: Study) -> Records:
    """The records of all runs that are over."""
    found = {}
    for arm, seed in study.runs():
        place = folder / run_place(arm, seed)
        if (place / RECORD).is_file() and (record := read_record(place)).over:
            found[arm, seed] = record
    return found


def make_tables(
    study: Study,
    records: Records,
    measured: Mapping[str, Values] | None = None,
    *,
    paper: bool = False,
    answers: Answers | None = None,
) -> dict[str, Table]:
    """By name: one for each split and metric, those of the measures, and one that lists the runs.

    With `answers`, and once all runs are over, one more for each split and metric: intervals over examples.
    """
    published = figures(study.paper) if paper else None
    made = {
        f"{split}-{_slug(metric)}": comparison_table(study, records, split=split, metric=metric, published=published)
        for split, metric in scored_pairs(records.values())
    }
    if answers is not None and len(records) == len(list(study.runs())):
        made |= interval_tables(study, records, answers)
    for name, values in (measured or {}).items():
        made |= make_measure(name, study.measures[name]).tables(study, values)
    return {**made, RUNS_TABLE: runs_table(study, records)}


def table_files(
    study: Study,
    records: Records,
    measured: Mapping[str, Values] | None = None,
    *,
    answers: Answers | None = None,
    form: int = TABLE_FORMAT,
) -> dict[str, bytes]:
    """Every table in every form of file, by file name; `form` is TABLE_FORMAT, or an older one to be verified."""
    older = form != TABLE_FORMAT
    with called_with(OLDER_FORMS[form] if older else FEWEST):
        made = make_tables(study, records, measured, answers=None if older else answers)
    return {
        f"{name}.{ending}": render(table).encode() for name, table in made.items() for ending, render in FORMATS.items()
    }


def interval_tables(study: Study, records: Records, answers: Answers) -> dict[str, Table]:
    """By name: arms against the reference over draws of the examples; none for a study of one arm."""
    pairs = scored_pairs(records.values())
    made = {}
    for split in dict.fromkeys(split for split, _ in pairs):
        metrics = [metric for other, metric in pairs if other == split and metric in METRICS]
        for metric, found in intervals(study, records, answers, split=split, metrics=metrics).items():
            if found:
                made[interval_name(split, metric)] = _interval_table(study, found, split, metric)
    return made


def interval_name(split: str, metric: str) -> str:
    return f"{split}-{_slug(metric)}-{BOOTSTRAP}"


def is_interval_file(name: str) -> bool:
    return Path(name).stem.endswith(f"-{BOOTSTRAP}")


def _interval_table(study: Study, found: Sequence[Interval], split: str, metric: str) -> Table:
    columns = (
        Column(key="arm", title="arm"),
        Column(key="seeds", title="seeds"),
        Column(key="examples", title="examples"),
        Column(key="difference", title=f"difference to {study.reference}", signed=True),
        Column(key="low", title="95 % from", signed=True),
        Column(key="high", title="to", signed=True),
    )
    rows = tuple(
        (each.arm, f"{each.seeds} of {len(study.seeds)}", each.examples, each.difference, each.low, each.high)
        for each in found
    )
    title = f"{study.name}: {study.question} ({metric} on {split}, over examples)"
    return Table(title=title, columns=columns, rows=rows, notes=(OVER_EXAMPLES.format(reference=study.reference),))


def comparison_table(
    study: Study, records: Records, *, split: str, metric: str, published: PaperFigures | None = None
) -> Table:
    lines = compare(study, records, split=split, metric=metric)
    columns: tuple[Column, ...] = (
        Column(key="arm", title="arm"),
        Column(key="parameters", title="parameters"),
        Column(key="runs", title="runs"),
        Column(key="mean", title=f"{metric}, mean"),
        Column(key="spread", title="spread"),
        Column(key="difference", title=f"difference to {study.reference}", signed=True),
        Column(key="difference_spread", title="its spread"),
        Column(key="verdict", title="verdict"),
    )
    lines += compare_groups(study, records, split=split, metric=metric)
    rows: list[tuple[Cell, ...]] = [_cells(line) for line in lines]
    notes = [MEANING.format(reference=study.reference), *_failures(records.values())]
    if study.groups:
        notes.append("A line with an arm in brackets shows the best of several arms, chosen by its mean on dev.")
    if published is not None and published.applies(split, metric):
        known = {figure.arm: figure.value for figure in published.figures}
        columns = (*columns, Column(key="paper", title="paper (published)"))
        shown = {str(row[0]).split(" (")[0] for row in rows}
        rows = [(*row, known.get(str(row[0]).split(" (")[0])) for row in rows]
        others = [figure for figure in published.figures if figure.arm not in shown]
        rows += [(f"{figure.arm} (paper only)", *[None] * (len(columns) - 2), figure.value) for figure in others]
        notes.append(published.label)
    elif published is not None:
        notes.append(f"The paper has no figures for {metric} on {split}.")
    return Table(
        title=f"{study.name}: {study.question} ({metric} on {split})",
        columns=columns,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def runs_table(study: Study, records: Records) -> Table:
    """One line per planned run."""
    pairs = scored_pairs(records.values())
    columns = (
        Column(key="arm", title="arm"),
        Column(key="seed", title="seed"),
        Column(key="status", title="status"),
        Column(key="selected_epoch", title="selected epoch"),
        *(Column(key=f"{split} {metric}", title=f"{split} {metric}") for split, metric in pairs),
        Column(key="steps", title="steps"),
        Column(key="alarms", title="alarms"),
        Column(key="wall_seconds", title="seconds", digits=1),
    )
    rows: list[tuple[Cell, ...]] = []
    for arm, seed in ((arm.name, seed) for arm in study.arms for seed in study.seeds):
        record = records.get((arm, seed))
        if record is None:
            rows.append((arm, str(seed), "missing", *[None] * (len(columns) - 3)))
            continue
        scores = [record.metrics.get(split, {}).get(metric) for split, metric in pairs]
        chosen = record.selected.epoch
        counts = (record.steps, len(record.alarms), record.wall_seconds)
        rows.append((arm, str(seed), record.status, chosen, *scores, *counts))
    return Table(
        title=f"{study.name}: runs",
        columns=columns,
        rows=tuple(rows),
        notes=(*_selection(records.values()), *_failures(records.values())),
    )


def _cells(line: ArmLine) -> tuple[Cell, ...]:
    return (
        line.arm,
        line.parameters,
        line.runs,
        line.mean,
        line.spread,
        line.difference,
        line.difference_spread,
        line.verdict,
    )


def _selection(records: Iterable[RunRecord]) -> list[str]:
    """Selecting and reporting on the same split has to be said."""
    ways = sorted({(record.selected.by, record.selected.split) for record in records})
    return [
        f"Weights: the {by} epoch{f' by {split}' if by == 'best' else ''}; epochs count from 0." for by, split in ways
    ]


def _failures(records: Iterable[RunRecord]) -> list[str]:
    return [
        f"{record.arm}, seed {record.seed} failed: {record.error.kind}: {' '.join(record.error.message.split())}"
        for record in sorted(records, key=lambda each: (str(each.arm), each.seed))
        if record.error is not None
    ]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
