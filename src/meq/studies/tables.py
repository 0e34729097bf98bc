"""The tables of a study, from its records and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from meq.data.metrics import METRICS
from meq.options import nearest
from meq.studies.compare import (
    DRAWS,
    FEWEST,
    Answers,
    Records,
    answers_of,
    called_with,
    compare,
    compare_groups,
    intervals,
    scored_pairs,
)
from meq.studies.measures import make_measure, measured_of
from meq.studies.measures.contract import Values
from meq.studies.paper import PaperFigures, figures
from meq.studies.study import Study, StudyError, run_place
from meq.tables import FORMATS, Cell, Table, as_files
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
        measure = make_measure(name, study.measures[name])
        made |= measure.tables(study, measure.typed(values))
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
    return as_files(made)


def interval_tables(study: Study, records: Records, answers: Answers) -> dict[str, Table]:
    """By name: arms against the reference over draws of the examples; none for a study of one arm."""
    pairs = scored_pairs(records.values())
    made = {}
    for split in dict.fromkeys(split for split, _ in pairs):
        metrics = [metric for other, metric in pairs if other == split and metric in METRICS]
        for metric, found in intervals(study, records, answers, split=split, metrics=metrics).items():
            if not found:
                continue
            seeds = len(study.seeds)
            rows: list[dict[str, Cell]] = [{**asdict(each), "seeds": f"{each.seeds} of {seeds}"} for each in found]
            made[f"{split}-{_slug(metric)}-{BOOTSTRAP}"] = Table.of(
                f"{study.name}: {study.question} ({metric} on {split}, over examples)",
                rows,
                titles={"difference": f"difference to {study.reference}", "low": "95 % from", "high": "to"},
                signed=("difference", "low", "high"),
                notes=(OVER_EXAMPLES.format(reference=study.reference),),
            )
    return made


def is_interval_file(name: str) -> bool:
    return Path(name).stem.endswith(f"-{BOOTSTRAP}")


def comparison_table(
    study: Study, records: Records, *, split: str, metric: str, published: PaperFigures | None = None
) -> Table:
    lines = compare(study, records, split=split, metric=metric)
    lines += compare_groups(study, records, split=split, metric=metric)
    rows: list[dict[str, Cell]] = [asdict(line) for line in lines]
    notes = [MEANING.format(reference=study.reference), *study.notes, *_failures(records.values())]
    if study.groups:
        notes.append("A line with an arm in brackets shows the best of several arms, chosen by its mean on dev.")
    if published is not None and published.applies(split, metric):
        known = published.values
        names = [str(row["arm"]).split(" (")[0] for row in rows]
        rows = [{**row, "paper": known.get(name)} for row, name in zip(rows, names, strict=True)]
        rows += [{"arm": f"{arm} (paper only)", "paper": value} for arm, value in known.items() if arm not in names]
        notes.append(published.label)
    elif published is not None:
        notes.append(f"The paper has no figures for {metric} on {split}.")
    return Table.of(
        f"{study.name}: {study.question} ({metric} on {split})",
        rows,
        titles={
            "mean": f"{metric}, mean",
            "difference": f"difference to {study.reference}",
            "difference_spread": "its spread",
            "paper": "paper (published)",
        },
        signed=("difference",),
        notes=notes,
    )


def runs_table(study: Study, records: Records) -> Table:
    """One line per planned run."""
    scored = {f"{split} {metric}": (split, metric) for split, metric in scored_pairs(records.values())}
    rows: list[dict[str, Cell]] = []
    for arm, seed in ((arm.name, seed) for arm in study.arms for seed in study.seeds):
        record = records.get((arm, seed))
        row: dict[str, Cell] = {"arm": arm, "seed": str(seed), "status": "missing" if record is None else record.status}
        if record is not None:
            row["selected_epoch"] = record.selected.epoch
            row |= {key: record.metrics.get(split, {}).get(metric) for key, (split, metric) in scored.items()}
            row |= {"steps": record.steps, "alarms": len(record.alarms), "wall_seconds": record.wall_seconds}
        rows.append(row)
    # selecting and reporting on the same split has to be said
    ways = sorted({(record.selected.by, record.selected.split) for record in records.values()})
    selection = [
        f"Weights: the {by} epoch{f' by {split}' if by == 'best' else ''}; epochs count from 0." for by, split in ways
    ]
    return Table.of(
        f"{study.name}: runs",
        rows,
        keys=("arm", "seed", "status", "selected_epoch", *scored, "steps", "alarms", "wall_seconds"),
        titles={"selected_epoch": "selected epoch", "wall_seconds": "seconds"},
        digits={"wall_seconds": 1},
        notes=(*selection, *_failures(records.values())),
    )


def _failures(records: Iterable[RunRecord]) -> list[str]:
    return [
        f"{record.arm}, seed {record.seed} failed: {record.error.kind}: {' '.join(record.error.message.split())}"
        for record in sorted(records, key=lambda each: (str(each.arm), each.seed))
        if record.error is not None
    ]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# -- as the command line prints them -----------------------------------------------------------------------------------


def tables_text(
    study: Study,
    folder: Path,
    *,
    names: Sequence[str] = (),
    form: str = "txt",
    beside: Mapping[str, Table] | None = None,
) -> str:
    """All tables, or the named ones, one after the other.

    `beside` are the paper's of this study, with its own figures, which are shown in the others, too.
    """
    records, measured = records_of(folder, study), measured_of(folder, study)
    made = make_tables(study, records, measured, paper=beside is not None, answers=answers_of(folder))
    return shown_tables({**made, **(beside or {})}, names=names, form=form)


def shown_tables(tables: Mapping[str, Table], *, names: Sequence[str] = (), form: str = "txt") -> str:
    if form not in FORMATS:
        raise StudyError(f"there is no format {form!r}: {nearest(form, FORMATS)}")
    for name in names:
        if name not in tables:
            raise StudyError(f"there is no table {name!r}: {nearest(name, tables)}")
    return "\n".join(FORMATS[form](table) for name, table in tables.items() if not names or name in names)
