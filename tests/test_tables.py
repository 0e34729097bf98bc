from __future__ import annotations

import ast
import sys
from pathlib import Path

import meq.tables
from meq.tables import Column, Table, as_csv, as_latex, as_markdown, as_text


def test_what_latex_and_markdown_would_misread_is_escaped() -> None:
    odd = Table(title="odd", columns=(Column(key="a", title="50% of a_b|c"),), rows=(("x & y",), ("-3",)))
    assert "50\\% of a\\_b|c" in as_latex(odd)
    assert "x \\& y" in as_latex(odd)
    assert "a_b\\|c" in as_markdown(odd)


def test_a_table_is_made_of_rows_that_need_not_have_every_column() -> None:
    rows = [{"arm": "concat", "mean": 0.5, "runs": 1200}, {"arm": "meq", "difference": 0.25}]
    made = Table.of("t", rows, titles={"mean": "accuracy"}, digits={"mean": 2}, signed={"difference"}, notes=["n"])
    assert [column.key for column in made.columns] == ["arm", "mean", "runs", "difference"]
    assert made.rows == (("concat", 0.5, 1200, None), ("meq", None, None, 0.25))
    assert as_csv(made) == "arm,mean,runs,difference\nconcat,0.5,1200,\nmeq,,,0.25\n"
    lines = as_text(made).splitlines()
    assert lines[2] == "arm     accuracy   runs  difference"
    assert lines[4:] == ["concat      0.50  1,200", "meq                         +0.2500", "", "n"]


def test_columns_can_be_chosen_and_are_there_without_any_row() -> None:
    assert as_csv(Table.of("t", [], keys=["arm", "mean"])) == "arm,mean\n"
    assert as_csv(Table.of("t", [{"mean": 1, "arm": "a", "other": 2}], keys=["arm", "mean"])) == "arm,mean\na,1\n"


def test_tables_import_the_standard_library_and_records_only() -> None:
    names = set()
    for node in ast.walk(ast.parse(Path(meq.tables.__file__).read_text())):
        names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    assert {name.partition(".")[0] for name in names - {"meq.records"}} <= set(sys.stdlib_module_names)
