from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from studies.small import CONCAT, SMALL

from meq.records import sha256
from meq.runs.load import load_run
from meq.studies import StudyError, make_study, read_record, records_of, run_study, verify
from meq.studies.one_run import BORROWED, borrow_runs, read_borrowed, same_arm
from meq.studies.study import DataConfig, MatchedSize, run_place

QUIET = Console(quiet=True)
SHORT = replace(SMALL.train, epochs=1)
FIRST = replace(SMALL, name="first", train=SHORT)
RENAMED = replace(CONCAT, name="mean-pooled")
SECOND = replace(SMALL, name="second", arms=(RENAMED,), reference="mean-pooled", seeds=(0, 1, 2), train=SHORT)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "study"
    run_study(FIRST, folder, console=QUIET)
    return folder


def test_equal_runs_are_taken_over_whatever_the_arm_is_called_and_the_rest_is_trained(
    first: Path, tmp_path: Path
) -> None:
    folder, said = tmp_path / "second", io.StringIO()
    run_study(SECOND, folder, reuse=[first], console=Console(file=said, width=200))
    assert "mean-pooled, seed 0: taken from first" in said.getvalue()
    assert "run 3 of 3: mean-pooled, seed 2" in said.getvalue()
    assert "run 1 of 3" not in said.getvalue()
    note = read_borrowed(folder / run_place("mean-pooled", 1))
    assert note is not None
    assert (note.study, note.arm) == ("first", "concat")
    assert note.record_sha256 == sha256(first / run_place("concat", 1) / "record.json")
    assert read_borrowed(folder / run_place("mean-pooled", 2)) is None
    assert len(records_of(folder, SECOND)) == 3
    assert verify(folder, require_checkpoints=True).faults == []

    record = folder / run_place("mean-pooled", 0) / "record.json"
    record.write_bytes(record.read_bytes().replace(b'"first"', b'"other"', 1))
    assert f"{run_place('mean-pooled', 0)}/record.json" in {fault.file for fault in verify(folder).faults}


def test_a_run_that_was_made_in_another_way_is_not_taken(first: Path, tmp_path: Path) -> None:
    arms = (
        replace(CONCAT, name="wider", options={"dim": 32, "head_width": 16}),
        replace(CONCAT, name="slower", train={"learning_rate": 1e-4}),
        replace(CONCAT, name="blind", blank=("image",)),
        replace(CONCAT, name="matched", match=MatchedSize(to="wider", size="head_width")),
        replace(CONCAT, name="held", floor_from="wider"),
    )
    study = replace(FIRST, name="others", arms=arms, reference="wider")
    borrow_runs(study, tmp_path, [first], QUIET)
    borrow_runs(replace(FIRST, train=replace(SHORT, epochs=2)), tmp_path, [first], QUIET)
    borrow_runs(replace(FIRST, seeds=(7,)), tmp_path, [first], QUIET)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_borrowed_before_keeps_the_name_of_where_it_was_made(first: Path, tmp_path: Path) -> None:
    second, third = tmp_path / "second", tmp_path / "third"
    few = replace(SECOND, seeds=(0,))
    run_study(few, second, reuse=[first], console=QUIET)
    run_study(replace(few, name="third"), third, reuse=[second], console=QUIET)
    note = read_borrowed(third / run_place("mean-pooled", 0))
    assert note is not None
    assert (note.study, note.arm) == ("first", "concat")
    assert verify(third).ok


def test_the_first_rate_of_a_trial_of_rates_is_the_study_s_own_arm_and_no_other_is() -> None:
    plain, trial = make_study("duels"), make_study("duels", rates=2)
    for arm in plain.arms:
        assert same_arm(trial, plain, arm.name, 42) == f"{arm.name}-rate-x1"
    assert {same_arm(plain, trial, arm.name, 42) for arm in trial.arms} == {None, *(arm.name for arm in plain.arms)}
    assert same_arm(trial, plain, "meq", 7) is None
    wider = replace(trial, arms=tuple(replace(arm, options={**arm.options, "dim": 128}) for arm in trial.arms))
    assert same_arm(wider, plain, "meq", 42) is None
    other = tuple(
        replace(arm, options={**arm.options, "dim": 128}) if arm.model == "meq" else arm for arm in trial.arms
    )
    assert same_arm(replace(trial, arms=other), plain, "concat", 42) is None, "it would be matched to another size"


def test_what_has_begun_here_is_not_replaced(first: Path, tmp_path: Path) -> None:
    place = tmp_path / run_place("concat", 0)
    place.mkdir(parents=True)
    borrow_runs(FIRST, tmp_path, [first], QUIET)
    assert list(place.iterdir()) == []
    assert (tmp_path / run_place("concat", 1) / BORROWED).is_file()


def test_unfinished_runs_stay_where_they_are(first: Path, tmp_path: Path) -> None:
    """And so do what only resuming needs, and the measures of the other study."""
    source = tmp_path / "source"
    run_study(replace(FIRST, name="copy", seeds=(0,)), source, reuse=[first], console=QUIET)
    place = source / run_place("concat", 0)
    for folder in ("checkpoints", "measures"):
        (place / folder).mkdir()
        (place / folder / "file").touch()
    borrow_runs(FIRST, tmp_path / "whole", [source], QUIET)
    taken = tmp_path / "whole" / run_place("concat", 0)
    assert {path.name for path in taken.iterdir()} == {"record.json", "seal.json", "model", "predictions", BORROWED}
    record = place / "record.json"
    record.write_text(record.read_text().replace('"status": "finished"', '"status": "running"'))
    assert read_record(place).status == "running"
    borrow_runs(FIRST, tmp_path / "none", [source], QUIET)
    assert not (tmp_path / "none").exists()


def test_studies_that_have_nothing_to_lend_are_refused(first: Path, tmp_path: Path) -> None:
    other = replace(FIRST, data=DataConfig(name="statements", options={"train": 64, "dev": 24, "test": 16, "seed": 1}))
    with pytest.raises(StudyError, match="its runs cannot be reused"):
        borrow_runs(other, tmp_path, [first], QUIET)
    with pytest.raises(StudyError, match="is the study's own folder"):
        borrow_runs(FIRST, first, [first], QUIET)
    with pytest.raises(StudyError, match="is not the folder of a study"):
        borrow_runs(FIRST, first, [tmp_path], QUIET)


@pytest.mark.parametrize("blank", [(), ("image",)])
def test_a_run_under_another_arm_s_name_is_evaluated_as_the_arm_it_is_here(
    blank: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record has the name that the other study gave its arm, which the study here may use for another one."""
    arm = replace(CONCAT, blank=blank)
    lender = replace(FIRST, name="lender", arms=(arm,), seeds=(0,))
    run_study(lender, tmp_path / "lender", console=QUIET)
    borrower = replace(lender, name="borrower", arms=(replace(arm, name="mean-pooled"),), reference="mean-pooled")
    run_study(borrower, tmp_path / "borrower", reuse=[tmp_path / "lender"], console=QUIET)
    assert read_record(tmp_path / "borrower" / run_place("mean-pooled", 0)).arm == "concat"
    monkeypatch.chdir(tmp_path / "borrower" / run_place("mean-pooled", 0))
    for place in (Path.cwd(), Path(".")):
        found = load_run(place).evaluate()
        assert found.same_data
        assert all(split.metrics["accuracy"] == split.recorded["accuracy"] for split in found.splits if split.recorded)
        assert {split.split for split in found.splits if split.recorded} == {"dev", "test"}


def test_a_run_in_the_folder_of_no_arm_says_so(first: Path, tmp_path: Path) -> None:
    study = Path(shutil.copytree(first, tmp_path / "study"))
    (study / "runs" / "concat").rename(study / "runs" / "concta")
    with pytest.raises(StudyError, match="has no arm 'concta', in whose folder the run lies: did you mean 'concat'"):
        load_run(study / run_place("concta", 0)).evaluate()
