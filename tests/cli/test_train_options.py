"""What practitioners expect of `meq train`, by the command line: small tables of numbers, a quick model."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meq.cli import app
from meq.training.record import read_record, read_request, write_request

COLUMNS = ["--vector", "a", "--vector", "b", "--label", "y"]
QUICK = ["--arm", "concat", "--dim", "8", "--heads", "2", "--batch-size", "8"]


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def write(path: Path, rows: int, label: Callable[[float, int], object], *, split: str | None = None) -> Path:
    """Numbers a and b, and a label made of a and the row's number."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "y", *([] if split is None else ["part"])])
        for row in range(rows):
            a = draw.gauss(0, 1)
            part = [] if split is None else ["train" if row < rows * 3 // 4 else split]
            writer.writerow([f"{a:.3f}", f"{draw.gauss(0, 1):.3f}", label(a, row), *part])
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", 60, lambda a, row: "yes" if a > 0.5 else "no")
    return tmp_path


def test_a_small_table_is_trained_long_enough_and_told_what_to_expect(here: Path) -> None:
    code, output, errors = run("train", "t.csv", *COLUMNS, *QUICK[:-2], "--least-updates", "70", "--patience", "2")
    assert code == 0, errors
    said = " ".join(errors.split())
    assert "a small train split: 18 epochs instead of 15, which make at least 70 updates with batches of 12" in said
    assert read_record(here / "runs" / "t").steps >= 70
    assert "note: dev has 6 examples: a share of right answers on it is known to about +-0.31" in output
    assert "95 % interval" in " ".join(output.split())
    assert "always the same" in " ".join(output.split())
    for name in ("balanced accuracy", "macro f1", "macro auroc", "average precision", "log loss", "brier"):
        assert f"{name} " in output
    assert "negative" not in output


def test_epochs_that_are_asked_for_are_not_changed(here: Path) -> None:
    code, output, errors = run("train", "t.csv", *COLUMNS, *QUICK, "--epochs", "2", "--json")
    assert code == 0, errors
    assert "small train split" not in errors
    found = json.loads(output)
    assert found["context"]["test"]["chance"] == 0.5
    assert found["context"]["test"]["intervals"]["accuracy"]["method"] == "Wilson"
    assert found["notes"][0].startswith("dev has 6 examples")
    assert len(read_record(here / "runs" / "t").curves) == 2


def test_a_run_is_trained_further_and_resumed_without_saying_its_epochs_again(here: Path) -> None:
    asked = ["train", "t.csv", *COLUMNS, *QUICK, "--out", "r"]
    assert run(*asked, "--epochs", "1")[0] == 0
    code, _, errors = run(*asked, "--epochs", "3", "--resume")
    assert code == 0, errors
    said = " ".join(errors.split())
    assert "training further, from epoch 1 to 3; the learning rate is that of a run of 3 epochs" in said
    record = read_record(here / "r")
    assert [len(record.curves), *(each.epochs for each in record.sessions)] == [3, 1, 3]
    code, _, errors = run(*asked, "--resume")
    assert code == 0, errors
    assert len(read_record(here / "r").curves) == 3
    code, _, errors = run(*asked, "--resume", "--epochs", "2")
    assert code == 1
    assert "a run that is over can be given more epochs, never fewer" in " ".join(errors.split())


def test_evaluate_shows_every_score_with_its_interval_majority_and_chance(here: Path) -> None:
    assert run("train", "t.csv", *COLUMNS, *QUICK, "--epochs", "1", "--out", "r")[0] == 0
    code, output, errors = run("evaluate", "r", "--device", "cpu")
    assert code == 0, errors
    lines = {line.split("  ")[0]: line for line in output.splitlines()}
    assert "[" in lines["accuracy"]
    assert "[" in lines["macro f1"]
    assert "(no)" in lines["always the same: accuracy"]
    assert "0.5000" in lines["chance: accuracy"]
    assert "95 % intervals over examples (Wilson for shares, bootstrap, 200 resamples)" in output
    assert "dev: label / answer" in output
    code, output, _ = run("evaluate", "r", "--json")
    (split,) = (each for each in json.loads(output)["splits"] if each["split"] == "test")
    assert split["context"]["intervals"].keys() >= {"accuracy", "macro f1", "negative brier"}


def test_an_interrupted_run_is_evaluated_and_asked_with_its_best_weights(here: Path) -> None:
    assert run("train", "t.csv", *COLUMNS, *QUICK, "--epochs", "2", "--out", "r")[0] == 0
    for seal in (here / "r").rglob("seal.json"):
        seal.unlink()
    record = here / "r" / "record.json"
    record.write_text(record.read_text().replace('"status": "finished"', '"status": "interrupted"'))
    code, output, errors = run("evaluate", "r", "--split", "dev")
    assert code == 0, errors
    assert "r is not finished (its record says: interrupted): these are the best weights so far, of epoch" in errors
    assert "accuracy" in output
    code, _, errors = run("predict", "r", "t.csv", "-o", "out.csv", "--device", "cpu")
    assert code == 0, errors
    assert "these are the best weights so far" in errors


def test_class_weights_smoothing_and_modality_dropout_are_plain_options(here: Path) -> None:
    (here / "w.json").write_text('{"yes": 3}')
    options = ["--class-weight", "w.json", "--label-smoothing", "0.1", "--modality-dropout", "0.2", "--device", "cpu"]
    code, _, errors = run("train", "t.csv", *COLUMNS, *QUICK, "--epochs", "1", "--out", "r", *options)
    assert code == 0, errors
    record = read_record(here / "r")
    assert record.objective.class_weights == (1.0, 3.0)
    assert record.model["options"]["modality_dropout"] == 0.2
    assert record.sessions[0].hardware.device == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--class-weight", "w.json"], "w.json has a weight for 'yess', no label: did you mean 'yes'"),
        (["--class-weight", "ballanced"], "--class-weight cannot be 'ballanced': did you mean 'balanced'"),
        (["--label-smoothing", "1"], "--label-smoothing must lie in [0, 1)"),
        (["--modality-dropout", "1"], "--modality-dropout must lie in [0, 1)"),
        (["--patience", "-1"], "--patience must be at least 0"),
        (["--device", "cdua"], "there is no device 'cdua'"),
        (["--task", "clases"], "there is no task 'clases': did you mean 'classes'"),
        (["--task", "score", "--set", "task=classes"], "the --task is 'score' and, among the options, 'classes'"),
    ],
)
def test_a_wrong_option_is_told_before_training_with_the_nearest(options: list[str], message: str, here: Path) -> None:
    (here / "w.json").write_text('{"yess": 3}')
    code, _, errors = run("train", "t.csv", *COLUMNS, *QUICK, "--out", "r", *options)
    assert code == 1
    assert message in " ".join(errors.split())
    assert not (here / "r" / "record.json").exists()


def test_weights_of_classes_are_refused_for_scores(here: Path) -> None:
    write(here / "s.csv", 40, lambda a, row: f"{a:.2f}")
    code, _, errors = run("train", "s.csv", *COLUMNS, *QUICK, "--class-weight", "balanced", "--task", "score")
    assert code == 1
    assert "--class-weight has no meaning for the task 'score'" in errors


def test_numbers_that_look_like_scores_are_asked_about_and_trained_as_what_they_are(here: Path) -> None:
    write(here / "s.csv", 40, lambda a, row: f"{a:.2f}")
    code, _, errors = run("train", "s.csv", *COLUMNS, *QUICK, "--epochs", "1")
    assert code == 1
    assert "(--task score), numbers to come near to, or" in " ".join(errors.split())
    code, output, errors = run("train", "s.csv", *COLUMNS, *QUICK, "--epochs", "1", "--task", "score", "--out", "r")
    assert code == 0, errors
    assert all(f"{name} " in output for name in ("pearson", "mae", "rmse"))
    code, output, errors = run("evaluate", "r")
    assert code == 0, errors
    assert "(the mean)" in output


def test_a_run_of_before_on_decimals_as_classes_is_evaluated_without_being_asked(here: Path) -> None:
    write(here / "c.csv", 40, lambda a, row: (0.5, 1.5, 2.5)[row % 3])
    assert run("train", "c.csv", *COLUMNS, *QUICK, "--epochs", "1", "--task", "classes", "--out", "r")[0] == 0
    for seal in (here / "r").rglob("seal.json"):
        seal.unlink()
    request = read_request(here / "r")
    assert request is not None
    write_request(here / "r", replace(request, task=None))  # as an older version wrote it
    code, _, errors = run("evaluate", "r")
    assert code == 0, errors


def test_dev_is_taken_from_train_with_a_sentence_and_found_again(here: Path) -> None:
    write(here / "d.csv", 80, lambda a, row: "yes" if a > 0 else "no", split="test")
    code, _, errors = run("train", "d.csv", *COLUMNS, "--split", "part", *QUICK, "--epochs", "1", "--out", "r")
    assert code == 0, errors
    assert "column 'part' names no dev split, by which the epoch is chosen" in " ".join(errors.split())
    code, output, errors = run("evaluate", "r")
    assert code == 0, errors
    assert "the scores are those of its record" in output


def test_a_packed_table_is_checked_trained_and_answered(here: Path) -> None:
    (here / "p.csv.gz").write_bytes(gzip.compress((here / "t.csv").read_bytes()))
    code, output, errors = run("data", "check", "p.csv.gz", *COLUMNS)
    assert code == 0, errors
    code, output, errors = run("train", "p.csv.gz", *COLUMNS, *QUICK, "--epochs", "1")
    assert code == 0, errors
    assert "the run is in runs/p;" in output
    assert "meq predict runs/p new.csv" in output
    code, output, errors = run("predict", "runs/p", "p.csv.gz", "-o", "out.csv")
    assert code == 0, errors
    assert "60 rows answered" in output
