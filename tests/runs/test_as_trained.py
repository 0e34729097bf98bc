"""A run that was trained with a solver of its own is run by it ever after, in whatever process it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain import run_plain
from rich.console import Console
from studies.small import SMALL

import meq
from meq.data.contract import Example
from meq.data.statements import statements
from meq.models.iterated import IteratedModel
from meq.runs import load_run
from meq.studies import ArmConfig, read_predictions, run_study
from meq.studies.build import build_model, build_objective, prepare_data
from meq.training import TrainingError, fit

QUIET = Console(quiet=True)
OPTIONS = {"dim": 16, "heads": 2, "head_width": 16, "steps": 4}
FAST = ArmConfig(name="fast", model="meq", options=OPTIONS, solver="anderson", backward="implicit")
STUDY = replace(
    SMALL, name="fast-study", arms=(FAST,), reference="fast", seeds=(0,), train=replace(SMALL.train, epochs=2)
)
PLACE = "runs/fast/seed-0"
LATER = ("solver", "backward")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fast") / "study"
    run_study(STUDY, folder, console=QUIET)
    return folder


def examples() -> list[Example]:
    return [replace(example, target=None) for example in statements(train=64, dev=24, test=16).splits["dev"]]


def answers(place: Path, change: Callable[[IteratedModel], None] | None = None) -> list[list[float]]:
    """The logits of a loaded run, in batches as in training."""
    run = load_run(place)
    assert isinstance(run.model, IteratedModel)
    if change is not None:
        change(run.model)
    return [answer.logits.tolist() for answer in run.predict(examples(), batch_size=STUDY.train.batch_size)]


def from_the_record(place: Path, found: list[list[float]]) -> float:
    """The largest difference to the answers that the run recorded."""
    return float((torch.tensor(found) - read_predictions(place / "predictions" / "dev.parquet").logits).abs().max())


def print_answers(place: str) -> None:
    """Called by `run_plain`."""
    run = load_run(place)
    assert isinstance(run.model, IteratedModel)
    assert run.model.solver == meq.Anderson(), run.model.solver
    assert run.model.backward == meq.Implicit(), run.model.backward
    print(json.dumps(answers(Path(place))))


def without_later_options(folder: Path) -> None:
    """As an older version saved it."""
    path = folder / PLACE / "model" / "config.json"
    config = json.loads(path.read_text())
    config["options"] = {name: value for name, value in config["options"].items() if name not in LATER}
    path.write_text(json.dumps(config))
    for seal in folder.rglob("seal.json"):  # which older versions did not write
        seal.unlink()


def test_an_anderson_arm_answers_in_a_new_process_as_it_was_recorded(trained: Path) -> None:
    options = json.loads((trained / PLACE / "model" / "config.json").read_text())["options"]
    assert options["solver"] == {"name": "Anderson", "history": 3, "step": 1.0}
    assert options["backward"]["name"] == "Implicit"
    elsewhere = json.loads(run_plain(Path(__file__), "print_answers", str(trained / PLACE)))
    assert from_the_record(trained / PLACE, elsewhere) <= 1e-6

    def damp(model: IteratedModel) -> None:
        model.solver = None

    assert from_the_record(trained / PLACE, answers(trained / PLACE, damp)) > 1e-4, (
        "another solver would answer otherwise"
    )


def test_a_run_of_an_older_version_takes_its_solver_from_its_study(trained: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(trained, tmp_path / "old"))
    without_later_options(old)
    assert from_the_record(old / PLACE, answers(old / PLACE)) <= 1e-6


def test_a_borrowed_run_of_an_older_version_takes_its_solver_from_the_study_it_lies_in(
    trained: Path, tmp_path: Path
) -> None:
    old, folder = Path(shutil.copytree(trained, tmp_path / "old")), tmp_path / "second"
    without_later_options(old)
    renamed = replace(FAST, name="quick")
    run_study(replace(STUDY, name="second", arms=(renamed,), reference="quick"), folder, reuse=[old], console=QUIET)
    place = folder / "runs/quick/seed-0"
    assert (place / "borrowed.json").is_file()
    assert from_the_record(place, answers(place)) <= 1e-6


def test_a_run_that_an_older_version_began_is_resumed(tmp_path: Path) -> None:
    data = prepare_data(STUDY.data).data
    config = replace(STUDY.train, epochs=1, seed=0)

    def go_on(solver: str | None) -> None:
        arm = replace(FAST, solver=solver)
        fit(build_model(STUDY, arm, data, 0), data, build_objective(arm, data), tmp_path, config, resume=True)

    go_on("anderson")
    record = json.loads((tmp_path / "record.json").read_text())
    with pytest.raises(TrainingError, match="its model differs in options"):
        go_on("broyden")
    for name in LATER:
        del record["model"]["options"][name]
    (tmp_path / "record.json").write_text(json.dumps(record))
    go_on("anderson")
    assert json.loads((tmp_path / "record.json").read_text())["model"]["options"]["solver"]["name"] == "Anderson"
