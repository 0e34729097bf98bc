"""meq data, as a new user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from data.folders import snli_ve_folder
from PIL import Image
from typer.testing import CliRunner

from meq.cli import app
from meq.data import DATA_SETS
from meq.runs import load_run

SCENES = ["scenes", "--set", "train=18", "--set", "dev=18", "--set", "test=18"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def a_table(folder: Path, *, broken: bool = False) -> Path:
    Image.new("RGB", (8, 6), "red").save(folder / "red one.png")
    Image.new("RGB", (6, 8), "blue").save(folder / "blue.png")
    rows = [
        f"{('red one', 'blue')[k % 2]}.png,picture {k},{('warm', 'cold')[k % 2]},{('train', 'dev')[k > 7]}"
        for k in range(12)
    ]
    if broken:
        rows[3] = "gone.png,picture 3,warm,train"
    path = folder / "data.csv"
    path.write_text("\n".join(["photo,caption,y,part", *rows]) + "\n", encoding="utf-8")
    return path


COLUMNS = ["--image", "photo", "--text", "caption", "--label", "y", "--split", "part"]


def test_the_list_names_every_data_set() -> None:
    code, output = run("data", "list")
    assert code == 0
    assert all(name in output for name in DATA_SETS)


def test_the_embedded_set_is_checked_and_drawn(tmp_path: Path) -> None:
    code, output = run("data", "check", *SCENES)
    assert code == 0, output
    assert "entailment: 6, neutral: 6, contradiction: 6" in output
    code, output = run("data", "show", *SCENES, "--count", "3", "--out", str(tmp_path / "sheet.png"))
    assert code == 0, output
    assert "there is a" in output
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 600
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_a_folder_is_checked_and_shown(tmp_path: Path) -> None:
    folder = snli_ve_folder(tmp_path)
    code, output = run("data", "check", "snli-ve", str(folder))
    assert code == 0, output
    assert "Ready to encode" in output
    code, output = run("data", "show", "snli-ve", str(folder), "--count", "1")
    assert code == 0, output


def test_a_table_of_ones_own_is_checked_and_shown(tmp_path: Path) -> None:
    path = a_table(tmp_path)
    code, output = run("data", "check", str(path), *COLUMNS)
    assert code == 0, output
    assert "warm: 4" in output
    code, output = run("data", "show", str(path), *COLUMNS, "--part", "dev", "--count", "2", "--seed", "3")
    assert code == 0, output
    assert "picture" in output


def test_a_check_that_finds_something_fails_and_says_where(tmp_path: Path) -> None:
    path = a_table(tmp_path, broken=True)
    code, output = run("data", "check", str(path), *COLUMNS)
    assert code == 1
    assert "data.csv, line 5" in output
    assert "gone.png" in output
    code, output = run("data", "show", str(path), *COLUMNS)
    assert code == 1
    assert "line 5" in output
    code, output = run("data", "show", str(path), *COLUMNS, "--skip-bad")
    assert code == 0, output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "sceens"], "did you mean 'scenes'?"),
        (["check", "snli-ve"], "give its path"),
        (["check", "snli-ve", "nowhere"], "is not a folder"),
        (["check", "scenes", "--set", "trian=18"], "did you mean 'train'?"),
        (["check", "scenes", "--set", "train"], "NAME=VALUE"),
        (["check", "scenes", "--label", "y"], "leave out --label"),
        (["check", "none.csv", "--label", "y", "--text", "t"], "no such file"),
        (["check", "none.csv", "--text", "t"], "--label"),
        (["check", "none.csv", "--label", "y"], "at least one column"),
        (["show", "statements", "--part", "tset"], "did you mean 'test'?"),
        (["show", *SCENES, "--out", "sheet.gif"], ".png"),
        (["show", *SCENES, "--out", "no/folder/sheet.png"], "there is no folder"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run("data", *arguments)
    assert code == 1
    assert message in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


def test_a_table_trains_from_pictures_and_texts(tmp_path: Path) -> None:
    path = a_table(tmp_path)
    small = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "4"]
    code, output = run("train", str(path), *COLUMNS, "--out", str(tmp_path / "run"), *small)
    assert code == 0, output
    assert "finished" in output


@pytest.mark.parametrize("standardise", [True, False])
def test_numbers_of_a_table_are_standardised_by_train_and_the_statistics_stay_with_the_run(
    standardise: bool, tmp_path: Path
) -> None:
    rows = [f'{{"a": [{k}, {1000 + k % 3}], "b": [{k % 2}], "y": "{"yes" if k % 2 else "no"}"}}' for k in range(40)]
    path = tmp_path / "numbers.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    small = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "8"]
    columns = ["--vector", "a", "--vector", "b", "--label", "y"]
    option = "--standardise" if standardise else "--no-standardise"
    code, output = run("train", str(path), *columns, "--out", str(tmp_path / "run"), option, *small)
    assert code == 0, output
    statistics = load_run(tmp_path / "run").task.standardisation
    if standardise:
        assert statistics is not None
        assert statistics.mean["a"][1] == pytest.approx(1001, abs=0.5)
    else:
        assert statistics is None
