"""A run that is calibrated, kept, loaded and asked, from Python and by the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from studies.photo_table import BUILT_IN, request_for, write_table
from typer.testing import CliRunner

from meq.cli import app, calibrate
from meq.models.anytime import RULES
from meq.records import FormatError, check_seal
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.calibrate import CALIBRATION, StopOptions, calibrate_run, read_calibration
from meq.runs.evaluate import evaluate_run
from meq.runs.explain import Explainer
from meq.studies import StudyError
from meq.studies.verify import verify
from meq.training import TrainConfig

ONCE = TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)
LOOSE = StopOptions(rule="change", risk=0.9, most=9)


def run_of(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    shape = {"dim": 8, "heads": 2, "steps": 4}
    train_on(request_for(write_table(folder, rows=80)), folder / "run", encoders=BUILT_IN, shape=shape, config=ONCE)
    return folder


@pytest.fixture(scope="module")
def calibrated(trained: Path) -> Path:
    """A copy of the run with a rule that lets samples go early."""
    shutil.copytree(trained / "run", trained / "calibrated")
    found = calibrate_run(load_run(trained / "calibrated"), LOOSE)
    assert found.anytime is not None
    return trained


@pytest.fixture
def run(calibrated: Path) -> TrainedRun:
    return load_run(calibrated / "calibrated")


def test_the_rule_is_kept_beside_the_weights_and_the_seals_stay(calibrated: Path, run: TrainedRun) -> None:
    assert run.sealed
    assert check_seal(calibrated / "calibrated") is not None
    assert run.anytime is not None
    assert run.anytime.most == 9
    assert run.model.anytime is None, "instruments go on looking at K"
    assert load_run(calibrated / "run").anytime is None
    assert run.calibration is not None
    assert "the best epoch on dev" in " ".join(run.calibration.stopping.notes)  # type: ignore[union-attr]


def test_a_changed_byte_is_an_error_and_other_weights_have_no_rule(calibrated: Path, tmp_path: Path) -> None:
    content = (calibrated / "calibrated" / "model" / CALIBRATION).read_text()
    (tmp_path / CALIBRATION).write_text(content)
    assert read_calibration(tmp_path, "0" * 64) is None
    (tmp_path / CALIBRATION).write_text(content.replace('"most": 9', '"most": 8'))
    with pytest.raises(FormatError, match="changed since it was written"):
        read_calibration(tmp_path, "0" * 64)


def test_answers_carry_the_steps_of_the_rule_and_a_depth_that_is_asked_for(calibrated: Path, run: TrainedRun) -> None:
    table = calibrated / "photos.csv"
    ruled, deep = run.predict_table(table), run.predict_table(table, steps=7)
    assert {answer.steps for answer in deep} == {7}
    assert ruled.summary()["mean_steps"] < 4
    assert set(ruled.summary()["stopped"]) <= {"read", "settled", "budget"}
    assert ruled.summary()["stopped"]["read"] > 0
    plain = load_run(calibrated / "run").predict_table(table)
    own = run.predict_table(table, steps=4)
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(own, plain, strict=True))
    assert {answer.steps for answer in plain} == {4}


def test_evaluate_says_the_depth_and_does_not_complain_of_the_record(run: TrainedRun) -> None:
    ruled = run.evaluate(split="dev")
    assert "read by the calibrated rule, change <= " in str(ruled)
    assert "mean steps: dev " in str(ruled)
    assert ruled.splits[0].recorded is None
    deep = run.evaluate(split="dev", steps=11)
    assert "read at step 11, not at K = 4; mean steps: dev 11.00" in str(deep)
    assert "which are not compared" in deep.origin
    own = evaluate_run(run, split="dev", steps=4)
    assert own.splits[0].as_recorded
    assert own.depth is None


def test_an_explanation_by_the_rule_is_of_the_answer_that_is_given(calibrated: Path, run: TrainedRun) -> None:
    explainer = Explainer(run, by_rule=True)
    example = explainer.pair(calibrated / "photos" / "0.png", "it is red")
    (found,) = explainer([example])
    (answer,) = run.predict([example], encoders=explainer.encoders)
    assert found.read == answer.steps
    assert run.labels[found.explained] == answer.answer
    assert Explainer(run)([example])[0].read == 4


def test_a_calibrated_run_of_a_study_stays_verified_and_goes_to_the_hub_with_its_rule(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copied / "runs/meq/seed-0"
    found = calibrate_run(load_run(place), StopOptions(rule="agreement", risk=0.9, most=6))
    assert found.anytime is not None
    report = verify(copied)
    assert report.ok, str(report)
    sent: set[str] = set()

    class Api:
        def __init__(self, token: str | None) -> None: ...

        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            return name

        def upload_folder(self, *, folder_path: Path, allow_patterns: list[str], **_: object) -> None:
            names = [path.name for path in Path(folder_path).iterdir()]
            sent.update(filter_repo_objects(names, allow_patterns=allow_patterns))

    monkeypatch.setattr("meq.runs.run.HfApi", Api)
    load_run(place).push_to_hub("me/run")
    assert CALIBRATION in sent
    alone = shutil.copytree(place / "model", copied.parent / "alone", ignore=shutil.ignore_patterns("*.md"))
    assert load_run(alone).anytime == found.anytime


def test_a_model_that_does_not_iterate_is_answered_in_words(trained: Path, tmp_path: Path) -> None:
    request = request_for(trained / "photos.csv")
    train_on(request, tmp_path / "run", arm="concat", encoders=BUILT_IN, shape={"dim": 8}, config=ONCE)
    run = load_run(tmp_path / "run")
    with pytest.raises(ValueError, match="Concat does not iterate"):
        calibrate_run(run)
    with pytest.raises(StudyError, match="does not iterate: there are no steps to read it at"):
        run.predict_table(trained / "photos.csv", steps=3)


def test_the_command_line_calibrates_predicts_and_evaluates(trained: Path, tmp_path: Path) -> None:
    folder, table = tmp_path / "run", trained / "photos.csv"
    shutil.copytree(trained / "run", folder)
    code, said, errors = run_of("calibrate", folder)
    assert code == 1
    assert "--stop for when answers are read" in errors
    code, said, errors = run_of("calibrate", folder, "--stop", "--rule", "chnge")
    assert code == 1
    assert "did you mean 'change'" in errors
    code, said, errors = run_of("calibrate", folder, "--stop", "--rule", "change", "--risk", "0.9", "--most", "9")
    assert code == 0, errors
    assert "promise: at most 0.9 of accuracy lost against step 9" in said
    assert f"kept in {folder / 'model' / CALIBRATION}" in said
    code, said, errors = run_of("predict", folder, table, "-o", tmp_path / "a.csv")
    assert code == 0, errors
    assert "stopped by read" in said
    code, said, errors = run_of("predict", folder, table, "-o", tmp_path / "b.csv", "--full", "--json")
    assert json.loads(said)["mean_steps"] == 4
    code, said, errors = run_of("predict", folder, table, "-o", tmp_path / "c.csv", "--full", "--steps", "3")
    assert code == 1
    assert "give one of them" in errors
    code, said, errors = run_of("evaluate", folder, "--split", "dev", "--steps", "6")
    assert "read at step 6, not at K = 4" in said
    code, said, errors = run_of("evaluate", folder, "--split", "dev", "--full")
    assert "the scores are those of its record" in said
    code, said, errors = run_of("analyze", folder, "--split", "dev", "--steps", "6", "--samples", "1")
    assert code == 0, errors
    assert "6*" in said
    assert "kept in" not in said
    assert not (folder / "analysis").exists()


def test_what_is_written_twice_for_the_sake_of_a_fast_help_is_the_same() -> None:
    assert tuple(RULES) == calibrate.RULES
    assert (StopOptions().risk, StopOptions().confidence) == (calibrate.RISK, calibrate.CONFIDENCE)
