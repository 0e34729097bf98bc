"""From a table to answers by the command line, as a new user walks it, mistakes included."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from studies.photo_table import COLUMNS, SMALL, WITHOUT_WEIGHTS, write_rows, write_table
from typer.testing import CliRunner

from meq.cli import app
from meq.encoders.catalogue import offline_is_installed


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a run on it in runs/photos."""
    folder = tmp_path_factory.mktemp("walk")
    write_table(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, output, errors = run("train", "photos.csv", *COLUMNS, *SMALL, *WITHOUT_WEIGHTS)
    assert code == 0, output + errors
    (folder / "said.txt").write_text(output)
    (folder / "aside.txt").write_text(errors)
    return folder


@pytest.fixture
def here(walked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(walked)
    return walked


def test_training_says_what_it_uses_where_it_is_kept_and_what_to_type_next(here: Path) -> None:
    aside, said = (here / "aside.txt").read_text(), (here / "said.txt").read_text()
    assert "the run's folder: runs/photos" in aside
    assert "encoders: photo by patches-6x6-v1, caption by words-64-v1" in aside
    assert "patches-6x6-v1: 6 of 6" in aside, "encoding shows how far it is"
    for command in ("evaluate", "diagnose", "predict"):
        assert f"meq {command} runs/photos" in said


def test_a_second_run_gets_a_folder_of_its_own_and_prints_json(here: Path) -> None:
    code, output, errors = run("train", "photos.csv", *COLUMNS, *SMALL, *WITHOUT_WEIGHTS, "--arm", "concat", "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert found["run"] == "runs/photos-2"
    assert found["metrics"].keys() == {"dev", "test"}
    code, output, errors = run("analyze", "runs/photos-2")
    assert code == 1
    assert "error: Concat does not iterate" in errors
    code, output, errors = run("predict", "runs/photos-2", "photos.csv", "-o", here / "concat.csv", "--json")
    assert code == 0, errors
    assert json.loads(output)["mean_steps"] is None
    shutil.rmtree(here / "runs" / "photos-2")


def test_evaluate_repeats_the_record_and_says_on_what_weights_were_chosen(here: Path) -> None:
    code, output, errors = run("evaluate", "runs/photos")
    assert code == 0, errors
    assert "weights of the best epoch on dev (0)" in output
    assert "the scores are those of its record" in output
    assert "test: label / answer" in output
    code, output, _ = run("evaluate", "runs/photos", "--json", "--split", "dev")
    found = json.loads(output)
    record = json.loads((here / "runs" / "photos" / "record.json").read_text())
    assert code == 0
    assert found["splits"][0]["metrics"] == record["metrics"]["dev"]
    code, output, _ = run("evaluate", "runs/photos", "photos.csv", "--split", "dev")
    assert code == 0, "its own table by name, read as any other"


def test_predict_writes_a_line_per_row_with_all_that_was_asked_for(here: Path, tmp_path: Path) -> None:
    new = write_rows(here / "new.csv", ["photo", "caption"], [["photos/0.png", "it is red"], ["", "it is blue"]])
    out = tmp_path / "deep" / "out.csv"
    code, output, errors = run("predict", "runs/photos", new, "-o", out)
    assert code == 0, errors
    assert "2 rows answered" in output
    assert "photo is missing in 1 rows" in output
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["line"] for row in rows] == ["2", "3"]
    assert rows[1]["note"] == "photo is missing"
    code, _, errors = run("predict", "runs/photos", new, "-o", out)
    assert code == 1
    assert "is there already" in errors
    code, output, _ = run("predict", "runs/photos", new, "-o", out, "--force", "--json")
    assert code == 0
    assert json.loads(output)["rows"] == 2


def test_bad_rows_are_named_and_counted(here: Path, tmp_path: Path) -> None:
    new = write_rows(here / "bad.csv", ["photo", "caption"], [["photos/0.png", "a"], ["photos/9.png", "a"]])
    code, _, errors = run("predict", "runs/photos", new, "-o", tmp_path / "out.csv")
    assert code == 1
    assert "bad.csv, line 3" in errors
    assert not (tmp_path / "out.csv").exists(), "nothing is half written"
    code, output, errors = run("predict", "runs/photos", new, "-o", tmp_path / "out.csv", "--skip-bad", "--json")
    assert code == 0, errors
    assert json.loads(output)["left_out"] == 1
    assert "left out as bad: 1" in errors
    assert "line 3" in errors


def test_analyze_prints_a_page_and_keeps_it(here: Path) -> None:
    code, output, errors = run("analyze", "runs/photos", "--samples", "1", "--limit", "8")
    assert code == 0, errors
    assert "verdict:" in output
    assert "kept in runs/photos/analysis" in output
    assert json.loads((here / "runs/photos/analysis/analysis.json").read_text())["trajectory"]["read"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "photso.csv", *COLUMNS], 1, "photso.csv: there is no such file"),
        (["train", "photos.csv", "--image", "foto", "--label", "y"], 1, "no column 'foto': did you mean 'photo'?"),
        (["train", "photos.csv", "--image", "photo"], 1, "name the column that holds the labels (--label)"),
        (["train", "header.csv", *COLUMNS], 1, "header.csv: no row can be used"),
        (["train", "photos.csv", *COLUMNS, "--text-encoder", "minilmm"], 1, "did you mean 'minilm'?"),
        (["evaluate", "runs/fotos"], 1, "there is no run runs/fotos: did you mean 'photos'?"),
        (["evaluate", "photos"], 1, "photos is not the folder of a trained run"),
        (["evaluate", "runs/photos", "--split", "tset"], 1, "no split 'tset': did you mean 'test'?"),
        (["evaluate", "runs/photos", "--splt", "dev"], 2, "--split"),
        (["evaluate", "runs/photos", "unseen.csv"], 1, "'maybe' is none of the labels: did you mean"),
        (["predict", "runs/photos", "nowhere.csv", "-o", "x.csv"], 1, "nowhere.csv: there is no such file"),
        (["predict", "runs/photos", "header.csv", "-o", "x.csv"], 1, "there is no row to read in it"),
        (["predict", "runs/photos", "less.csv", "-o", "x.csv"], 1, "has no column 'caption'"),
        (["predict", "runs/photos", "photos.csv", "-o", "x.txt"], 1, "written as .csv, .jsonl, .parquet"),
        (["predict", "runs/photos", "photos.csv"], 1, "say where a table's answers go: --out answers.csv"),
        (["predict", "runs/photos", "photos.csv", "fotos", "-o", "x.csv"], 1, "fotos: the folder is missing"),
        (["predict", "runs/photos", "photos.csv", "-o", "x.csv", "--columns", "capton"], 1, "mean 'caption'?"),
        (["predict", "runs/photos", "photos/0.png", "a", "-o", "x.csv"], 1, "is no table, and one example is answered"),
        (["predict", "runs/photos", "photos/9.png", "a"], 1, "photos/9.png: the picture is missing: did you mean"),
        (["explain", "runs/photos"], 1, "give one example after the run: meq explain RUN picture.png"),
        (["explain", "runs/photos", "photos/0.png", "a", "b"], 1, "'b' is one text too many: this run reads a picture"),
        (["diagnose", "runs/photos", "--horizon", "1"], 1, "lies before the step that is read"),
        (["predcit"], 2, "Did you mean 'predict'?"),
    ],
)
def test_mistakes_are_one_clear_sentence(here: Path, arguments: list[str], code: int, message: str) -> None:
    write_rows(here / "header.csv", ["photo", "caption", "y", "part"], [])
    write_rows(here / "less.csv", ["photo"], [["photos/0.png"]])
    write_rows(here / "unseen.csv", ["photo", "caption", "y"], [["photos/0.png", "a", "maybe"]])
    got, output, errors = run(*arguments)
    assert got == code, output + errors
    squeezed = " ".join(errors.replace("│", " ").split())
    assert message in squeezed
    assert "Traceback" not in errors
    assert not (here / "runs" / "photos-2").exists()


def test_one_example_is_answered_on_the_terminal(here: Path) -> None:
    code, output, errors = run("predict", "runs/photos", "photos/0.png", "it is red")
    assert code == 0, errors
    lines = output.splitlines()
    assert lines[0].split()[0] in ("yes", "no")
    assert lines[1].startswith("probabilities: ")
    assert lines[2].startswith("read after 2 steps")
    code, output, errors = run("predict", "runs/photos", "it is red", "--json")
    found = json.loads(output)
    assert found["note"] == "photo is missing"
    assert found["probabilities"].keys() == {"yes", "no"}


def test_explain_takes_the_run_first_and_the_older_way_still_works(here: Path, tmp_path: Path) -> None:
    options = ["--steps", "2", "--out", tmp_path / "drawn", "--json"]
    first = run("explain", "runs/photos", "photos/0.png", "it is red", *options)
    older = run("explain", "--model", "runs/photos", "photos/0.png", "it is red", *options)
    assert first[0] == 0, first[2]
    assert json.loads(first[1]) == json.loads(older[1])


def test_columns_of_the_table_stand_beside_the_answers(here: Path, tmp_path: Path) -> None:
    header = ["photo", "caption", "note", "id"]
    write_rows(here / "new.csv", header, [["photos/0.png", "=it is red", "mine", "7"], ["", "it is blue", "", "8"]])
    for form, ours in (("all", header), ("photo", ["photo"]), ("none", [])):
        out = tmp_path / f"{form}.csv"
        chosen = [] if form == "all" else ["--columns", form]
        code, _, errors = run("predict", "runs/photos", "new.csv", "-o", out, *chosen)
        assert code == 0, errors
        found = list(csv.DictReader(out.read_text().splitlines()))
        names = {"note": "input(note)", "id": "input(id)"}
        assert list(found[0])[:3] == ["id", "line", *(names.get(each, each) for each in ours), "answer"][:3]
        assert [row["line"] for row in found] == ["2", "3"]
        if form == "all":
            assert found[0]["caption"] == "'=it is red", "a spreadsheet shows it as text"
            assert [row["input(note)"] for row in found] == ["mine", ""]
            assert [row["note"] for row in found] == ["", "photo is missing"]


def test_debug_shows_where_an_error_came_from(here: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", "runs/fotos", "--debug"])
    assert type(result.exception).__name__ == "StudyError"


@pytest.mark.skipif(
    not (offline_is_installed("image") and offline_is_installed("text")), reason="needs: pip install 'meq[offline]'"
)
def test_a_table_is_read_by_the_offline_encoders_unless_others_are_named(here: Path, tmp_path: Path) -> None:
    place = tmp_path / "offline"
    code, _, errors = run("train", "photos.csv", *COLUMNS, *SMALL, "--out", place)
    assert code == 0, errors
    assert "encoders: photo by efficientnet-lite0, caption by all-MiniLM-L6-v2" in errors
    code, _, errors = run("predict", place, "photos.csv", "-o", tmp_path / "out.csv")
    assert code == 0, errors
    assert "efficientnet-lite0" not in errors, "what training has encoded is read"


def test_without_the_extra_the_built_in_encoders_serve_and_the_better_ones_are_named(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meq.encoders.catalogue.offline_is_installed", lambda kind: False)
    code, _, errors = run("train", "photos.csv", *COLUMNS, *SMALL, "--out", tmp_path / "run")
    assert code == 0, errors
    assert "encoders: photo by patches-6x6-v1, caption by words-64-v1" in errors
    assert "better encoders of image and text come with: pip install 'meq[offline]'" in errors
