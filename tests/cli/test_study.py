from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meq.cli.study import study_app as app
from meq.studies.verify import read_manifest, sealed, write_manifest


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_studies_are_listed_with_what_they_ask() -> None:
    code, said = run("list")
    assert code == 0
    assert "What does each part contribute?" in said
    assert "hyperparameters" in said
    code, said = run("list", "ablation")
    assert code == 0
    assert "Command: meq study run ablation" in said


@pytest.mark.parametrize(
    ("name", "word"),
    [("datasets", "paper (published)"), ("encoders", "who reads what"), ("hyperparameters", "Hutchinson")],
)
def test_descriptive_tables_are_printed_and_written(name: str, word: str, tmp_path: Path) -> None:
    code, said = run("run", name, "--out", tmp_path / "tables")
    assert code == 0, said
    assert word in said
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".txt", ".md", ".tex", ".csv"}


def test_status_table_and_verify_read_a_finished_study(finished: Path) -> None:
    code, said = run("status", finished)
    assert code == 0
    assert "6 of 6 runs are over" in said
    code, said = run("table", finished, "--only", "dev-accuracy", "--format", "csv")
    assert code == 0
    assert said == (finished / "tables" / "dev-accuracy.csv").read_text()
    code, said = run("verify", finished)
    assert code == 0
    assert "verifies; " in said
    assert "24 metrics recomputed, 20 tables rebuilt" in said


def test_running_a_complete_study_again_prints_its_tables(copied: Path) -> None:
    code, said = run("run", "statements-tiny", "--out", copied)
    assert code == 0, said
    assert (copied / "tables" / "dev-accuracy.txt").read_text() in said


def test_a_worker_makes_what_is_missing_and_shows_how_far_the_study_has_come(copied: Path, finished: Path) -> None:
    place = copied / "runs" / "meq" / "seed-2"
    shutil.rmtree(place)
    write_manifest(copied, sealed(read_manifest(copied), copied, [], without="runs/meq/seed-2"))
    code, said = run("work", copied, "--threads", "1")
    assert code == 0, said
    assert "6 of 6 runs are over" in said
    assert (copied / "tables" / "dev-accuracy.txt").read_bytes() == (
        finished / "tables" / "dev-accuracy.txt"
    ).read_bytes()
    assert run("verify", copied)[0] == 0
    assert run("work", copied)[0] == 0, "there is nothing left to do"


def test_verify_fails_with_1_and_names_the_file(copied: Path) -> None:
    table = copied / "tables" / "runs.csv"
    table.write_bytes(table.read_bytes().replace(b"finished", b"finishes", 1))
    code, said = run("verify", copied)
    assert code == 1
    assert "FAULT  tables/runs.csv: " in said
    assert "does NOT verify" in said
    table.unlink()
    (copied / "runs" / "meq" / "seed-0" / "model" / "model.safetensors").unlink()
    code, said = run("verify", copied, "--require-checkpoints")
    assert code == 1
    assert "FAULT  runs/meq/seed-0/model/model.safetensors: missing, and checkpoints are required" in said
    assert "unverified  runs/meq/seed-0/model/model.safetensors" in run("verify", copied)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "ablaton", "--out", "x"], 1, "did you mean 'ablation'?"),
        (["list", "tiny"], 1, "there is no study 'tiny'"),
        (["run", "hops", "snli-ve"], 1, "makes no sense on 'snli-ve'"),
        (["run", "main", "--on", "rya"], 1, "did you mean 'ray'?"),
        (["verify", "nowhere"], 1, "is not the folder of a study: it does not exist. Expected study.json"),
        (["status", "nowhere"], 1, "is not the folder of a study"),
        (["work", "nowhere"], 1, "is not the folder of a study"),
        (["run", "main", "--on", "local", "--gpus", "1"], 1, "--gpus makes sense with --on ray"),
        (["run", "main", "--threads", "1"], 1, "--threads makes sense with --on local"),
        (["table", "nowhere"], 1, "is not the folder of a study"),
        (["verfy", "x"], 2, "verify"),
    ],
)
def test_mistakes_are_answered_in_words(arguments: list[str], code: int, message: str) -> None:
    got, said = run(*arguments)
    assert got == code, said
    assert message in said
    assert "Traceback" not in said


def test_a_wrong_table_format_or_paper_is_answered_in_words(finished: Path) -> None:
    assert "did you mean 'dev-accuracy'?" in run("table", finished, "--only", "dev-acuracy")[1]
    assert "there is no format 'word'" in run("table", finished, "--format", "word")[1]
    assert "the paper has no figures for the study" in run("table", finished, "--paper")[1]


def test_where_pictures_lie_is_said_for_one_study_or_for_the_whole_paper(finished: Path, tmp_path: Path) -> None:
    roots = tmp_path / "roots.toml"
    assert "the file or folder is missing" in run("figures", finished, "--roots", roots)[1]
    roots.touch()
    assert "is one study: --roots belongs to the whole paper" in run("figures", finished, "--roots", roots)[1]


def test_machines_get_json(finished: Path) -> None:
    listed = json.loads(run("list", "--json")[1])
    assert "ablation" in [row["study"] for row in listed["rows"]]
    state = json.loads(run("status", finished, "--json")[1])
    assert {row["status"] for row in state["rows"]} == {"finished"}
    found = json.loads(run("verify", finished, "--json")[1])
    assert found["faults"] == []
    assert found["tables"] > 0
