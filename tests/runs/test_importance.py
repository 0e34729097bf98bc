"""What a run's answers rest on, measured on its own data, kept, and read by evaluate and the command line."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest
from runs.number_table import FEW, SHAPE, numbers_request, write_numbers
from studies.photo_table import BUILT_IN, request_for, write_table
from typer.testing import CliRunner

from meq.cli import app
from meq.cli import importance as command
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.importance import importance_of_run, read_importance
from meq.runs.words import without_word
from meq.studies import StudyError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on numbers that has learned something: a_0 decides most, b_0 less, the others nothing."""
    folder = tmp_path_factory.mktemp("numbers")
    request = numbers_request(write_numbers(folder / "numbers.csv"), fractions=[0.6, 0.2, 0.2])
    train_on(request, folder / "run", shape=SHAPE, config=replace(FEW, epochs=8))
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> TrainedRun:
    return load_run(place / "run")


def test_modalities_and_columns_are_ranked_by_what_they_decide(place: Path, run: TrainedRun) -> None:
    found = run.importance(repeats=4)
    assert (found.origin.split, found.samples) == ("test", 120)
    assert [each.name for each in found.ranked("modality")] == ["a", "b"]
    assert found.ranked("modality")[0].shuffled.low > 0.05
    columns = found.ranked("column")
    assert columns[0].name == "a_0"
    assert columns[0].shuffled.low > 0.05
    assert {each.name for each in columns} == {"a_0", "a_1", "b_0", "b_1"}
    assert not found.ranked("token"), "a vector is one token"
    assert found.table().rows[0][:2] == ("a", "modality")
    assert "lost, shuffled" in str(found)
    assert list(found.to_frame()["part"][:2]) == ["a", "b"]
    assert read_importance(place / "run") == found
    assert read_importance(place / "run", "0" * 64) is None


def test_evaluate_says_what_each_modality_is_worth_beside_linear_models(run: TrainedRun) -> None:
    found = run.evaluate()
    worth = found.worth
    assert worth is not None
    assert (worth.split, worth.samples) == ("test", 120)
    assert worth.score.value == pytest.approx(found.splits[-1].metrics["accuracy"], abs=1e-9)
    a, b = worth.modalities
    assert a.shuffled.low > 0.05
    assert a.missing is not None
    assert a.alone is not None
    assert b.alone is not None
    assert a.alone > b.alone
    assert worth.linear is not None
    assert worth.linear > b.alone
    assert worth.majority is not None
    assert worth.majority < 0.7
    assert "linear model of it alone" in str(found)
    assert run.evaluate(split="dev", worth=False).worth is None


def test_another_table_has_no_linear_models_and_a_small_one_is_not_measured(place: Path, run: TrainedRun) -> None:
    write_numbers(place / "other.csv", rows=30, seed=5)
    worth = run.evaluate(place / "other.csv").worth
    assert worth is not None
    assert worth.linear is None
    assert "need the train and dev splits" in worth.notes[0]
    write_numbers(place / "tiny.csv", rows=12, seed=5)
    assert run.evaluate(place / "tiny.csv").worth is None


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run on pictures and captions such as "it is red"."""
    folder = tmp_path_factory.mktemp("photos")
    request = request_for(write_table(folder, rows=96))
    once = replace(FEW, epochs=1, batch_size=12)
    return train_on(request, folder / "run", encoders=BUILT_IN, shape=SHAPE, config=once)


def test_tokens_of_pictures_and_texts_are_looked_at_by_their_place(photos: TrainedRun) -> None:
    run = photos
    found = importance_of_run(run, repeats=1, samples=8, split="dev", keep=False)
    names = [each.name for each in found.parts if each.kind == "token"]
    assert {"caption 1", "caption 2", "caption 3"} <= set(names)
    assert any(name.startswith("photo ") for name in names)
    assert len([name for name in names if name.startswith("photo ")]) <= 36
    assert photos.place is not None
    assert read_importance(photos.place) is None
    assert importance_of_run(run, repeats=1, samples=8, tokens=False, keep=False).parts[-1].kind == "modality"


def test_a_word_counts_what_is_lost_when_the_texts_that_have_it_are_asked_without(photos: TrainedRun) -> None:
    found = photos.importance(repeats=1, tokens=False, split="dev")
    words = {each.word: each for each in found.words}
    assert set(words) == {"it", "is", "red", "green", "blue"}
    assert (words["it"].found, words["red"].found) == (24, 9)
    assert photos.place is not None
    table = pandas.read_csv(photos.place.parent / "photos.csv")
    rows = table[(table["part"] == "dev") & table["caption"].str.contains("red")]
    without = rows.assign(caption="it is")
    begin = {"root": photos.place.parent, "raw": True}
    whole, less = (photos.predict(each, **begin).to_frame() for each in (rows, without))
    true = [f"p({label})" for label in rows["y"]]
    lost = [whole.loc[at, name] - less.loc[at, name] for at, name in zip(rows.index, true, strict=True)]
    assert words["red"].probability is not None
    assert words["red"].probability.value == pytest.approx(sum(lost) / len(lost), abs=1e-5)
    assert words["red"].probability.low <= words["red"].probability.value <= words["red"].probability.high
    right = (whole["answer"] == rows["y"]).mean() - (less["answer"] == rows["y"]).mean()
    assert words["red"].removed.value == pytest.approx(right)
    frame = found.to_frame()
    assert set(frame[frame["kind"] == "word"]["part"]) == {f"caption: {word}" for word in words}
    assert "What single words count" in str(found)
    assert "encoded anew" in found._repr_html_()
    assert [each.word for each in found.words] == sorted(words, key=lambda word: -words[word].lost.value)
    few = photos.importance(repeats=1, tokens=False, words=2, split="dev")
    assert {each.word for each in few.words} == {"it", "is"}
    assert not photos.importance(repeats=1, tokens=False, words=0, split="dev").words


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A red, red Red door.", "A , door."),
        ("Redder than red", "Redder than"),
        (("red or not", "a red one"), ("or not", "a one")),
        ("red!", None),
        (("red", "a red one"), None),
    ],
)
def test_a_word_is_left_out_whole_and_nothing_is_left_of_a_text_without_another(text: object, left: object) -> None:
    assert without_word(text, "red") == left


def test_what_cannot_be_measured_is_said(run: TrainedRun) -> None:
    with pytest.raises(StudyError, match="`repeats` must be at least 1"):
        run.importance(repeats=0)
    with pytest.raises(StudyError, match="has no split 'tets'"):
        run.importance(split="tets")


def test_one_row_of_numbers_cannot_be_typed_and_what_says_something_of_it_is_named(place: Path) -> None:
    for given in ([], ["a.png", "a text"]):
        result = CliRunner().invoke(app, ["explain", str(place / "run"), *given])
        assert result.exit_code == 1
        said = " ".join(result.stderr.split())
        assert "this run reads numbers ('a', 'b'), which only a table can give: meq importance" in said


def test_the_command_line_prints_keeps_and_says_json(place: Path) -> None:
    result = CliRunner().invoke(app, ["importance", str(place / "run"), "--repeats", "2", "--json"])
    assert result.exit_code == 0, result.stderr
    assert {each["kind"] for each in json.loads(result.stdout)["parts"]} == {"modality", "column"}
    result = CliRunner().invoke(app, ["evaluate", str(place / "run"), "--split", "test", "--no-worth"])
    assert "What each modality is worth" not in result.stdout


def test_what_is_written_twice_for_the_sake_of_a_fast_help_is_the_same() -> None:
    library = inspect.signature(importance_of_run).parameters
    assert [library[name].default for name in ("samples", "repeats", "words")] == [
        *(command.SAMPLES, command.REPEATS, command.WORDS)
    ]
