"""What the command line prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meq.core.options import nearest
from meq.experiments.bootstrap import answers_of
from meq.experiments.measures import measured_of
from meq.experiments.recipes import STUDIES
from meq.experiments.render import FORMATS, Column, Table, as_text
from meq.experiments.settings import FULL, TABLE
from meq.experiments.study import Study, StudyError
from meq.experiments.tables import make_tables, records_of
from meq.experiments.untrained import UNTRAINED
from meq.experiments.verify import Verification
from meq.training.plain import dumps


def table_json(table: Table) -> str:
    """A table for machines: its rows by the columns' keys."""
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    return dumps({"title": table.title, "rows": rows, "notes": list(table.notes)})


def study_list(*, as_json: bool = False) -> str:
    trained = [(name, recipe.text.splitlines()[0], _where(recipe.on)) for name, recipe in STUDIES.items()]
    rows = (*trained, *((name, text, "nothing is trained") for name, text in UNTRAINED.items()))
    columns = (Column(key="study", title="study"), Column(key="asks", title="asks"), Column(key="on", title="on"))
    table = Table(title="Studies; more about one: meq study list NAME", columns=columns, rows=rows)
    return table_json(table) if as_json else as_text(table)


def tables_text(
    study: Study, folder: Path, *, names: Sequence[str] = (), form: str = "txt", paper: bool = False
) -> str:
    """All tables, or the named ones, one after the other."""
    if form not in FORMATS:
        raise StudyError(f"there is no format {form!r}: {nearest(form, FORMATS)}")
    if paper and study.paper is None:
        raise StudyError(f"the paper has no figures for the study {study.name!r}")
    records, measured = records_of(folder, study), measured_of(folder, study)
    tables = make_tables(study, records, measured, paper=paper, answers=answers_of(folder))
    for name in names:
        if name not in tables:
            raise StudyError(f"{folder} has no table {name!r}: {nearest(name, tables)}")
    return "\n".join(FORMATS[form](table) for name, table in tables.items() if not names or name in names)


def verification_text(folder: Path, found: Verification) -> str:
    """Faults first; what could not be verified is said as well."""
    lines = [f"FAULT  {fault.file}: {fault.message}" for fault in found.faults]
    lines += [f"unverified  {name}: not there" for name in found.unverified]
    lines += [f"note  {note}" for note in found.notes]
    checked = f"{found.hashes} files rehashed, {found.metrics} metrics recomputed, {found.tables} tables rebuilt"
    verdict = f"{folder} verifies" if found.ok else f"{folder} does NOT verify: {len(found.faults)} faults"
    return "\n".join([*lines, f"{verdict}; {checked}"]) + "\n"


def _where(on: Sequence[str]) -> str:
    """Its data sets, or those it does not run on where they are fewer."""
    others = [name for name in (*FULL, TABLE) if name not in on]
    if len(on) <= len(others):
        return ", ".join(on)
    return "any set" + (f" but {', '.join(others)}" if others else "")
