from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pytest
from studies.samples import records, study

from meq.studies import make_study, make_tables, records_of
from meq.studies.compare import answers_of
from meq.studies.paper import PAPER
from meq.studies.tables import table_files
from meq.tables import FORMATS, as_csv, as_latex, as_markdown, as_text

SCORES = {"concat": {0: 0.5, 1: 0.6, 2: 0.7}, "meq": {0: 0.7, 1: 0.81, 2: 0.9}}

TEXT = """\
sample: Which is better? (accuracy on dev)

arm     parameters  runs    accuracy, mean  spread  difference to concat  its spread  verdict
------  ----------  ------  --------------  ------  --------------------  ----------  ---------
concat           7  3 of 3          0.6000  0.1000                                    reference
meq              7  3 of 3          0.8033  0.1002               +0.2033      0.0058  called

Mean and spread (sample standard deviation) over seeds; difference: arm minus concat, mean over
paired seeds; called: its absolute value exceeds twice the sample standard deviation of the paired
differences.
"""

LATEX = """\
% sample: Which is better? (accuracy on dev)
\\begin{tabular}{lrlrrrrl}
\\toprule
arm & parameters & runs & accuracy, mean & spread & difference to concat & its spread & verdict \\\\
\\midrule
concat & 7 & 3 of 3 & 0.6000 & 0.1000 &  &  & reference \\\\
meq & 7 & 3 of 3 & 0.8033 & 0.1002 & $+0.2033$ & 0.0058 & called \\\\
\\bottomrule
\\end{tabular}
"""


def test_the_table_reads_as_intended() -> None:
    table = make_tables(study("concat", "meq"), records(SCORES))["dev-accuracy"]
    assert as_text(table) == TEXT
    assert as_latex(table).startswith(LATEX)
    assert "| meq | 7 | 3 of 3 | 0.8033 | 0.1002 | +0.2033 | 0.0058 | called |" in as_markdown(table)


def test_csv_keeps_every_digit() -> None:
    table = make_tables(study("concat", "meq"), records(SCORES))["dev-accuracy"]
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert [row["arm"] for row in rows] == ["concat", "meq"]
    assert float(rows[1]["mean"]) == pytest.approx((0.7 + 0.81 + 0.9) / 3, abs=1e-15)
    assert (rows[0]["difference"], rows[1]["verdict"]) == ("", "called")


def test_tables_are_the_same_bytes_whatever_the_order_of_the_records() -> None:
    found = records(SCORES)
    shuffled = list(found.items())
    random.Random(1).shuffle(shuffled)
    assert table_files(study("concat", "meq"), found) == table_files(study("concat", "meq"), dict(shuffled))


def test_tables_on_disk_are_what_the_records_give(finished: Path) -> None:
    study = make_study("statements-tiny")
    made = table_files(study, records_of(finished, study), answers=answers_of(finished))
    assert {path.name: path.read_bytes() for path in (finished / "tables").iterdir()} == made
    names = ("dev-accuracy", "test-accuracy", "dev-accuracy-bootstrap", "test-accuracy-bootstrap", "runs")
    assert set(made) == {f"{name}.{ending}" for name in names for ending in FORMATS}


def test_failed_and_missing_runs_are_in_every_table() -> None:
    found = records({"concat": {0: 0.5, 1: 0.6, 2: 0.7}, "meq": {0: 0.7, 2: None}})
    tables = make_tables(study("concat", "meq"), found)
    main, runs = as_text(tables["dev-accuracy"]), as_text(tables["runs"])
    assert "1 of 3 (seed 1 missing, seed 2 failed)" in main
    assert "incomplete" in main
    assert "meq, seed 2 failed: TrainingError: the loss is not finite" in main
    assert [line.split()[:3] for line in runs.splitlines() if line.startswith("meq")][1:3] == [
        ["meq", "1", "missing"],
        ["meq", "2", "failed"],
    ]


def test_a_study_without_any_record_has_a_table_of_missing_runs() -> None:
    tables = make_tables(study("a", "b"), {})
    assert list(tables) == ["runs"]
    assert as_text(tables["runs"]).count("missing") == 6


def test_the_papers_figures_stand_beside_ours_and_are_labelled() -> None:
    made = study("concat", "meq", paper="main/snli-ve")
    plain = make_tables(made, records(SCORES))["dev-accuracy"]
    beside = make_tables(made, records(SCORES), paper=True)["dev-accuracy"]
    assert "0.7515" not in as_text(plain)
    said = as_text(beside)
    assert "paper (published)" in said
    assert "not measured here" in said
    assert beside.rows[1][-1] == 0.7515
    assert beside.rows[2] == ("best attention (paper only)", *[None] * 7, 0.744)


def test_the_papers_figures_are_not_shown_beside_another_metric() -> None:
    made = study("concat", "meq", paper="main/hateful-memes")
    said = as_text(make_tables(made, records(SCORES), paper=True)["dev-accuracy"])
    assert "The paper has no figures for accuracy on dev." in said
    assert "published" not in said


def test_published_figures_are_fractions_and_agree_with_the_differences_the_paper_prints() -> None:
    for name, each in PAPER.items():
        assert all(0 < value < 1 for value in each.values.values()), name
    main = {name: PAPER[f"main/{name}"].values for name in ("vqa-v2", "vcr")}
    assert main["vqa-v2"]["meq"] - main["vqa-v2"]["concat"] == pytest.approx(0.1436, abs=1e-4)
    assert main["vcr"]["meq"] - main["vcr"]["concat"] == pytest.approx(0.0657, abs=1e-4)
