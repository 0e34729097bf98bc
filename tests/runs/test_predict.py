from __future__ import annotations

import csv
import json
import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from studies.photo_table import BUILT_IN, request_for, write_rows, write_table

from meq.core.solution import Stop
from meq.data.contract import Example
from meq.data.findings import DataError
from meq.data.request import DataRequest
from meq.encoders.builtin import Words
from meq.encoders.catalogue import EncoderError
from meq.records import BusyError, FormatError, alone, dumps, write_sealed
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.analyze import AnalysisOptions, RunAnalysis, analyze_run, read_analysis, write_analysis
from meq.runs.answers import summary_lines
from meq.runs.evaluate import confusion_text, evaluate_run
from meq.runs.own_data import ReadOptions, encoders_of_run
from meq.runs.predict import Answer, Answers, AnswersError, answer_all, csv_text, predict_table
from meq.studies import StudyError, read_predictions
from meq.studies.verify import read_manifest, sealed, verify, write_manifest
from meq.training import TrainConfig
from meq.training.bundle import read_task
from meq.training.prepare import CALIBRATED

SMALL = {"dim": 8, "heads": 2, "steps": 2}
ONCE = TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)
RELEASED = Path(__file__).parents[1] / "records" / "0.1.0" / "runs" / "meq" / "seed-0" / "model" / "task.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its pictures, and a run on it."""
    folder = tmp_path_factory.mktemp("practice")
    train_on(request_for(write_table(folder)), folder / "run", encoders=BUILT_IN, shape=SMALL, config=ONCE)
    return folder


@pytest.fixture
def run(place: Path) -> TrainedRun:
    return load_run(place / "run")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- prediction --------------------------------------------------------------------------------------------------------


def test_the_table_of_training_is_answered_as_the_record_has_it(place: Path, run: TrainedRun) -> None:
    answers = run.predict_table(place / "photos.csv")
    assert [answer.line for answer in answers] == list(range(2, 38))
    kept = read_predictions(place / "run" / "predictions" / "dev.parquet")
    found = {answer.id: answer for answer in answers}
    for name, logits in zip(kept.ids, kept.logits, strict=True):
        torch.testing.assert_close(found[name].logits, logits, rtol=1e-5, atol=1e-6)
        assert found[name].answer == ("no", "yes")[int(logits.argmax())]
        assert found[name].confidence == pytest.approx(float(logits.softmax(0).max()), abs=1e-6)


def test_an_empty_cell_is_a_missing_modality_as_the_model_knows_it(
    place: Path, run: TrainedRun, tmp_path: Path
) -> None:
    path = write_rows(
        tmp_path / "new.csv",
        ["caption", "photo"],
        [["it is red", "photos/0.png"], ["it is red", ""], ["", "photos/0.png"]],
    )
    both, text, image = run.predict_table(path, root=place)
    assert (both.missing, text.missing, image.missing) == ((), ("photo",), ("caption",))
    assert (both.note, text.note) == ("", "photo is missing")
    assert math.isnan(text.residuals["photo"])
    assert both.steps == 2
    assert both.stop is Stop.BUDGET
    tokens = Words()(["it is red"])[0].features[None]
    with torch.no_grad():
        alone = run.model({"caption": tokens})
    torch.testing.assert_close(text.logits, alone.logits[0], rtol=1e-5, atol=1e-6)
    residual = float(alone.solution.final_residual["caption"][0])
    assert text.residuals["caption"] == pytest.approx(residual, rel=1e-4)


def test_answers_are_written_whole_in_three_forms_and_never_over_a_file(
    place: Path, run: TrainedRun, tmp_path: Path
) -> None:
    new = write_rows(tmp_path / "new.csv", ["photo", "caption"], [["photos/1.png", "it is blue"], ["", "it, is"]])
    answers = run.predict_table(new, root=place)
    for suffix in ("csv", "jsonl", "parquet"):
        answers.save(tmp_path / f"out.{suffix}")
    kept = rows_of(tmp_path / "out.csv")
    beside, found = ["id", "line", "photo", "caption"], ["answer", "confidence", "p(no)", "p(yes)", "steps"]
    assert list(kept[0]) == [*beside, *found, "residual(photo)", "residual(caption)", "stopped", "note"]
    assert [row["id"] for row in kept] == ["new-2", "new-3"]
    assert float(kept[0]["p(no)"]) + float(kept[0]["p(yes)"]) == pytest.approx(1, abs=1e-5)
    assert kept[0]["stopped"] == Stop.BUDGET.value
    assert kept[1]["residual(photo)"] == ""
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == answers.rows() == pq.read_table(tmp_path / "out.parquet").to_pylist()
    before = (tmp_path / "out.csv").read_bytes()
    with pytest.raises(AnswersError, match=r"out.csv is there already.*--force"):
        answers.save(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == before
    answers.save(tmp_path / "out.csv", force=True, probabilities=0)
    assert "p(no)" not in rows_of(tmp_path / "out.csv")[0]
    with pytest.raises(AnswersError, match=r"written as .csv, .jsonl, .parquet"):
        answers.save(tmp_path / "out.xlsx")


HOSTILE = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1", "\r=1", "'=1", "''@x", '=HYPERLINK("http://x")']
HARMLESS = ["-5", "+3.5", "1e-3", "a=b", "'quoted'", "", "cat"]


def test_formulas_in_ids_and_labels_are_text_in_a_spreadsheet_and_come_back_as_they_were(tmp_path: Path) -> None:
    logits = torch.zeros(2)
    words = [*HOSTILE, *HARMLESS]
    answers = [Answer(id=word, answer=word, logits=logits, confidence=0.5, line=-3) for word in words]
    Answers(answers=answers, labels=("=a", "b"), modalities=()).save(tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    for row, word in zip(rows, words, strict=True):
        assert row["id"] == row["answer"] == (f"'{word}" if word in HOSTILE else word)
        assert csv_text(row["id"]) == word
        assert (row["confidence"], row["line"]) == ("0.5", "-3"), "numbers stay numbers"
    Answers(answers=answers, labels=("=a", "b"), modalities=()).save(tmp_path / "out.jsonl")
    kept = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert kept == words, "JSON is not read by spreadsheets"


def test_a_row_that_cannot_be_read_is_an_error_with_its_line_or_left_out_and_named(
    place: Path, run: TrainedRun, tmp_path: Path
) -> None:
    rows = [["photos/0.png", "it is red"], ["photos/nowhere.png", "it is red"], ["", ""], ["photos/1.png", "x"]]
    path = write_rows(tmp_path / "new.csv", ["photo", "caption"], rows)
    with pytest.raises(DataError, match=r"new.csv, line 3: .*nowhere"):
        run.predict_table(path, root=place)
    answers = run.predict_table(path, root=place, skip_bad=True)
    assert [answer.line for answer in answers] == [2, 5]
    assert [finding.line for finding in answers.left_out] == [3, 4]


def test_a_column_that_is_not_there_is_named_with_what_to_do(place: Path, run: TrainedRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "new.csv", ["photo", "captoin"], [["photos/0.png", "it is red"]])
    with pytest.raises(DataError, match=r"no column 'caption': did you mean 'captoin'.*empty cells"):
        run.predict_table(path, root=place)
    empty = write_rows(tmp_path / "empty.csv", ["photo", "caption"], [])
    with pytest.raises(DataError, match=r"empty.csv: there is no row to read in it"):
        run.predict_table(empty)


def test_ids_come_from_a_column_where_one_is_named(place: Path, run: TrainedRun, tmp_path: Path) -> None:
    rows = [["a", "", "it is red"], ["b", "", "it is blue"]]
    path = write_rows(tmp_path / "new.csv", ["name", "photo", "caption"], rows)
    assert [answer.id for answer in predict_table(run, path, id_column="name")] == ["a", "b"]


def test_an_example_without_a_token_gets_no_answer_and_leaves_the_others_alone(run: TrainedRun) -> None:
    tokens = torch.ones(2, run.task.widths["caption"])
    empty = Example(id="empty", content={"caption": tokens[:0]}, target=None)
    first, second = answer_all(run, [empty, Example(id="full", content={"caption": tokens}, target=None)])
    assert first.answer is None
    assert first.note == "photo is missing; caption is missing; there is no answer"
    assert second.answer in ("no", "yes")


def test_what_is_not_finite_is_written_as_unknown() -> None:
    lost = Answer(id="a", answer=None, logits=torch.full((2,), math.nan), probabilities=torch.full((2,), math.nan))
    diverged = Answer(id="b", answer="no", logits=torch.zeros(2), probabilities=torch.ones(2) / 2, stop=Stop.DIVERGED)
    rows = Answers(answers=[lost, diverged], labels=("no", "yes"), modalities=()).rows()
    assert rows[0]["p(no)"] is None
    assert rows[0]["note"] == "there is no answer"
    assert rows[1]["note"].startswith("the iteration diverged")


def test_numbers_labels_and_scores_go_the_same_way(tmp_path: Path) -> None:
    """Two columns of numbers; several labels, then a score."""
    rows = [[f"{k % 5}", f"{k % 3} {k % 7}", ("a|b", "a", "b")[k % 3], f"{k % 5 + k % 3}"] for k in range(60)]
    path = write_rows(tmp_path / "numbers.csv", ["x_1", "z", "tags", "score"], rows)
    asked = DataRequest(data=str(path), vectors=("x_*", "z"), label="tags", options={"task": "labels"})
    run = train_on(asked, tmp_path / "tags", shape=SMALL, config=ONCE)
    new = write_rows(tmp_path / "new.csv", ["x_1", "z"], [["1", "0 3"], ["", "1 1"]])
    answers = run.predict_table(new)
    assert all(isinstance(answer.answer, tuple) for answer in answers)
    assert set(answers.rows()[0]["answer"].split("|")) <= {"a", "b", ""}
    assert answers[1].missing == ("x",)
    assert run.evaluate().splits[1].as_recorded is True, "standardised as in training"
    wide = write_rows(tmp_path / "wide.csv", ["x_1", "z"], [["1", "0 3 4"]])
    with pytest.raises(DataError, match=r"line 2: column 'z' holds 3 numbers, the model was trained on 2"):
        run.predict_table(wide)
    scored = train_on(
        replace(asked, label="score", options={"task": "score"}), tmp_path / "scored", shape=SMALL, config=ONCE
    )
    first = scored.predict_table(new)[0]
    assert first.answer == pytest.approx(float(first.logits[0]))
    assert first.probabilities is None


# -- the encoders of a run ---------------------------------------------------------------------------------------------


def test_the_encoders_of_a_run_are_made_again(run: TrainedRun) -> None:
    found = encoders_of_run(run)
    assert {name: encoder.name for name, encoder in found.items()} == {
        "photo": "patches-6x6-v1",
        "caption": "words-64-v1",
    }
    assert run.task.specs["photo"] == {"encoder": "patches", "kind": "image", "options": {"grid": 6}}
    older = replace(run, task=replace(run.task, kinds={}, specs={}))
    assert {name: encoder.kind for name, encoder in encoders_of_run(older).items()} == {
        "photo": "image",
        "caption": "text",
    }


@pytest.mark.parametrize("older", [False, True])
def test_an_encoder_that_cannot_be_had_is_answered_with_what_to_do(run: TrainedRun, older: bool) -> None:
    local = {"encoder": "transformers", "kind": "image", "options": {"model": "my-model", "revision": "local"}}

    def with_encoder(**changes: str) -> TrainedRun:
        facts = replace(run.task.encoders["photo"], **changes)
        specs = {**run.task.specs, **({"photo": local} if "name" in changes else {})}
        encoders = {**run.task.encoders, "photo": facts}
        return replace(run, task=replace(run.task, encoders=encoders, specs={} if older else specs))

    with pytest.raises(EncoderError, match=r"'photo' was encoded by patches-6x6-v1 .* is something else"):
        encoders_of_run(with_encoder(sha256="0" * 64))
    with pytest.raises(EncoderError, match=r"read from a folder.*--image-encoder FOLDER"):
        encoders_of_run(with_encoder(name="my-model", revision="local"))
    with pytest.raises(EncoderError, match=r"no config.json in it"):
        encoders_of_run(with_encoder(name="my-model", revision="local"), chosen={"image": str(run.folder.parent)})


def test_an_encoder_that_was_not_registered_has_to_be_given(run: TrainedRun) -> None:
    unknown = replace(run, task=replace(run.task, specs={**run.task.specs, "photo": {}}))
    with pytest.raises(EncoderError, match=r"'photo' was encoded by .* was not registered .*register_encoder"):
        _ = encoders_of_run(unknown)["photo"].loaded


def test_a_task_of_the_first_release_still_loads() -> None:
    task = read_task(RELEASED)
    assert (task.kinds, task.specs, task.columns, task.label) == ({}, {}, {}, None)


def test_the_run_keeps_what_it_was_asked_for_and_notices_changes(place: Path, run: TrainedRun, tmp_path: Path) -> None:
    assert run.request is not None
    asked = {**vars(request_for(place / "photos.csv")), "options": {"calibration": CALIBRATED}}
    assert {name: getattr(run.request, name) for name in asked} == asked
    assert run.request.encoders == BUILT_IN
    assert run.task.columns == {"photo": ("photo",), "caption": ("caption",)}
    copy = Path(shutil.copytree(place / "run", tmp_path / "copy"))
    path = copy / "request.json"
    path.write_text(path.read_text().replace('"label": "y"', '"label": "z"'))
    with pytest.raises(FormatError, match=r"request\.json changed since the run was sealed"):
        load_run(copy)
    for seal in copy.rglob("seal.json"):
        seal.unlink()
    with pytest.raises(FormatError, match="its own hash does not match"):
        _ = load_run(copy).request


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_the_scores_of_the_own_data_are_those_of_the_record(run: TrainedRun) -> None:
    found = run.evaluate()
    assert run.record is not None
    assert found.same_data
    assert [each.split for each in found.splits] == ["train", "dev", "test"]
    scored = {each.split: each for each in found.splits}
    for split, recorded in run.record.metrics.items():
        assert scored[split].metrics == recorded
        assert scored[split].as_recorded
    confusion = torch.tensor(scored["dev"].confusion)
    assert confusion.sum() == 9
    assert float(confusion.diag().sum() / confusion.sum()) == pytest.approx(scored["dev"].metrics["accuracy"])
    assert "best epoch on dev" in str(found)
    assert [each.split for each in run.evaluate(split="test").splits] == ["test"]
    with pytest.raises(StudyError, match="no split 'tets': did you mean 'test'"):
        run.evaluate(split="tets")


def test_another_table_is_scored_by_the_same_labels(place: Path, run: TrainedRun, tmp_path: Path) -> None:
    rows = [["photos/0.png", "it is red", "yes"], ["photos/1.png", "", "no"], ["photos/2.png", "it is red", "maybe"]]
    path = write_rows(tmp_path / "more.csv", ["photo", "caption", "y"], rows)
    with pytest.raises(DataError, match=r"more.csv, line 4: 'maybe' is none of the labels"):
        evaluate_run(run, str(path), root=place)
    found = evaluate_run(run, str(path), root=place, reading=ReadOptions(on_bad="skip"))
    assert not found.same_data
    assert "fingerprints differ" in str(found)
    assert (found.left_out, found.splits[0].split, found.splits[0].examples) == (1, "all", 2)
    assert found.splits[0].recorded is None


def test_a_table_that_has_changed_since_training_is_said_to(place: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(place, tmp_path / "moved"))
    table = folder / "photos.csv"
    table.write_text(table.read_text().replace("it is red", "it is white", 1))
    request = folder / "run" / "request.json"
    assert str(place) in request.read_text(), "paths are kept as they were given"
    run = load_run(folder / "run")
    assert not evaluate_run(run, str(table)).same_data
    (place / "photos.csv").rename(place / "gone.csv")
    try:
        with pytest.raises(DataError, match="is not here: give the table's place"):
            run.evaluate()
    finally:
        (place / "gone.csv").rename(place / "photos.csv")


def test_a_run_of_a_study_knows_its_data(finished: Path) -> None:
    found = load_run(finished / "runs" / "meq" / "seed-0").evaluate()
    assert found.same_data
    assert all(each.as_recorded for each in found.splits if each.split != "train")


# -- analysis ----------------------------------------------------------------------------------------------------------


def test_the_analysis_is_kept_sealed_beside_the_run(place: Path, run: TrainedRun) -> None:
    found = analyze_run(run, options=AnalysisOptions(samples=2))
    kept = read_analysis(place / "run")
    assert kept is not None
    assert dumps(kept) == dumps(found)
    assert str(kept) == str(found)
    assert len(kept.diagnosis.radius) == 2
    assert kept.origin.split == "test"
    assert kept.trajectory.read == 2
    assert kept.trajectory.steps == (0, 1, 2, 3, 4)
    assert run.record is not None
    at_read = kept.trajectory.metric[kept.trajectory.steps.index(2)]
    assert at_read == pytest.approx(run.record.metrics["test"]["accuracy"])
    assert "verdict:" in str(found)
    path = place / "run" / "analysis" / "analysis.json"
    path.write_text(path.read_text().replace('"samples": 2', '"samples": 9'))
    with pytest.raises(FormatError, match="its own hash does not match"):
        read_analysis(place / "run")


def test_an_analysis_is_not_kept_in_a_folder_that_another_process_trains_in(place: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(place / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("analysis")))
    kept = analyze_run(load_run(copy), options=AnalysisOptions(samples=1), keep=False)
    said: list[str] = []
    with alone(copy, "held by a training"):
        thread = threading.Thread(target=lambda: said.append(str(refused(copy, kept))))
        thread.start()
        thread.join()
    assert said == [f"a run is being trained in {copy}: what was measured is of weights that it may replace"]
    assert not (copy / "analysis").exists()
    write_analysis(copy, kept)
    assert read_analysis(copy) is not None


def refused(folder: Path, kept: RunAnalysis) -> BusyError:
    with pytest.raises(BusyError) as caught:
        write_analysis(folder, kept)
    return caught.value


def test_what_an_older_version_measured_is_not_read_and_goes_with_the_next_analysis(copied: Path) -> None:
    place = copied / "runs" / "meq" / "seed-0"
    older = [place / "analysis" / name for name in ("diagnosis.json", "trajectory.json")]
    for path in older:
        write_sealed(path, {"origin": {"schema": 1}, "verdict": "healthy", "page": "verdict: healthy"})
    names = [path.relative_to(copied).as_posix() for path in older]
    write_manifest(copied, sealed(read_manifest(copied), copied, names))
    assert verify(copied).ok
    assert read_analysis(place) is None
    analyze_run(load_run(place), options=AnalysisOptions(samples=1, limit=8, split="dev"))
    assert verify(copied).ok
    assert [path.name for path in (place / "analysis").iterdir()] == ["analysis.json"]
    assert read_analysis(place) is not None


def test_an_analysis_with_other_fields_counts_as_none(place: Path, tmp_path: Path) -> None:
    write_sealed(tmp_path / "analysis" / "analysis.json", {"schema": 1, "origin": {}, "diagnosis": {}})
    assert read_analysis(tmp_path) is None
    write_sealed(tmp_path / "analysis" / "analysis.json", {"schema": 2})
    assert read_analysis(tmp_path) is None


def test_a_study_stays_verified_after_one_of_its_runs_was_analyzed(copied: Path) -> None:
    analyze_run(load_run(copied / "runs" / "meq" / "seed-0"), options=AnalysisOptions(samples=1, limit=8, split="dev"))
    assert verify(copied).ok
    with pytest.raises(ValueError, match="Concat does not iterate"):
        analyze_run(load_run(copied / "runs" / "concat" / "seed-0"))


def test_a_folder_that_is_no_run_is_answered_with_the_nearest(place: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"there is no run .*: did you mean 'run'"):
        load_run(place / "rnu")
    interrupted = tmp_path / "begun"
    interrupted.mkdir()
    shutil.copy(place / "run" / "record.json", interrupted)
    with pytest.raises(StudyError, match="the run is not finished"):
        load_run(interrupted)


def test_labels_with_escapes_move_no_terminal() -> None:
    hostile = ("\x1b]0;pwn\x07\x1b[2Jred", "blue\u202egreen")
    assert confusion_text("test", hostile, [[1, 0], [0, 1]]).replace("\n", "").isprintable()
    counts = {"rows": 2, "file": "a.csv", "answers": {hostile[0]: 2}, "mean_confidence": None, "mean_steps": None}
    others = {"missing": {}, "without_answer": 0, "calibration": []}
    assert all(line.isprintable() for line in summary_lines({**counts, **others}))
