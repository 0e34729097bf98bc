"""Probabilities of a trained run: rows are kept apart, a temperature and sets are fitted, kept, loaded and used."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runs.number_table import FEW, SHAPE, numbers_request, write_numbers
from typer.testing import CliRunner

from meq.analysis.probabilities import classes_within
from meq.cli import app
from meq.data.contract import Example
from meq.data.table import table
from meq.records import write_sealed
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.calibrate import CALIBRATION, StopOptions, calibrate_probabilities, calibrate_run
from meq.runs.predict import _covered
from meq.runs.probabilities import Source, applied, how_read, measured_coverage
from meq.studies import StudyError
from meq.training.predictions import Predictions
from meq.training.prepare import prepare_request


def run_of(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    request = numbers_request(write_numbers(folder / "numbers.csv"))
    train_on(request, folder / "run", shape=SHAPE, config=FEW)
    write_numbers(folder / "fresh.csv", rows=800, seed=7)
    write_numbers(folder / "few.csv", rows=40, seed=8)
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> TrainedRun:
    return load_run(place / "run")


def truths(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [row["y"] for row in csv.DictReader(file)]


def test_half_of_a_large_dev_split_is_kept_apart_and_chooses_nothing(place: Path, run: TrainedRun) -> None:
    assert run.record is not None
    sizes = run.record.data.splits
    assert sizes["calibration"] == pytest.approx(sizes["dev"], abs=2)
    assert sizes["dev"] + sizes["calibration"] == 330
    assert run.record.selected.split == "dev"
    assert run.request is not None
    assert run.request.options["calibration"] == 0.5
    again = run.request.open()
    assert {name: len(part) for name, part in again.splits.items()} == dict(sizes)


def test_small_tables_and_those_that_say_so_keep_their_whole_dev_split(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "numbers.csv", rows=300)
    columns = {"vectors": ["a_*", "b_*"], "label": "y"}
    assert set(table(path, calibration=0.5, **columns).splits) == {"train", "dev", "test"}  # type: ignore[arg-type]
    said: list[str] = []
    large = write_numbers(tmp_path / "large.csv")
    data, _ = prepare_request(numbers_request(large, calibration=0), {}, run=tmp_path / "run", say=said.append)
    assert "calibration" not in data.splits
    assert not said
    data, _ = prepare_request(numbers_request(large), {}, run=tmp_path / "run", say=said.append)
    assert "kept apart for probabilities" in said[0]
    for wrong in (1.0, -0.1):
        with pytest.raises(ValueError, match="calibration is the share of dev"):
            table(path, calibration=wrong, **columns)  # type: ignore[arg-type]


def test_a_run_that_was_begun_without_rows_apart_goes_on_without(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_on(numbers_request(place / "numbers.csv", calibration=0), folder, shape=SHAPE, config=FEW)
    assert load_run(folder).calibration is None
    kept = json.loads((folder / "request.json").read_text())
    del kept["options"]["calibration"], kept["seal"]  # as older versions wrote it
    write_sealed(folder / "request.json", kept)
    data, _ = prepare_request(numbers_request(place / "numbers.csv"), {}, run=folder)
    assert "calibration" not in data.splits


def test_the_column_of_splits_may_name_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "named.csv"
    parts = ["train"] * 4 + ["dev", "Calib"]
    path.write_text("x,y,part\n" + "".join(f"{k},{k % 2},{parts[k % 6]}\n" for k in range(60)))
    found = table(path, vectors="x", label="y", split="part")
    assert {name: len(part) for name, part in found.splits.items()} == {"train": 40, "dev": 10, "calibration": 10}


def test_training_fits_a_temperature_and_predict_uses_it_unless_told_otherwise(place: Path, run: TrainedRun) -> None:
    assert run.calibration is not None
    fitted = run.calibration.temperature
    assert fitted is not None
    assert fitted.loss[1] <= fitted.loss[0]
    assert fitted.source.split == "calibration"
    assert "nothing was chosen on calibration before" in fitted.source.notes
    answers, raw = run.predict(place / "few.csv"), run.predict(place / "few.csv", raw=True)
    for mine, plain in zip(answers[:20], raw[:20], strict=True):
        assert mine.answer == plain.answer
        assert torch.equal(mine.logits, plain.logits)
        torch.testing.assert_close(mine.probabilities, (mine.logits / fitted.value).softmax(0))
        torch.testing.assert_close(plain.probabilities, plain.logits.softmax(0))
        assert mine.confidence == pytest.approx(float(mine.probabilities.max()))
    assert f"probabilities by temperature {fitted.value:.3f}" in answers.summary()["calibration"][0]
    assert raw.summary()["calibration"] == ["probabilities are raw, as was asked for"]


def test_sets_cover_fresh_rows_after_the_whole_pipeline(place: Path, run: TrainedRun) -> None:
    answers = run.predict(place / "fresh.csv", coverage=0.9)
    held = [true in each.among for true, each in zip(truths(place / "fresh.csv"), answers, strict=True)]
    made = answers.applied.promise
    assert made is not None
    deviation = math.sqrt(0.9 * 0.1 * (1 / len(held) + 1 / made.rows))
    assert abs(sum(held) / len(held) - 0.9) < 3 * deviation
    assert all(each.answer == each.among[0] for each in answers)
    assert {len(each.among) for each in answers} == {1, 2}
    assert "at least 0.9 of the sets hold the true answer" in answers.summary()["calibration"][1]
    assert answers.rows()[0]["set"] == "|".join(answers[0].among)


def fresh_rows(count: int) -> list[Example]:
    """Rows that no training, no choice and no calibration has seen, drawn as those of the table are."""
    random = np.random.default_rng(2026)
    x = random.normal(size=(count, 4))
    yes = 2 * x[:, 0] + x[:, 2] + random.normal(size=count) > 0
    content = torch.from_numpy(x).float()
    return [
        Example(id=f"fresh-{row}", content={"a": content[row, :2], "b": content[row, 2:]}, target=torch.tensor(int(y)))
        for row, y in enumerate(yes)
    ]


def test_sets_keep_their_promise_over_100_draws_of_calibration_and_new_rows_after_the_whole_pipeline(
    run: TrainedRun,
) -> None:
    """Rows are answered by the trained run, and each draw goes the way of `calibrate` and of `predict --coverage`."""
    assert run.calibration is not None
    draws, calibrating, new, level, wrong = 100, 100, 60, 0.9, 0.85
    rows, model, head = fresh_rows(1500), run.model_read(), run.task.head
    logits = torch.stack([each.logits for each in run.predict(rows)])
    target = torch.stack([each.target for each in rows if each.target is not None])
    source = Source(data="fresh", split="calibration", rows=calibrating, read=how_read(model))
    held, held_wrongly = 0, 0
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(rows))
        known, asked = order[:calibrating], order[calibrating : calibrating + new]
        answers = Predictions(ids=[rows[at].id for at in known], logits=logits[known], target=target[known])
        made = measured_coverage(answers, head, source)
        calibrated = replace(run, calibration=replace(run.calibration, coverage=made))
        sets = [
            each["among"] for each in _covered(calibrated, logits[asked], applied(calibrated, model, coverage=level))
        ]
        if draw == 0:
            whole = calibrated.predict([rows[at] for at in asked], coverage=level)
            assert [each.among for each in whole] == sets
        held += sum(run.labels[int(target[at])] in each for at, each in zip(asked, sets, strict=True))
        fewer = classes_within(logits[asked], head, made.promise(wrong).threshold)
        held_wrongly += sum(int(target[at]) in each for at, each in zip(asked, fewer, strict=True))
    # with 100 rows, of 101 equally likely places of a new row's score 91 are within the threshold
    expected = math.ceil((calibrating + 1) * level) / (calibrating + 1)
    rest = expected * (1 - expected)
    deviation = math.sqrt(rest / (draws * new) + rest / (draws * (calibrating + 2)))
    assert abs(held / (draws * new) - expected) < 3 * deviation
    assert abs(held_wrongly / (draws * new) - expected) > 3 * deviation, "the check tells a threshold that is too small"


def test_a_level_that_the_rows_cannot_promise_is_refused(place: Path, run: TrainedRun) -> None:
    with pytest.raises(ValueError, match=r"`coverage` 0.999 needs at least 999 rows of calibration, and there are 165"):
        run.predict(place / "few.csv", coverage=0.999)
    with pytest.raises(ValueError, match="a share between 0 and 1"):
        run.predict(place / "few.csv", coverage=90)


def test_answers_that_are_read_elsewhere_have_raw_probabilities_and_no_sets(place: Path, run: TrainedRun) -> None:
    other = run.predict(place / "few.csv", steps=5)
    assert other.applied.temperature == 1
    assert other.summary()["calibration"] == [
        "probabilities are raw: the temperature was fitted on answers read at step 2"
    ]
    with pytest.raises(StudyError, match="read at step 2, and these are read at step 5"):
        run.predict(place / "few.csv", steps=5, coverage=0.9)


def test_a_rule_and_a_temperature_are_kept_together(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)
    calibrate_run(load_run(folder), StopOptions(rule="change", risk=0.9, most=6))
    run = load_run(folder)
    assert run.calibration is not None
    assert run.anytime is not None
    assert run.calibration.temperature is not None
    assert "fitted on answers read at step 2" in run.predict(place / "few.csv").applied.words[0]
    calibrate_probabilities(run)
    again = load_run(folder)
    assert again.anytime == run.anytime
    assert "read by the rule change" in again.predict(place / "few.csv", coverage=0.8).applied.words[0]


def test_a_run_without_rows_apart_says_how_many_it_needs(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "numbers.csv", rows=240)
    run = train_on(numbers_request(path), tmp_path / "run", shape=SHAPE, config=FEW)
    assert run.calibration is None
    with pytest.raises(StudyError, match=r"its dev split has 132, and of at least 200 in a table half are kept"):
        calibrate_probabilities(run)
    with pytest.raises(StudyError, match="the weights have learned its answers"):
        calibrate_probabilities(run, split="train")
    with pytest.raises(StudyError, match=r"test has 24 labelled rows, and calibration needs at least 100"):
        calibrate_probabilities(run, split="test")
    found = calibrate_probabilities(run, split="dev", coverage=False)
    assert "the best epoch on dev" in str(found)
    with pytest.raises(StudyError, match="needs a calibrated run"):
        load_run(tmp_path / "run").predict(path, coverage=0.9)


def test_numbers_get_intervals_that_cover_fresh_rows(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "numbers.csv", task="score")
    run = train_on(numbers_request(path, task="score"), tmp_path / "run", shape=SHAPE, config=FEW)
    assert run.calibration is not None
    assert run.calibration.temperature is None
    fresh = write_numbers(tmp_path / "fresh.csv", rows=400, seed=7, task="score")
    answers = run.predict(fresh, coverage=0.8)
    true = [float(each) for each in truths(fresh)]
    inside = [low <= y <= high for y, (low, high) in zip(true, (each.interval for each in answers), strict=True)]
    assert abs(sum(inside) / len(inside) - 0.8) < 3 * math.sqrt(0.8 * 0.2 * (1 / 400 + 1 / 165))
    row = answers.rows()[0]
    assert row["low"] < row["answer"] < row["high"]
    with pytest.raises(StudyError, match="numbers, which have no probabilities"):
        calibrate_probabilities(run)


def test_the_command_line_calibrates_and_predicts_with_coverage(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)
    (folder / "model" / CALIBRATION).unlink()
    code, said, errors = run_of("predict", folder, place / "few.csv", "-o", tmp_path / "a.csv", "--coverage", "0.9")
    assert code == 1
    assert "--coverage needs a calibrated run, and this one is not: meq calibrate RUN --coverage" in errors
    code, said, errors = run_of("calibrate", folder, "--temperature", "--coverage")
    assert code == 0, errors
    assert "expected calibration error" in said
    assert "with --coverage 0.9, at least 0.9 of the sets hold the true answer" in said
    code, said, errors = run_of("predict", folder, place / "few.csv", "-o", tmp_path / "b.csv", "--coverage", "0.9")
    assert code == 0, errors
    assert "probabilities by temperature" in said
    assert "coverage: at least 0.9 of the sets" in said
    with (tmp_path / "b.csv").open(newline="") as file:
        assert {row["set"] for row in csv.DictReader(file)} <= {"yes", "no", "yes|no", "no|yes"}
    code, said, errors = run_of("calibrate", folder, "--temperature", "--json")
    assert json.loads(said)["temperature"]["source"]["rows"] == 165
