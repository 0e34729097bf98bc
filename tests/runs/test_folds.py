"""`meq train --folds`: each row is answered by a model that has not seen it, nor anything of its group."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import meq
from meq.cli import app
from meq.data.request import DataRequest
from meq.runs.folds import cross_validate, fold_request
from meq.runs.load import load_run
from meq.training.predictions import read_predictions

SMALL = ["--epochs", "2", "--dim", "8", "--heads", "2", "--steps", "2", "--learning-rate", "0.01"]
COLUMNS = ["--vector", "a_*", "--vector", "b", "--label", "y", "--group", "person"]


def person_table(path: Path, *, people: int = 12, rows: int = 48, score: bool = False) -> Path:
    """Numbers of several people; the label is in the first numbers."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a_0", "a_1", "b", "y", "person"])
        for at in range(rows):
            a = [draw.gauss(0, 1), draw.gauss(0, 1)]
            label = f"{sum(a):.3f}" if score else "yes" if sum(a) > 0 else "no"
            writer.writerow([*a, draw.gauss(0, 1), label, f"p{at % people}"])
    return path


def typed(table: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(table), *COLUMNS, *SMALL, "--folds", "3", "--out", str(out), *more]


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("folds")
    table = person_table(folder / "people.csv")
    done = CliRunner().invoke(app, typed(table, folder / "out", "--set", "model.hidden=16"))
    assert done.exit_code == 0, done.output
    return table, folder / "out", done.stdout


def test_the_command_prints_folds_mean_and_spread(validated: tuple[Path, Path, str]) -> None:
    _, out, printed = validated
    assert "people.csv: 3 folds (accuracy)" in printed
    assert "All 48 out-of-fold answers together" in printed
    result = json.loads((out / "cross_validation.json").read_text())
    scores = [line["score"] for line in result["lines"]]
    assert result["mean"] == pytest.approx(sum(scores) / 3)
    assert printed.strip().startswith((out / "folds.txt").read_text().strip()[:40])


def test_every_row_is_answered_once_and_groups_stay_whole(validated: tuple[Path, Path, str]) -> None:
    table, out, _ = validated
    people = [row["person"] for row in csv.DictReader(table.read_text().splitlines())]
    found = list(csv.DictReader((out / "out_of_fold.csv").read_text().splitlines()))
    assert [row["id"] for row in found] == [f"people-{line}" for line in range(2, 50)]
    assert len({(person, row["fold"]) for person, row in zip(people, found, strict=True)}) == len(set(people))
    answers = read_predictions(out / "out_of_fold.parquet")
    assert list(answers.ids) == [row["id"] for row in found]


def test_a_fold_is_a_run_like_any_other_that_never_saw_its_test_people(validated: tuple[Path, Path, str]) -> None:
    _, out, _ = validated
    rows = [json.loads(line) for line in (out / "table.jsonl").read_text().splitlines()]
    for fold in (1, 2, 3):
        people = {
            split: {row["person"] for row in rows if row[f"meq_split_{fold}"] == split}
            for split in ("train", "dev", "test")
        }
        assert not people["train"] & people["test"]
        assert not people["train"] & people["dev"]
        assert people["dev"]
    assert load_run(out / "fold-1").record.model["options"]["hidden"] == 16
    done = CliRunner().invoke(app, ["evaluate", str(out / "fold-1"), "--split", "test", "--json"])
    assert done.exit_code == 0, done.output


def test_the_same_command_trains_nothing_again(validated: tuple[Path, Path, str]) -> None:
    table, out, printed = validated
    before = [(out / f"fold-{fold}" / "record.json").stat().st_mtime_ns for fold in (1, 2, 3)]
    done = CliRunner().invoke(app, typed(table, out, "--set", "model.hidden=16"))
    assert done.exit_code == 0, done.output
    assert done.stdout == printed
    assert [(out / f"fold-{fold}" / "record.json").stat().st_mtime_ns for fold in (1, 2, 3)] == before


def test_another_table_or_seed_in_the_same_folder_is_refused(validated: tuple[Path, Path, str]) -> None:
    table, out, _ = validated
    done = CliRunner().invoke(app, typed(table, out, "--seed", "7"))
    assert done.exit_code == 1
    assert "with another seed: choose another folder" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--split", "person"], "--folds makes splits of its own"),
        (["--resume"], "leave out --resume"),
        (["--folds", "40"], "48 rows in 12 groups cannot be laid into 40 folds"),
    ],
)
def test_what_cannot_be_folded_is_said_before_anything_is_trained(
    tmp_path: Path, more: list[str], message: str
) -> None:
    table = person_table(tmp_path / "people.csv")
    done = CliRunner().invoke(app, typed(table, tmp_path / "out", *more))
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out" / "fold-1").exists()


def test_a_data_set_with_splits_of_its_own_is_not_folded(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "statements", "--folds", "3", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "--folds are for tables" in " ".join(done.output.split())


def test_paths_of_pictures_start_where_the_table_lies(tmp_path: Path) -> None:
    table = person_table(tmp_path / "people.csv")
    asked = DataRequest(data=str(table), vectors=("a_*", "b"), label="y")
    assert fold_request(asked, tmp_path / "out", 1).root == tmp_path.resolve()


def test_scores_are_folded_too_and_an_interrupted_fold_goes_on(tmp_path: Path) -> None:
    table = person_table(tmp_path / "people.csv", score=True)
    asked = DataRequest(data=str(table), vectors=("a_*", "b"), label="y", group="person", options={"task": "score"})
    from meq.runs.train_on import train_on
    from meq.training.config import TrainConfig

    begun: list[bool] = []
    config = TrainConfig(epochs=1, batch_size=8)

    def train(request: DataRequest, place: Path, resume: bool) -> None:
        if len(begun) == 1:
            begun.append(resume)
            raise KeyboardInterrupt
        begun.append(resume)
        train_on(request, place, shape={"dim": 8, "heads": 2, "steps": 2}, config=config, resume=resume)

    with pytest.raises(KeyboardInterrupt):
        cross_validate(asked, tmp_path / "out", train, folds=2)
    found = cross_validate(asked, tmp_path / "out", train, folds=2)
    assert len(begun) == 3, "the first fold was not trained again"
    assert found.metric == "r2"
    assert found.to_frame()["fold"].tolist() == [1, 2]


def test_folds_of_a_frame_are_those_of_its_file_and_the_same_call_goes_on(
    validated: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table, out, printed = validated
    monkeypatch.chdir(tmp_path)
    frame = pandas.read_csv(table)
    asked = {"vector": ["a_*", "b"], "label": "y", "group": "person", "folds": 3, "set": {"model.hidden": 16}}
    small = {"epochs": 2, "dim": 8, "heads": 2, "steps": 2, "learning_rate": 0.01}
    found = meq.train(frame, **asked, **small)
    assert isinstance(found, meq.runs.folds.CrossValidation)
    as_file = json.loads((out / "cross_validation.json").read_text())
    assert found.to_frame()["score"].tolist() == [line["score"] for line in as_file["lines"]]
    together = next(line for line in printed.splitlines() if "out-of-fold answers together" in line)
    assert together.strip() in str(found)
    assert "<td" in found._repr_html_()
    place = Path("runs/table-3-folds")
    before = (place / "fold-1" / "record.json").stat().st_mtime_ns
    assert meq.train(frame, **asked, **small).together == found.together
    assert (place / "fold-1" / "record.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="other rows than the DataFrame has"):
        meq.train(frame.iloc[1:], **asked, **small)
    with pytest.raises(ValueError, match="leave out `resume`"):
        meq.train(frame, **asked, **small, resume=True)


def test_a_frame_that_cannot_be_folded_leaves_nothing_behind(tmp_path: Path) -> None:
    frame = pandas.read_csv(person_table(tmp_path / "people.csv"))
    for more, words in (({"label": "z"}, "no column 'z'"), ({"folds": 1}, "`folds` must be a whole number")):
        asked = {"vector": ["a_*", "b"], "label": "y", "folds": 3, "out": tmp_path / "out", **more}
        with pytest.raises(ValueError, match=words):
            meq.train(frame, **asked)
        assert not (tmp_path / "out").exists()
