"""What commands print as JSON and what reports say, held against files: words and structure exactly, floats nearly.

After a change that is meant: MEQ_UPDATE_GOLDEN=1 python -m pytest tests/golden, then read the difference in git.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import reports
from golden.page_text import page_text
from typer.testing import CliRunner

from meq.cli import app
from meq.data.request import DataRequest
from meq.runs import train_on

HERE = Path(__file__).parent
UPDATE = os.environ.get("MEQ_UPDATE_GOLDEN") == "1"
TOLERANCE = 1e-4
NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?(?!\w)")


def printed(*arguments: str | Path, code: int = 0) -> Any:
    """The JSON that a command prints."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def without_folders(value: Any, folder: Path) -> Any:
    """Paths as seen from the folder of the tests' files."""
    return json.loads(json.dumps(value).replace(f"{folder}/", ""))


def hold(name: str, found: Any) -> None:
    """An error where the golden file of that name says something else."""
    path = HERE / name
    text = found if isinstance(found, str) else json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8")
    if isinstance(found, str):
        same_text(kept, found)
    else:
        same_values(json.loads(kept), found, name)


def same_values(kept: Any, found: Any, where: str) -> None:
    if isinstance(kept, dict) and isinstance(found, dict):
        assert list(kept) == list(found), f"{where}: other names, or in another order"
        for key in kept:
            same_values(kept[key], found[key], f"{where} > {key}")
    elif isinstance(kept, list) and isinstance(found, list):
        assert len(kept) == len(found), f"{where}: {len(found)} entries, not {len(kept)}"
        for place, (ours, theirs) in enumerate(zip(kept, found, strict=True)):
            same_values(ours, theirs, f"{where} > {place}")
    elif isinstance(kept, float) and isinstance(found, float):
        assert math.isclose(kept, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE), f"{where}: {found}, not {kept}"
    else:
        assert type(kept) is type(found), f"{where}: {found!r}, not {kept!r}"
        assert kept == found, f"{where}: {found!r}, not {kept!r}"


def same_text(kept: str, found: str) -> None:
    """Line by line: the words alike, whole numbers alike, and others as near as their digits tell."""
    lines, others = kept.splitlines(), found.splitlines()
    assert [NUMBER.sub("#", line) for line in lines] == [NUMBER.sub("#", line) for line in others]
    for line, other in zip(lines, others, strict=True):
        for ours, theirs in zip(NUMBER.findall(line), NUMBER.findall(other), strict=True):
            digits = len(ours.partition("e")[0].partition(".")[2])
            last = 10.0**-digits * 10.0 ** int(ours.partition("e")[2] or 0) if digits or "e" in ours else 0.0
            difference = abs(float(ours.replace(",", "")) - float(theirs.replace(",", "")))
            assert difference <= 1.01 * last + TOLERANCE * (last > 0), f"{theirs}, not {ours}, in: {line}"


@functools.cache
def numbers_run() -> Path:
    """A run on a table of numbers, which are standardised, and words, which are encoded."""
    folder = reports.hostile_run().parent / "numbers"
    folder.mkdir()
    with open(folder / "numbers.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "words", "label", "part"])
        for row in range(40):
            part = ("train", "train", "dev", "test")[row % 4]
            rows.writerow([10 + row % 7, -0.5 * (row % 5), f"thing {row % 3}", "xyz"[row % 3], part])
    request = DataRequest(
        data=str(folder / "numbers.csv"), vectors=("a", "b"), texts=("words",), label="label", split="part"
    )
    return train_on(
        request, folder / "run", encoders={"text": "words"}, shape=reports.ITERATED, config=reports.TRAIN
    ).folder.parent


def study_run() -> Path:
    return reports.tiny_study() / "runs" / "meq" / "seed-0"


RUNS = {"pictures": reports.hostile_run, "numbers": numbers_run, "study": study_run}
TABLES = {"pictures": "table/rows.csv", "numbers": "numbers/numbers.csv"}


@pytest.mark.parametrize("name", RUNS)
def test_evaluate_prints_what_it_printed(name: str) -> None:
    run = RUNS[name]()
    found = printed("evaluate", run)
    assert found["same_data"] is True
    for split in found["splits"]:
        if split["split"] != "train":  # which has no scores in the record
            assert split["metrics"] == pytest.approx(split["recorded"])
    hold(f"evaluate-{name}.json", without_folders(found, reports.hostile_run().parent))


@pytest.mark.parametrize("name", TABLES)
def test_predict_prints_and_writes_what_it_did(name: str, tmp_path: Path) -> None:
    run, folder = RUNS[name](), reports.hostile_run().parent
    answers = tmp_path / "answers.jsonl"
    summary = printed("predict", run, folder / TABLES[name], "--out", answers)
    rows = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    del summary["file"]
    hold(f"predict-{name}.json", without_folders({"printed": summary, "rows": rows}, folder))


def test_evaluate_scores_another_table_as_it_did(tmp_path: Path) -> None:
    run = numbers_run()
    table = reports.hostile_run().parent / TABLES["numbers"]
    lines = table.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join(lines[:9]) + "\n")
    found = printed("evaluate", run, tmp_path / "other.csv")
    hold("evaluate-other.json", without_folders(found, tmp_path))


def test_data_check_prints_what_it_printed() -> None:
    folder = reports.hostile_run().parent
    columns = ("--image", "picture", "--text", "words", "--label", "label", "--split", "part")
    hold("data-check.json", without_folders(printed("data", "check", folder / TABLES["pictures"], *columns), folder))


def test_the_report_of_a_run_says_what_it_said() -> None:
    hold("report-run.txt", page_text(reports.run_page()))


def test_the_report_of_a_study_says_what_it_said() -> None:
    hold("report-study.txt", page_text(reports.study_page()))
