"""Mistakes on the command line: a sentence at once, in the words of the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from studies.photo_table import COLUMNS, SMALL, WITHOUT_WEIGHTS, write_rows, write_table
from typer.main import get_command
from typer.testing import CliRunner

from meq.cli import app
from meq.cli.errors import flags_of

TABLE = ["photos.csv", *COLUMNS, *WITHOUT_WEIGHTS]
LONGEST = 700


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a run on it in runs/photos, and things to stumble over."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_table(folder)
    write_rows(
        folder / "no_dev.csv", ["photo", "caption", "y", "part"], [["photos/0.png", "a", y, "train"] for y in "ab"]
    )
    write_rows(folder / "three.csv", ["photo", "caption", "y"], [["photos/0.png", "a", y] for y in ("yes", "perhaps")])
    (folder / "file").write_text("")
    (folder / "empty").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, output, errors = run("train", *TABLE, *SMALL)
    assert code == 0, output + errors
    return folder


@pytest.fixture
def here(walked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(walked)
    return walked


def options_of(command: str) -> dict[str, str]:
    """What Python calls the options of a command that have an underscore, and their flags."""
    group: Any = get_command(app)
    for word in command.split():
        group = group.commands[word]
    return {name: flag for name, flag in flags_of(group).items() if "_" in name}


BEFORE_READING: list[tuple[list[str], int, str]] = [
    (["train", *TABLE, "--batch-size", "0"], 1, "--batch-size must be at least 1, got 0"),
    (["train", *TABLE, "--batch-size", "-3"], 1, "--batch-size must be at least 1, got -3"),
    (["train", *TABLE, "--learning-rate", "nan"], 1, "--learning-rate must be positive and finite, got nan"),
    (["train", *TABLE, "--learning-rate", "-1"], 1, "--learning-rate must be positive and finite, got -1.0"),
    (["train", *TABLE, "--learning-rate", "inf"], 1, "--learning-rate must be positive and finite, got inf"),
    (["train", *TABLE, "--epochs", "0"], 1, "--epochs must be at least 1, got 0"),
    (["train", *TABLE, "--accumulate", "0"], 1, "--accumulate must be at least 1"),
    (["train", *TABLE, "--checkpoint-every", "0"], 1, "--checkpoint-every must be at least 1"),
    (["train", *TABLE, "--epochs", "many"], 2, "--epochs"),
    (["train", *TABLE, "--precision", "fp16"], 1, "--precision cannot be 'fp16'"),
    (["train", *TABLE, "--select", "beest"], 1, "did you mean 'best'?"),
    (["train", *TABLE, "--lambda-j", "nan"], 1, "--lambda-j must be 0 (off) or a positive number"),
    (["train", *TABLE, "--lambda-f", "-1"], 1, "--lambda-f must be 0 (off) or a positive number"),
    (["train", *TABLE, "--arm", "meqq"], 1, "did you mean 'meq'?"),
    (
        ["train", *TABLE, "--fast", "--arm", "concat"],
        1,
        "--fast is for models that iterate, and the arm 'concat' does not",
    ),
    (
        ["train", *TABLE, "--fast", "--depth", "uniform(2, 6)"],
        1,
        "--fast and --depth 'uniform(low=2, high=6)' both say",
    ),
    (["train", *TABLE, "--fast", "--backward", "implicit"], 1, "--fast and --backward implicit both say"),
    (["train", *TABLE, "--heads", "5"], 1, "--dim 64 cannot be split into 5 heads"),
    (["train", *TABLE, "--dropout", "1.5"], 1, "1.5"),
    (["train", *TABLE, "--tracker", "tensorbord"], 1, "did you mean 'tensorboard'?"),
    (
        ["train", *TABLE, "--resume", "--out", "runs/photso"],
        1,
        "there is none to go on with: did you mean 'runs/photos'?",
    ),
    (
        ["train", *TABLE, "--resume", "--out", "empty"],
        1,
        "leave out --resume to begin a run in empty: there is none to go on with",
    ),
    (["train", *TABLE, "--out", "file"], 1, "--out file: that is a file"),
    (["train", *TABLE, "--out", "file/below"], 1, "so there can be no folder below it"),
    (["train", *TABLE, "--store", "file"], 1, "--store file: that is a file"),
    (["train", *TABLE, "--set", "fractoins={}"], 1, "did you mean 'fractions'?"),
    (["train", *TABLE, "--set", "seed=one"], 1, "'seed' of a table must be a whole number, got 'one'"),
    (["train", *TABLE, "--set", "seed=1.5"], 1, "'seed' of a table must be a whole number, got 1.5"),
    (["train", *TABLE, "--set", "labels=3"], 1, "'labels' of a table must be a list of texts"),
    (["train", *TABLE, "--set", "seed"], 1, "written NAME=VALUE"),
    (["train", "statements", "--set", "train=many"], 1, "must be a whole number, got 'many'"),
    (["train", "statements", "--set", "trian=5"], 1, "did you mean 'train'?"),
    (["train", "statements", "--image", "photo"], 1, "knows its own columns: leave out --image"),
    (["train", "statements", "--label", "y"], 1, "knows its own columns: leave out --label"),
    (["train", "photso.csv", *COLUMNS], 1, "there is no such file: did you mean 'photos.csv'?"),
    (["train", "photos", "--label", "y"], 1, "there is no data set 'photos': did you mean the table 'photos.csv'?"),
    (["train", "photos.csv", "fotos", *COLUMNS], 1, "fotos is not a folder"),
    (["train", "photos.csv", *COLUMNS, "--text-encoder", "wrods"], 1, "did you mean 'words'?"),
    (
        ["train", "photos.csv", *COLUMNS, "--text-encoder", "patches"],
        1,
        "'patches' reads image or regions, not text",
    ),
    (["train", "photos.csv", *COLUMNS, "--audio-encoder", "wav2vec2"], 1, "no column of kind 'audio' is named"),
    (["train", "photos.csv", *COLUMNS, "--text-encoder", "./nowhere"], 1, "there is no such folder"),
    (["train", "photos.csv", "--audio", "caption", "--label", "y"], 1, "--audio-encoder wav2vec2"),
    (["encode", *TABLE, "--store", "s", "--batch-size", "0"], 2, "--batch-size"),
    (["encode", *TABLE, "--store", "s", "--dtype", "float61"], 1, "did you mean 'float16'?"),
    (["encode", *TABLE, "--store", "s", "--on-damage", "rase"], 1, "did you mean 'raise'?"),
    (["encode", *TABLE, "--store", "s", "--device", "gpu"], 1, "there is no device 'gpu'"),
    (["encode", *TABLE, "--store", "file"], 1, "--store file: that is a file"),
    (["encode", *TABLE], 2, "--store"),
    (["encode", "photos.csv", *COLUMNS, "--store", "s", "--image-encoder", "ptches"], 1, "did you mean 'patches'?"),
    (["predict", "runs/photos", "photos.csv", "-o", "x.txt"], 1, "written as .csv, .jsonl, .parquet"),
    (["predict", "runs/photos", "photos.csv", "-o", "file/x.csv"], 1, "--out file: that is a file"),
    (["predict", "runs/photos", "photos.csv", "-o", "photos.csv"], 1, "write over it with --force"),
    (["predict", "runs/photos", "photso.csv", "-o", "x.csv"], 1, "there is no such file: did you mean 'photos.csv'?"),
    (["predict", "runs/photos", "photos", "-o", "x.csv"], 1, "a table is a file that ends in"),
    (["predict", "runs/photos", "photos.csv", "fotos", "-o", "x.csv"], 1, "fotos: the folder is missing"),
    (["predict", "runs/fotos", "photos.csv", "-o", "x.csv"], 1, "did you mean 'photos'?"),
    (["predict", "runs/photos", "photos.csv", "-o", "x.csv", "--probabilities", "-1"], 2, "--probabilities"),
    (["evaluate", "runs/photos", "photso.csv"], 1, "there is no such file: did you mean 'photos.csv'?"),
    (["evaluate", "runs/photos", "statments"], 1, "did you mean 'statements'?"),
    (["evaluate", "runs/photos", "--store", "file"], 1, "--store file: that is a file"),
    (["evaluate", "runs/fotos"], 1, "there is no run runs/fotos: did you mean 'photos'?"),
    (["analyze", "runs/photos", "photso.csv"], 1, "there is no such file"),
    (["analyze", "runs/photos", "--samples", "0"], 2, "--samples"),
    (["analyze", "runs/photos", "--horizon", "-1"], 1, "--horizon"),
    (
        ["explain", "photos/0.pgn", "a", "--model", "runs/photos"],
        1,
        "the picture is missing: did you mean 'photos/0.png'?",
    ),
    (
        ["explain", "photos/0.png", "a", "--model", "runs/photos", "--method", "gradcamm"],
        1,
        "--method cannot be 'gradcamm'",
    ),
    (["explain", "photos/0.png", "a", "--model", "runs/photos", "--animation", "gfi"], 1, "did you mean 'gif'?"),
    (["explain", "photos/0.png", "a", "--model", "runs/photos", "--out", "file"], 1, "--out file: that is a file"),
    (["explain", "photos/0.png", "a", "--model", "runs/photos", "--steps", "0"], 2, "--steps"),
    (["cost", "runs/photos", "--steps", "1,two"], 1, "whole numbers are needed, as in --steps 1,2,5"),
    (["cost", "runs/photos", "--steps", "0"], 1, "numbers of at least 1 are needed"),
    (["cost", "runs/photos", "--tokens", "image"], 1, "--tokens is written NAME=COUNT"),
    (["cost", "runs/photos", "--device", "gpu"], 1, "there is no device 'gpu'"),
    (["report", "runs/fotos"], 1, "not the folder of a run or a study: it is not there: did you mean 'runs/photos'?"),
    (["report", "runs/photos", "--out", "empty"], 1, "is a folder"),
    (["report", "runs/photos", "--root", "nowhere"], 1, "nowhere: the file or folder is missing"),
    (["report", "runs/photos", "--out", "file/a.html"], 1, "--out file: that is a file"),
    (["demo", "--out", "file"], 1, "--out file: that is a file"),
    (["data", "check", "photso.csv", *COLUMNS], 1, "did you mean 'photos.csv'?"),
    (["data", "show", "photos.csv", *COLUMNS, "--out", "sheet.pdf"], 1, "a sheet is drawn as .png"),
    (["data", "show", "photos.csv", *COLUMNS, "--out", "nowhere/sheet.png"], 1, "there is no folder nowhere"),
    (["data", "show", "photos.csv", *COLUMNS, "--count", "0"], 2, "--count"),
    (["data", "chekc", "photos.csv"], 2, "Did you mean 'check'?"),
    (["study", "run", "mian"], 1, "did you mean 'main'?"),
    (["study", "run", "main", "sceens"], 1, "did you mean 'scenes'?"),
    (["study", "run", "main", "photso.csv"], 1, "did you mean 'photos.csv'?"),
    (["study", "run", "main", "--out", "file"], 1, "that is a file"),
    (["study", "run", "main", "--workers", "0"], 2, "--workers"),
    (["study", "run", "main", "--on", "locla"], 1, "did you mean 'local'?"),
    (["study", "run", "main", "--reuse", "nowhere"], 1, "nowhere: the study to --reuse is missing"),
    (["study", "run", "main", "--rates", "9"], 1, "1 to 5 learning rates"),
    (["study", "status", "nowhere"], 1, "nowhere"),
    (["study", "table", "runs/photos"], 1, "runs/photos"),
    (["study", "verify", "empty"], 1, "empty"),
    (["trian"], 2, "Did you mean 'train'?"),
    (["train", *TABLE, "--bacth-size", "3"], 2, "--batch-size"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BEFORE_READING, ids=[" ".join(c[0]) for c in BEFORE_READING])
def test_a_mistake_is_a_sentence_in_flags_before_anything_is_read(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    def read(*given: Any, **options: Any) -> None:
        raise AssertionError("the data was read before the mistake was found")

    for module, name in (("data.table", "open_table"), ("data.request", "open_data")):
        monkeypatch.setattr(import_module(f"meq.{module}"), name, read)
    monkeypatch.setattr("meq.studies.runner.prepare_data", read)
    before = sorted(os.listdir(here))
    got, output, errors = run(*arguments)
    said = " ".join(errors.replace("│", " ").split())
    assert got == code, output + errors
    assert message in said
    assert "Traceback" not in errors
    if code == 1:
        check_words(errors, " ".join(arguments[: 2 if arguments[0] in ("data", "study") else 1]))
    assert sorted(os.listdir(here)) == before, "nothing is left behind"


def check_words(errors: str, command: str) -> None:
    """One sentence that fits on a screen, and names flags."""
    (told,) = (line for line in errors.splitlines() if line.startswith("error: "))
    assert len(told) < LONGEST
    for name, flag in options_of(command).items():
        assert not re.search(rf"\b{name}\b", told), f"{name} should be {flag}: {told}"


AFTER_READING: list[tuple[list[str], str]] = [
    (["train", "no_dev.csv", *COLUMNS], "there is no 'dev' split, which training needs"),
    (
        ["train", *TABLE, "--batch-size", "500"],
        "fewer than the 500 of one update (--batch-size x processes x accumulate)",
    ),
    (["train", "photos.csv", "--image", "foto", "--label", "y"], "no column 'foto': did you mean 'photo'?"),
    (["train", "photos.csv", "--image", "caption", "--text", "photo", "--label", "y"], "photos.csv, line 2"),
    (["evaluate", "runs/photos", "three.csv"], "'perhaps' is none of the labels"),
    (["evaluate", "runs/photos", "statements"], "has the labels false, true, the run no, yes"),
    (["predict", "runs/photos", "three.csv", "-o", "x.csv", "--id", "nr"], "has no column 'nr'"),
    (["evaluate", "runs/photos", "--split", "tset"], "did you mean 'test'?"),
]


@pytest.mark.parametrize(("arguments", "message"), AFTER_READING, ids=[" ".join(case[0]) for case in AFTER_READING])
def test_what_only_the_data_shows_is_said_before_it_is_encoded(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    if arguments[0] == "train":
        monkeypatch.setattr("meq.training.prepare.encode_and_count", None)
    got, output, errors = run(*arguments)
    assert got == 1, output + errors
    assert message in errors
    check_words(errors, arguments[0])
    assert not (here / "x.csv").exists()


def test_a_place_that_may_not_be_written_is_refused_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meq.records.places.os.access", lambda path, mode: mode == os.R_OK)
    for command in (["train", *TABLE, "--out", "new"], ["predict", "runs/photos", "photos.csv", "-o", "new.csv"]):
        code, _, errors = run(*command)
        assert code == 1
        assert "nothing may be written to" in errors


def test_too_little_room_is_said_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = shutil.disk_usage(here)._replace(free=1000)
    monkeypatch.setattr("meq.records.files.shutil.disk_usage", lambda path: few)
    for command in (
        ["train", *TABLE, "--out", "new"],
        ["encode", *TABLE, "--store", "new"],
        ["predict", "runs/photos", "photos.csv", "-o", "new.csv"],
        ["report", "runs/photos"],
        ["demo", "--out", "new"],
        ["study", "run", "main", "--out", "new"],
    ):
        code, _, errors = run(*command)
        assert code == 1
        assert "1.0 kB are free on its disk" in errors
    assert not (here / "new").exists()


def test_features_that_cannot_fit_are_refused_before_they_are_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meq.encoders.writing.free_bytes", lambda path: 1000)
    monkeypatch.setattr(import_module("meq.encoders.encode"), "ShardWriter", None)
    code, _, errors = run("encode", *TABLE, "--store", "store")
    assert code == 1
    assert re.search(r"contents take at least \d+\.\d kB, and 1\.0 kB are free on its disk", errors)
    shutil.rmtree(here / "store", ignore_errors=True)


BUGS = [
    (["evaluate", "runs/photos"], "meq.runs.evaluate.scores", ZeroDivisionError("division by zero")),
    (["evaluate", "runs/photos"], "meq.training.predictions.collate", KeyError("photo")),
    (["evaluate", "runs/photos"], "meq.runs.evaluate.labelled", ValueError("too many values to unpack")),
    (
        ["predict", "runs/photos", "photos.csv", "-o", "new.csv"],
        "meq.training.predictions.collate",
        StopIteration(),
    ),
    (["train", *TABLE, *SMALL, "--out", "broken"], "meq.training.fit.vitals_of", RuntimeError("shapes differ")),
    (["data", "check", "photos.csv", *COLUMNS], "meq.data.check.inspect_data", AttributeError("no such attribute")),
    (["data", "list"], "meq.cli.data.Table", TypeError("unexpected keyword")),
    (
        ["report", "runs/photos", "--out", "new.html"],
        "meq.runs.showcase.follow_split",
        IndexError("out of range"),
    ),
]


@pytest.mark.parametrize(("arguments", "place", "error"), BUGS, ids=[case[1] for case in BUGS])
def test_a_bug_of_ours_keeps_its_traceback_behind_one_sentence(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], place: str, error: Exception
) -> None:
    def broken(*given: Any, **options: Any) -> None:
        raise error

    module, _, name = place.rpartition(".")
    monkeypatch.setattr(import_module(module), name, broken)
    code, _, errors = run(*arguments)
    assert code == 70, errors
    said = errors[errors.index("error: ") :].splitlines()
    assert said[0].startswith("error: this is a bug in meq, please report it with the lines below: ")
    assert re.search(r": [\w/]+\.py, line \d+, in [\w<>]+$", said[0]), said[0]
    assert "Traceback (most recent call last)" in errors
    assert type(error).__name__ in errors
    shutil.rmtree(here / "broken", ignore_errors=True)


def test_a_bug_inside_torch_is_a_bug(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meq.training.predictions.collate", lambda *_: torch.zeros(2) @ torch.zeros(3))
    code, _, errors = run("evaluate", "runs/photos")
    assert code == 70
    assert "meq/runs/evaluate.py" in errors


def test_memory_that_runs_out_is_the_users_and_says_how_to_go_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **options: Any) -> None:
        torch.empty(1 << 60)

    monkeypatch.setattr("meq.training.predictions.collate", full)
    code, _, errors = run("evaluate", "runs/photos")
    assert code == 1
    assert "there is not enough memory" in errors
    assert "Traceback" not in errors


def test_debug_shows_the_traceback_of_a_mistake(here: Path) -> None:
    result = CliRunner().invoke(app, ["train", *TABLE, "--epochs", "0", "--debug"])
    assert isinstance(result.exception, ValueError)


def test_a_flag_that_is_not_given_does_not_mean_zero(here: Path) -> None:
    """--batch-size 0 once was taken for the default."""
    code, output, errors = run("train", *TABLE, *SMALL[:-2], "--out", "fitted", "--json")
    assert code == 0, errors
    assert json.loads(output)["status"] == "finished"
    shutil.rmtree(here / "fitted")
