"""`meq compare`: the same splits for all, cheap answers beside trained ones, and one sentence that tells the truth."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import meq
from meq.cli import app
from meq.runs.compare import read_comparison
from meq.runs.compare_config import COMPARED_SEEDS
from meq.runs.leaderboard import Entrant, make_leaderboard
from meq.runs.request_of import request_of
from meq.studies.compare import FEWEST
from meq.studies.verify import verify
from meq.training.prepare import CALIBRATED, keeping_apart

SMALL = {"dim": 8, "heads": 2, "steps": 2}
MUCH_DEV = {"fractions": [0.4, 0.5, 0.1]}
"""So that half of dev is enough to calibrate with."""


def number_table(path: Path, *, rows: int = 120, seed: int = 0) -> Path:
    """Two pairs of numbers; the label is in the first pair, the sum of its two."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a_0", "a_1", "b_0", "b_1", "y"])
        for _ in range(rows):
            a, b = [draw.gauss(0, 1), draw.gauss(0, 1)], [draw.gauss(0, 1), draw.gauss(0, 1)]
            writer.writerow([*a, *b, "yes" if sum(a) > 0 else "no"])
    return path


def entrant(name: str, kind: str, scores: list[float], *, seconds: float = 1.0, examples: int = 200) -> Entrant:
    """Somebody who is right on the first examples, as many as the score says."""
    draw = np.random.RandomState(0).randint(0, examples, size=(500, examples))
    right = {seed: np.arange(examples) < score * examples for seed, score in enumerate(scores)}
    return Entrant(
        name=name,
        kind=kind,
        parameters=10,
        seconds=seconds,
        by_seed=dict(enumerate(scores)),
        draws={seed: row[draw].mean(1) for seed, row in right.items()},
    )


def board(*entrants: Entrant, seeds: int = 3):  # type: ignore[no-untyped-def]
    return make_leaderboard(entrants, seeds=range(seeds), metric="accuracy", split="test", examples=200)


def test_the_cheapest_that_is_not_called_worse_is_enough() -> None:
    found = board(
        entrant("majority", "constant", [0.5] * 3),
        entrant("logistic regression on text", "one modality", [0.8] * 3),
        entrant("meq", "trained", [0.79, 0.82, 0.81]),
    )
    assert found.enough == "logistic regression on text"
    assert [line.arm for line in found.lines] == ["meq", "logistic regression on text", "majority"]
    assert [line.verdict for line in found.lines] == ["best", "not called", "called worse"]
    assert "Logistic regression on text is enough (accuracy 0.800 on test): meq" in found.sentence


def test_what_is_really_better_is_said_to_be_needed() -> None:
    found = board(entrant("majority", "constant", [0.5] * 3), entrant("meq", "trained", [0.9, 0.91, 0.9]))
    assert found.enough == "meq"
    assert "nothing less is" in found.sentence


def test_two_answers_that_do_not_depend_on_seeds_are_told_apart_by_examples_alone() -> None:
    one, two = entrant("a", "one modality", [0.8] * 3), entrant("b", "linear", [0.805] * 3)
    assert board(one, two).enough == "a", "one example of two hundred calls nothing"
    assert board(entrant("a", "one modality", [0.6] * 3), two).enough == "b"


def test_nothing_learned_is_said_plainly() -> None:
    found = board(entrant("majority", "constant", [0.5] * 3), entrant("meq", "trained", [0.4, 0.6, 0.51]))
    assert "Nothing learned here is called better than one constant answer" in found.sentence
    alike = board(entrant("majority", "constant", [0.5] * 3), entrant("meq", "trained", [0.5] * 3))
    assert "Nothing learned here" in alike.sentence


def test_too_few_seeds_are_said_and_the_examples_judge() -> None:
    found = board(entrant("majority", "constant", [0.5]), entrant("meq", "trained", [0.9]), seeds=1)
    assert found.enough == "meq"
    assert "too few seeds" in found.sentence
    assert {line.verdict for line in found.lines} == {"best", "too few seeds"}


def test_who_lacks_a_seed_is_neither_best_nor_enough() -> None:
    found = board(entrant("majority", "constant", [0.5] * 3), entrant("meq", "trained", [0.9, 0.9]))
    assert found.enough == "majority"
    assert {line.arm: line.verdict for line in found.lines}["meq"] == "incomplete"


def test_as_many_seeds_as_a_verdict_needs_are_trained_unless_told_otherwise() -> None:
    assert COMPARED_SEEDS == FEWEST


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("compare")
    table = number_table(folder / "numbers.csv", rows=440)
    given = {"vector": ["a_*", "b_*"], "label": "y", "out": folder / "out", "arms": ["concat"], "options": MUCH_DEV}
    call = {**given, "seeds": 1, "epochs": 1, "shape": SMALL}
    return table, call, meq.compare(table, **call)


def test_a_table_of_numbers_is_compared_and_a_regression_on_half_of_it_is_enough(compared) -> None:  # type: ignore[no-untyped-def]
    _, call, found = compared
    assert found.enough == "logistic regression on a"
    names = {line.arm for line in found.leaderboard.lines}
    assert names == {
        *("majority", "logistic regression", "logistic regression on a", "logistic regression on b"),
        *("gradient boosting", "meq", "concat"),
    }
    sizes = {line.arm: line.parameters for line in found.leaderboard.lines}
    assert sizes["concat"] == pytest.approx(sizes["meq"], rel=0.02)
    assert str(found) == (call["out"] / "leaderboard.txt").read_text()
    assert found.table().columns[0].key == "arm"


def test_the_trained_arms_are_a_study_that_can_be_verified(compared) -> None:  # type: ignore[no-untyped-def]
    _, call, _ = compared
    assert verify(call["out"] / "study").ok


def test_the_same_call_trains_nothing_again_and_says_the_same(compared) -> None:  # type: ignore[no-untyped-def]
    table, call, found = compared
    before = {path: path.stat().st_mtime_ns for path in call["out"].glob("study/runs/**/record.json")}
    assert meq.compare(table, **call) == found
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_answer_changed_by_hand_is_noticed(compared) -> None:  # type: ignore[no-untyped-def]
    from meq.records import FormatError, read_sealed
    from meq.runs.cheap import BASELINES, FILE, FittedAll
    from meq.studies.study import read_study

    _, call, _ = compared
    folder = call["out"]
    fitted = read_sealed(FittedAll, folder / BASELINES / FILE)
    path = folder / BASELINES / fitted.fitted[0].predictions["test"].file
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(FormatError, match="is missing or has changed"):
        read_comparison(folder, read_study(folder / "study"), fitted, "numbers.csv")
    path.write_bytes(kept)


def test_the_command_prints_the_board_and_goes_on_where_it_was(compared) -> None:  # type: ignore[no-untyped-def]
    table, call, found = compared
    typed = ["compare", str(table), "--vector", "a_*", "--vector", "b_*", "--label", "y", "--out", str(call["out"])]
    typed += ["--arms", "concat", "--seeds", "1", "--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2"]
    typed += ["--set", "fractions=[0.4,0.5,0.1]"]
    done = CliRunner().invoke(app, [*typed, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["leaderboard"]["enough"] == found.enough


def test_mistakes_are_answered_before_anything_is_trained(tmp_path: Path) -> None:
    table = number_table(tmp_path / "numbers.csv", rows=40)
    with pytest.raises(ValueError, match="no arm 'conct' to compare: did you mean 'concat'"):
        meq.compare(table, vector=["a_*", "b_*"], label="y", arms=["conct"], out=tmp_path / "out")
    with pytest.raises(TypeError, match="no option 'lable': did you mean 'label'"):
        meq.compare(table, vector=["a_*", "b_*"], lable="y")  # type: ignore[call-arg]
    assert not (tmp_path / "out").exists()


def test_a_frame_is_compared_as_its_file_is(compared, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import pandas

    table, _, _ = compared
    frame = pandas.read_csv(table)
    asked = request_of(frame, {"vector": ["a_*", "b_*"]}, folder=tmp_path / "out", label="y")
    assert asked.data == str(tmp_path / "out" / "table.parquet")
    assert len(asked.open().splits["train"]) == len(request_of(table, {"vector": ["a_*", "b_*"]}, folder=tmp_path,
                                                               label="y").open().splits["train"])  # fmt: skip
    with pytest.raises(ValueError, match="other rows"):
        request_of(frame[:50], {"vector": ["a_*", "b_*"]}, folder=tmp_path / "out", label="y")


def test_arms_are_calibrated_as_trained_runs_are_and_once(compared) -> None:  # type: ignore[no-untyped-def]
    table, call, _ = compared
    for arm in ("meq", "concat"):
        run = meq.load(call["out"] / "study" / "runs" / arm / "seed-0")
        assert run.record.data.splits == {"train": 176, "dev": 110, "calibration": 110, "test": 44}
        answers = run.predict(table, coverage=0.9)
        assert "fitted on 110 rows of calibration" in " ".join(answers.applied.words)
        assert all(answer.among for answer in answers)
    kept = call["out"] / "study" / "runs" / "meq" / "seed-0" / "model" / "calibration.json"
    before = kept.stat().st_mtime_ns
    meq.compare(table, **call)
    assert kept.stat().st_mtime_ns == before


def test_a_comparison_that_was_begun_without_rows_to_calibrate_goes_on_without() -> None:
    asked = request_of("numbers.csv", {"vector": ["a", "b"]}, folder=Path(), label="y")
    assert keeping_apart(asked, None).options == {"calibration": CALIBRATED}
    assert keeping_apart(asked, {"label": "y"}).options == {}
    assert keeping_apart(asked, {"calibration": 0.25}).options == {"calibration": 0.25}
