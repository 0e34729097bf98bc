"""The front door: meq.train, meq.load and the verbs of meq.Run, as somebody who comes from pandas uses them."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest
from studies.photo_table import write_table

import meq
from meq.data.findings import DataError
from meq.data.pictures import open_picture
from meq.runs import TrainedRun, load_run
from meq.runs.answers import Answer, Answers
from meq.runs.front import train
from meq.studies.study import StudyError
from meq.training.arms import FITTED, SHAPE
from meq.training.config import SMALL

COLUMNS: dict[str, Any] = {"image": "photo", "text": "caption", "label": "y", "split": "part"}
TINY: dict[str, Any] = {"epochs": 1, "dim": 8, "heads": 2, "steps": 2, "radius_samples": 0, "monitor_samples": 4}
TINY |= {"image_encoder": "patches", "text_encoder": "words"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, and a run on a DataFrame of them in runs/table."""
    folder = tmp_path_factory.mktemp("front")
    write_table(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        meq.train(frame_in(folder), **COLUMNS, **TINY)
    return folder


def frame_in(folder: Path) -> pandas.DataFrame:
    frame = pandas.read_csv(folder / "photos.csv")
    frame["note"] = [f"seen {row}" for row in range(len(frame))]
    return frame.set_axis([f"row {row}" for row in range(len(frame))])


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def run(here: Path) -> meq.Run:
    return meq.load("runs/table")


def test_a_run_on_a_frame_is_a_run_like_any_other_and_goes_where_its_folder_goes(run: meq.Run, tmp_path: Path) -> None:
    assert isinstance(run, meq.Run)
    assert TrainedRun is meq.Run
    found = run.evaluate()
    assert found.same_data
    assert [each.as_recorded for each in found.splits] == [None, True, True]
    shutil.copytree("runs/table", tmp_path / "moved")
    (tmp_path / "away").mkdir()
    shutil.move("runs/table/table.parquet", tmp_path / "away")
    try:
        assert meq.load(tmp_path / "moved").evaluate(split="dev").same_data
        with pytest.raises(DataError, match="which the run was trained on, is not here"):
            run.evaluate()
    finally:
        shutil.move(tmp_path / "away" / "table.parquet", "runs/table/table.parquet")


def test_a_frame_is_answered_by_the_names_of_its_rows_with_its_columns_beside(run: meq.Run, here: Path) -> None:
    frame = frame_in(here).iloc[3:6]
    frame.loc["row 4", "caption"] = None
    answers = run.predict(frame)
    assert isinstance(answers, Answers)
    found = answers.to_frame()
    assert list(found.index) == ["row 3", "row 4", "row 5"]
    assert list(found["photo"]) == list(frame["photo"])
    assert list(found["input(note)"]) == list(frame["note"])
    assert list(found["note"]) == ["", "caption is missing", ""], "that all steps were taken is nothing unusual"
    assert found["stopped"].str.startswith("budget").all()
    assert set(found["answer"]) <= {"yes", "no"}
    assert "<td>row 3</td>" in answers._repr_html_()
    assert str(answers).splitlines()[0].split() == ["id", "answer", "confidence", "note"]
    few = run.predict(frame, columns=["y"]).to_frame()
    assert "photo" not in few
    assert list(few["y"]) == list(frame["y"])
    assert "y" not in run.predict(frame, columns=()).to_frame()


def test_a_frame_is_scored_as_its_file_is(run: meq.Run, here: Path) -> None:
    frame = frame_in(here).iloc[:8]
    frame.to_csv(here / "few.csv", index=False)
    assert run.evaluate(frame).rows() == run.evaluate("few.csv").rows()
    frame.loc["row 2", "y"] = "maybe"
    with pytest.raises(DataError, match=r"the DataFrame, row 'row 2': .*'maybe' is none of the labels"):
        run.evaluate(frame)
    with pytest.raises(DataError, match="data must be a path of a table"):
        run.evaluate(7)


def test_a_bad_row_of_a_frame_is_named_or_left_out(run: meq.Run, here: Path) -> None:
    frame = frame_in(here).iloc[:3]
    frame.loc["row 1", "photo"] = "photos/gone.png"
    with pytest.raises(DataError, match=r"the DataFrame, row 'row 1': column 'photo': .*skip_bad=True"):
        run.predict(frame)
    answers = run.predict(frame, skip_bad=True)
    assert list(answers.to_frame().index) == ["row 0", "row 2"]
    assert str(answers.left_out[0]).startswith("the DataFrame, row 'row 1': ")
    with pytest.raises(DataError, match="the DataFrame has no column 'capton': did you mean 'caption'"):
        run.predict(frame, columns=["capton"])


def test_one_picture_and_one_text_are_answered_and_explained(run: meq.Run, here: Path) -> None:
    answer = run.predict("photos/0.png", "it is red")
    assert isinstance(answer, Answer)
    (same,) = run.predict([{"photo": "photos/0.png", "caption": "it is red"}])
    assert answer.answer == same.answer
    assert answer.confidence == pytest.approx(same.confidence)
    assert str(answer).startswith(f"{answer.answer} ({answer.confidence:.3f})\nprobabilities: ")
    explained = run.explain("photos/0.png", "it is red", steps=2)
    assert explained.answer == answer.answer
    assert list(explained.to_frame()["step"]) == [0, 1, 2]
    contrast = run.explain("photos/0.png", "it is red", steps=2, instead="it is blue")
    assert len(contrast.to_frame()) == 3
    alone = run.predict("photos/0.png")
    assert alone.note == "caption is missing"


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (("a", "b"), "'b' is one text too many: this run reads a picture for 'photo' and a text"),
        (("photos/0.pgn", "a"), "photos/0.pgn: the picture is missing: did you mean 'photos/0.png'"),
        (("photos/9.png", "a"), "photos/9.png: the picture is missing: did you mean"),
        (("a.wav",), "'a.wav' is one sound too many"),
        ((3,), "data must be a path of a table"),
        (("photos.csv", "photos", "photos"), "a table is followed by one folder at most"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(run: meq.Run, contents: Any, words: str) -> None:
    with pytest.raises((StudyError, DataError), match=words):
        run.predict(*contents)


def test_the_other_verbs_return_what_prints_and_draws_itself(run: meq.Run, here: Path, tmp_path: Path) -> None:
    cost = run.cost(batch=2, steps=[1], passes=1)
    assert str(cost).startswith("cost: MutualEquilibrium")
    assert len(cost.to_frame()) == len(cost.rows())
    audit = run.audit(samples=2)
    assert list(audit.to_frame().columns)[:2] == ["question", "name"]
    assert "verdict:" in audit._repr_html_()
    assert "<pre>MutualEquilibrium in runs/table" in run._repr_html_()
    with pytest.raises(StudyError, match="nothing to calibrate was named"):
        run.calibrate()
    with pytest.raises(ValueError, match="`steps` and `full` say two different depths"):
        run.evaluate(steps=2, full=True)
    page = run.report(tmp_path / "page.html", only_files=True)
    assert page.read_text().startswith("<!doctype html>") or "<html" in page.read_text()


def test_the_diagnosis_is_kept_and_is_a_table_of_steps(run: meq.Run, here: Path) -> None:
    found = run.diagnose(samples=1, limit=8, horizon=3)
    frame = found.to_frame()
    assert list(frame["step"]) == list(found.trajectory.steps)
    assert frame.loc[frame["read"], "step"].tolist() == [2]
    assert (here / "runs" / "table" / "analysis" / "analysis.json").is_file()


def test_nothing_is_left_of_a_run_that_did_not_begin(here: Path) -> None:
    frame = frame_in(here)
    frame.loc["row 7", "photo"] = "photos/gone.png"
    for given, words in (
        ({"data": frame}, r"the DataFrame, row 'row 7': column 'photo': there is no picture 'photos/gone.png'"),
        ({"data": frame_in(here), "image": "phto"}, "the DataFrame has no column 'phto': did you mean 'photo'"),
        ({"data": frame_in(here), "arm": "concta"}, "did you mean 'concat'"),
        ({"data": 7}, "data must be a path of a table"),
        ({"data": "photos.csv", "label": None}, "name the column that holds the labels"),
    ):
        with pytest.raises((DataError, ValueError), match=words):
            meq.train(**{**COLUMNS, **TINY, "out": "runs/never", **given})
        assert not Path("runs/never").exists()
    with pytest.raises(TypeError, match=r"train\(\) has no option 'imge': did you mean 'image'"):
        meq.train(frame, imge="photo")
    with pytest.raises(TypeError, match=r"predict\(\) has no option 'roots': did you mean 'root'"):
        meq.load("runs/table").predict(frame, roots="photos")  # type: ignore[call-arg]


def test_a_run_goes_on_with_the_same_frame_only(here: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree("runs/table", out)
    frame = frame_in(here)
    frame.loc["row 0", "caption"] = "it is pink"
    with pytest.raises(DataError, match="holds a run on other rows than the DataFrame has"):
        meq.train(frame, **COLUMNS, **TINY, out=out, resume=True)
    with pytest.raises(ValueError, match=r"already holds a run: .*the same call with out=.*resume=True"):
        meq.train(frame_in(here), **COLUMNS, **TINY, out=out)


def test_a_dataset_with_pictures_in_it_trains_a_run_that_needs_nothing_else(here: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    frame = frame_in(here)
    rows = [
        {"photo": open_picture(here / each.photo), "caption": each.caption, "y": each.y, "part": each.part}
        for each in frame.itertuples()
    ]
    dataset = datasets.Dataset.from_list(rows)
    run = meq.train(dataset, **COLUMNS, **TINY, out=tmp_path / "run")
    assert run.evaluate(split="dev").same_data
    as_file = load_run(here / "runs" / "table").evaluate(split="dev").splits[0].metrics
    assert run.evaluate(split="dev").splits[0].metrics == pytest.approx(as_file, rel=1e-3)
    assert len(run.predict(dataset.select(range(2)))) == 2


def test_the_defaults_of_the_front_door_are_those_of_the_command_line() -> None:
    defaults = {name: each.default for name, each in inspect.signature(train).parameters.items()}
    assert {name: defaults[name] for name in SHAPE} == dict(SHAPE)
    for name, value in vars(SMALL).items():
        if name != "trackers":
            assert defaults[name] == (None if name in FITTED else value), name
