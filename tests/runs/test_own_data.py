"""The data that a run was trained on is found wherever it is described, and known again by its fingerprint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from explained_run import run_folder
from rich.console import Console
from studies.photo_table import write_rows
from studies.small import SMALL as STUDY

from meq.data.request import DataRequest
from meq.data.transforms import standardise
from meq.runs import load_run, train_on
from meq.runs.evaluate import evaluate_run
from meq.runs.load import TrainedRun
from meq.runs.own_data import UnknownDataError, raw_data, run_data
from meq.studies import ArmConfig, DataConfig, run_study
from meq.training import TrainConfig

QUIET = Console(quiet=True)
SHAPE = {"dim": 8, "heads": 2, "steps": 2}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run on numbers, which are standardised, and words, which are encoded."""
    folder = tmp_path_factory.mktemp("numbers")
    parts = ("train", "train", "dev", "test")
    rows = [[str(3 + k % 5), f"thing {k % 3}", "yn"[k % 2], parts[k % 4]] for k in range(24)]
    path = write_rows(folder / "rows.csv", ["v", "t", "y", "part"], rows)
    request = DataRequest(data=str(path), vectors=("v",), texts=("t",), label="y", split="part")
    config = TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)
    return train_on(request, folder / "run", encoders={"text": "words"}, shape=SHAPE, config=config)


def test_numbers_and_words_are_known_again_by_what_was_encoded(numbers: TrainedRun) -> None:
    assert run_data(numbers).same
    assert numbers.task.source_fingerprint == standardise(raw_data(numbers))[0].fingerprint()
    assert not run_data(replace(numbers, task=replace(numbers.task, source_fingerprint="0" * 64))).same


def test_what_a_function_call_trained_on_made_data_is_scored_by_its_record() -> None:
    found = evaluate_run(load_run(run_folder()))
    assert found.same_data
    assert all(split.as_recorded for split in found.splits if split.recorded is not None)


def test_a_model_that_lies_alone_does_not_know_its_data_but_some_can_be_made() -> None:
    alone = replace(load_run(run_folder()), record=None)
    with pytest.raises(UnknownDataError, match="does not say what it was trained on"):
        raw_data(alone)
    few = raw_data(alone, sizes={"train": 0, "dev": 0, "test": 18, "unheard-of": 3})
    assert {name: len(split) for name, split in few.splits.items()} == {"train": 0, "dev": 0, "test": 18}


@pytest.mark.parametrize("standardised", [False, True])
def test_an_arm_that_sees_zeros_is_scored_on_zeros(standardised: bool, tmp_path: Path) -> None:
    arm = ArmConfig(name="words-only", model="concat", options={"dim": 8, "head_width": 8}, blank=("image",))
    data = DataConfig(name="scenes", options={"train": 18, "dev": 18, "test": 18}, standardise=standardised)
    once = replace(STUDY.train, epochs=1, batch_size=9)
    study = replace(STUDY, data=data, arms=(arm,), reference=arm.name, seeds=(0,), train=once, measures={})
    run_study(study, tmp_path / "study", console=QUIET)
    run = load_run(tmp_path / "study" / "runs" / arm.name / "seed-0")
    ready = run_data(run)
    assert ready.same
    assert all(not example.content["image"].any() for example in ready.data.splits["dev"])
    found = evaluate_run(run)
    assert all(split.as_recorded for split in found.splits if split.recorded is not None)
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert kept["data"]["options"] == {"train": 18, "dev": 18, "test": 18}
    assert len(raw_data(run, sizes={"test": 36}).splits["test"]) == 36
