"""`meq tune`: trials that depend on their number alone, chosen on dev, with test untouched until the end."""

from __future__ import annotations

import csv
import json
import random
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import meq
from meq.cli import app
from meq.runs.search_space import (
    SPACE,
    LogUniform,
    OneOf,
    drawn_settings,
    parse_space,
    space_for,
    usual_settings,
)
from meq.runs.tune import make_search, run_search, trial_place
from meq.runs.tune_search import Tuning
from meq.training.arms import SHAPE
from meq.training.config import SMALL
from meq.training.record import read_record

TINY = {"dim": [8, 16], "steps": [2, 3], "learning_rate": (1e-3, 3e-2)}


def number_table(path: Path, *, rows: int = 80) -> Path:
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "y"])
        for _ in range(rows):
            a, b = draw.gauss(0, 1), draw.gauss(0, 1)
            writer.writerow([a, b, "yes" if a + b > 0 else "no"])
    return path


# -- the space ---------------------------------------------------------------------------------------------------------


def test_a_trial_is_drawn_by_seed_and_number_alone() -> None:
    space, first = space_for("meq"), usual_settings()
    drawn = [drawn_settings(space, trial, seed=0, first=first) for trial in range(1, 30)]
    assert drawn[7] == drawn_settings(space, 8, seed=0, first=first)
    assert drawn[7] != drawn_settings(space, 8, seed=1, first=first)
    for settings in drawn:
        assert 1e-4 <= settings["learning_rate"] <= 1e-2
        assert settings["dim"] in (32, 64, 128)
    assert len({settings["learning_rate"] for settings in drawn}) > 25


def test_a_given_range_changes_no_other_draw() -> None:
    first = usual_settings()
    plain = drawn_settings(space_for("meq"), 5, seed=0, first=first)
    other = drawn_settings(space_for("meq", {"dim": [8]}), 5, seed=0, first=first)
    assert {**other, "dim": plain["dim"]} == plain


def test_the_first_trial_is_what_training_does_by_itself() -> None:
    found = drawn_settings(space_for("meq"), 1, seed=3, first=usual_settings())
    assert found["learning_rate"] == SMALL.learning_rate
    assert found["dim"] == SHAPE["dim"]
    fixed = drawn_settings(space_for("meq", {"dim": [8]}), 1, seed=3, first=usual_settings())
    assert fixed["dim"] == 8, "a space that does not have the usual value is obeyed"


def test_ranges_can_be_typed() -> None:
    found = parse_space(["learning-rate=1e-4:1e-2", "dim=32,64", "depth=uniform(2, 8)", "dropout=0.1"])
    assert found == {
        "learning_rate": LogUniform(1e-4, 1e-2),
        "dim": OneOf((32, 64)),
        "depth": OneOf(("uniform(2, 8)",)),
        "dropout": OneOf((0.1,)),
    }


def test_a_model_that_does_not_iterate_is_not_searched_for_depth() -> None:
    assert set(SPACE) - set(space_for("concat")) >= {"steps", "depth", "lambda_j", "lambda_f"}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"learningrate": [1]}, "did you mean 'learning_rate'"),
        ({"dim": [30]}, "cannot be split into 4 heads"),
        ({"depth": ["unifrm(2, 8)"]}, "did you mean 'uniform'"),
        ({"learning_rate": (1e-2, 1e-4)}, "from its lower end to its upper"),
        ({"lambda_j": [-1.0]}, "must be 0 .off. or a positive number"),
    ],
)
def test_a_space_that_makes_no_model_is_an_error_before_anything_is_read(space: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        make_search(meq.data.request.DataRequest(data="missing.csv"), space=space)


# -- the search --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Tuning]:
    folder = tmp_path_factory.mktemp("tune")
    table = number_table(folder / "numbers.csv")
    call = {
        "vector": ["a", "b"],
        "label": "y",
        "out": folder / "out",
        "epochs": 1,
        "space": TINY,
        "shape": {"heads": 2},
    }
    return table, folder / "out", meq.tune(table, trials=2, **call)  # type: ignore[arg-type]


def test_no_trial_sees_test_and_the_best_alone_is_scored_on_it(tuned: tuple[Path, Path, Tuning]) -> None:
    _, out, found = tuned
    for trial in (1, 2):
        assert set(read_record(trial_place(out, trial)).metrics) <= {"train", "dev"}
        assert set(read_record(trial_place(out, trial)).data.splits) == {"train", "dev"}
    assert "test" in read_record(Path(found.run)).metrics
    assert found.scores["test"] == read_record(Path(found.run)).metrics["test"]["accuracy"]


def test_the_best_is_the_best_on_dev_and_trained_to_the_same_score(tuned: tuple[Path, Path, Tuning]) -> None:
    _, _, found = tuned
    best = max(found.trials, key=lambda each: (each.score, -each.trial))
    assert found.best == best.trial
    assert found.scores["dev"] == best.score
    assert found.command in str(found)


def test_the_command_that_is_printed_trains_with_the_settings_found(
    tuned: tuple[Path, Path, Tuning], tmp_path: Path
) -> None:
    _, _, found = tuned
    done = CliRunner().invoke(app, [*shlex.split(found.command)[1:], "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    again, best = read_record(tmp_path / "run"), read_record(Path(found.run))
    assert again.model["options"] == best.model["options"]
    assert again.config == best.config
    assert again.metrics == best.metrics


def test_the_same_command_goes_on_and_more_trials_are_added(tuned: tuple[Path, Path, Tuning]) -> None:
    table, out, found = tuned
    before = trial_place(out, 1).joinpath("record.json").stat().st_mtime_ns
    typed = ["tune", str(table), "--vector", "a", "--vector", "b", "--label", "y", "--out", str(out), "--epochs", "1"]
    typed += ["--heads", "2", "--space", "dim=8,16", "--space", "steps=2,3", "--space", "learning_rate=1e-3:3e-2"]
    done = CliRunner().invoke(app, [*typed, "--trials", "3", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [each["trial"] for each in told["trials"]] == [1, 2, 3]
    assert told["trials"][0]["settings"] == dict(found.trials[0].settings)
    assert trial_place(out, 1).joinpath("record.json").stat().st_mtime_ns == before

    done = CliRunner().invoke(app, [*typed, "--trials", "3", "--seed", "5"])
    assert done.exit_code == 1
    assert "holds a search with another seed and config" in " ".join(done.output.split())


def test_a_search_that_is_interrupted_goes_on_with_the_same_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meq.runs import tune as tuning

    table = number_table(tmp_path / "numbers.csv")
    request = meq.data.request.DataRequest(data=str(table), vectors=("a", "b"), label="y")
    from dataclasses import replace

    search = make_search(request, space=TINY, config=replace(SMALL, epochs=1), shape={"heads": 2}, fixed=["epochs"])
    real, made = tuning.train_arm, []

    def once(*args: object, **options: object) -> object:
        made.append(args[2])
        if len(made) == 1:
            raise KeyboardInterrupt
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "train_arm", once)
    with pytest.raises(KeyboardInterrupt):
        run_search(search, tmp_path / "out", trials=1)
    found = run_search(search, tmp_path / "out", trials=1)
    assert made[0] == made[1] == trial_place(tmp_path / "out", 1)
    assert found.best == 1


def test_hours_are_counted_over_all_calls(tuned: tuple[Path, Path, Tuning]) -> None:
    from meq.runs.tune import _numbers

    _, out, found = tuned
    made = len(list((out / "trials").iterdir()))
    assert list(_numbers(out, None, 1e-6)) == [], "they are spent already"
    assert next(_numbers(out, None, 100.0)) == made + 1
    assert found.trials[0].seconds > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--trials", "0"], "--trials must be a whole number of at least 1"),
        (["--hours", "-1"], "--hours must be a positive number"),
        (["--on", "rya"], "did you mean 'ray'"),
        (["--workers", "2"], "--workers makes sense with --on ray"),
        (["--space", "dim"], "write NAME=LOW:HIGH"),
        (["--arm", "meqq"], "did you mean 'meq'"),
    ],
)
def test_mistakes_are_sentences(tmp_path: Path, more: list[str], message: str) -> None:
    table = number_table(tmp_path / "numbers.csv", rows=30)
    typed = ["tune", str(table), "--vector", "a", "--vector", "b", "--label", "y", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*typed, *more])
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not list((tmp_path / "out").glob("trials/*"))


def test_the_best_is_calibrated_with_rows_that_chose_nothing(tmp_path: Path) -> None:
    table = number_table(tmp_path / "numbers.csv", rows=440)
    call = {"vector": ["a", "b"], "label": "y", "out": tmp_path / "out", "trials": 1, "epochs": 1}
    call |= {"space": {"dim": [8], "steps": [2]}, "shape": {"heads": 2}, "options": {"fractions": [0.4, 0.5, 0.1]}}
    found = meq.tune(table, **call)  # type: ignore[arg-type]
    seen = read_record(trial_place(tmp_path / "out", 1)).data.splits
    assert seen == {"train": 176, "dev": 110}, "trials never see the rows that calibrate"
    answers = meq.load(found.run).predict(table, coverage=0.9)
    assert "fitted on 110 rows of calibration" in " ".join(answers.applied.words)
    assert "calibration" not in found.command, "`meq train` keeps such rows apart by itself"
    kept = Path(found.run) / "model" / "calibration.json"
    before = kept.stat().st_mtime_ns
    assert meq.tune(table, **call).scores == found.scores  # type: ignore[arg-type]
    assert kept.stat().st_mtime_ns == before
