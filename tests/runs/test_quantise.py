"""A trained run with int8 weights: what it changes is said, and what is written loads as any other run."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path

import pytest
import torch
from studies.photo_table import BUILT_IN, request_for, write_table
from typer.testing import CliRunner

from meq.cli import app
from meq.cli.use import LEAST_WEIGHTS as SHOWN
from meq.models.quantise import LEAST_WEIGHTS, Int8Linear, quantise
from meq.records import FormatError
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.quantise import save_quantised
from meq.studies import StudyError
from meq.training import TrainConfig

WIDE = {"dim": 64, "heads": 2, "steps": 2, "hidden": LEAST_WEIGHTS // 64}
ONCE = TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its pictures, and a run on it whose feed-forwards are wide enough for int8 to pay."""
    folder = tmp_path_factory.mktemp("practice")
    train_on(request_for(write_table(folder)), folder / "run", encoders=BUILT_IN, shape=WIDE, config=ONCE)
    return folder


@pytest.fixture
def run(place: Path) -> TrainedRun:
    return load_run(place / "run")


def meq(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_evaluate_says_what_int8_changes_beside_the_float_scores(run: TrainedRun, place: Path) -> None:
    plain, found = run.evaluate(), run.evaluate(int8=True)
    for exact, near in zip(plain.splits, found.splits, strict=True):
        assert exact.int8 is None
        assert near.int8 is not None
        assert near.int8.float_metrics == exact.metrics
        assert near.recorded is None, "scores of other weights are not compared with the record's"
        assert near.int8.changed == 0
        assert 0 < near.int8.moved < 0.05
        assert near.metrics["loss"] == pytest.approx(exact.metrics["loss"], abs=0.05)
    words = "int8 on dev: 0.00 % of the answers changed, logits moved by "
    assert words in str(found)
    assert words in meq("evaluate", place / "run", "--int8", "--split", "dev")
    assert not any(isinstance(module, Int8Linear) for module in run.model.modules())


def test_an_answer_that_changes_is_counted(run: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = quantise(run.model)
    with torch.no_grad():
        for name, weights in rounded.state_dict().items():
            if name.startswith("head.2"):
                weights.neg_()  # the other of two answers, throughout
    monkeypatch.setattr("meq.runs.run.quantise", lambda *_, **__: rounded)
    (found,) = run.evaluate(split="dev", int8=True).splits
    assert found.int8 is not None
    assert found.int8.changed == 1


def test_predict_answers_with_an_int8_model(run: TrainedRun, place: Path, tmp_path: Path) -> None:
    meq("predict", place / "run", place / "photos.csv", "--int8", "-o", tmp_path / "near.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "near.jsonl").read_text().splitlines()]
    exact = run.predict_table(place / "photos.csv")
    assert [row["answer"] for row in rows] == [answer.answer for answer in exact]
    assert max(abs(row["confidence"] - answer.confidence) for row, answer in zip(rows, exact, strict=True)) > 0


def test_what_is_written_loads_answers_and_is_sealed(run: TrainedRun, place: Path, tmp_path: Path) -> None:
    said = meq("quantise", place / "run", "--out", tmp_path / "int8")
    assert "its weights take 0.3" in said
    made = load_run(tmp_path / "int8")
    assert made.sealed
    assert made.model.int8 == LEAST_WEIGHTS
    assert made.labels == run.labels
    near, exact = made.predict_table(place / "photos.csv"), run.quantised().predict_table(place / "photos.csv")
    for one, other in zip(near, exact, strict=True):
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert (
        "Scores, where there are any above, are those of the float model." in (tmp_path / "int8/README.md").read_text()
    )
    with pytest.raises(StudyError, match="holds an int8 model already: leave out --int8"):
        made.quantised()
    assert "leave out --int8\n" in meq("predict", made.folder, place / "photos.csv", "--int8", "-o", "a.csv", code=1)
    with pytest.raises(StudyError, match="is there already: choose another name"):
        save_quantised(run, tmp_path / "int8")
    weights = tmp_path / "int8" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    with pytest.raises(FormatError, match=r"model\.safetensors changed since the run was sealed"):
        load_run(tmp_path / "int8")


def test_what_needs_gradients_says_that_it_needs_the_float_run(run: TrainedRun, place: Path, tmp_path: Path) -> None:
    made = save_quantised(run, tmp_path / "int8")
    assert made.note is None
    assert 0.2 < made.size < 0.5
    asked = (place / "photos" / "0.png", "it is red", "--model", made.folder, "--out", tmp_path / "maps")
    said = " ".join(meq("explain", *asked, "--method", "gradient", code=1).split())
    assert "explain and diagnose the float model" in said


def test_a_run_that_int8_does_not_pay_for_is_told_so(run: TrainedRun, place: Path, tmp_path: Path) -> None:
    said = meq("quantise", place / "run", "-o", tmp_path / "int8", "--least-weights", "300000", code=1)
    assert "its largest linear layer has 262,144 weights, and it pays from 300,000 on" in said
    assert "give a smaller --least-weights" in said
    assert not (tmp_path / "int8").exists()


def test_the_command_line_shows_the_library_s_least_number_of_weights() -> None:
    assert SHOWN == LEAST_WEIGHTS == inspect.signature(TrainedRun.quantised).parameters["least_weights"].default


def test_a_calibrated_rule_stays_with_the_float_run(place: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(place / "run", tmp_path / "run"))
    meq("calibrate", folder, "--stop", "--rule", "residual", "--risk", "1", "--most", "4")
    run = load_run(folder)
    assert run.anytime is not None
    assert run.quantised().anytime == run.anytime
    made = save_quantised(run, tmp_path / "int8")
    assert made.note == "the calibrated rule stays behind: it was checked with other weights"
    assert load_run(made.folder).anytime is None
