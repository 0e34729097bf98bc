"""When training ends: patience, a least number of updates, more epochs for a run that is over; what is said then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from training.small import WIDTHS, small_config, small_data

import meq
from meq.data.metrics import ACCURACY, Metric
from meq.objectives import Objective
from meq.runs import load_run
from meq.studies import StudyError
from meq.training import TrainConfig, TrainingError, fit, seed_everything
from meq.training.arms import fitted_in_words, fitted_to, resumed
from meq.training.config import SMALL
from meq.training.record import RunRecord, read_record

QUIET = Console(quiet=True)


class Breaking(Objective):
    """Breaks a run off at the n-th batch."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.__dict__["left"] = at

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.__dict__["left"] -= 1
        if self.__dict__["left"] == 0:
            raise KeyboardInterrupt
        return super().__call__(*arguments, **options)


def scripted(scores: Sequence[float]) -> Metric:
    """A metric that gives these scores to the epochs, and after them what accuracy gives."""
    left = list(scores)
    return Metric(name="accuracy", score=lambda logits, target: left.pop(0) if left else ACCURACY(logits, target))


def train(
    folder: Path,
    scores: Sequence[float] = (),
    *,
    objective: Objective | None = None,
    resume: bool = False,
    **options: Any,
) -> RunRecord:
    """The small run without what takes long; its epochs score on dev as scripted."""
    seed_everything(3)
    data = small_data()
    data = replace(data, metric=scripted(scores)) if scores else data
    model = meq.Concat(WIDTHS, 2, dim=8, heads=2)  # what ends a run is the same for every model, and this one is quick
    config = small_config(**{"checkpoint_every": 100, "batch_size": 16, **options})
    return fit(model, data, objective or Objective(), folder, config, resume=resume, console=QUIET)


def test_training_stops_where_dev_has_not_risen_for_as_long_as_patience_says(tmp_path: Path) -> None:
    record = train(tmp_path, [0.5, 0.7, 0.6, 0.7, 0.6, 0.9], epochs=8, patience=3)
    assert [entry["epoch"] for entry in record.curves] == [0, 1, 2, 3, 4]
    assert record.status == "finished"
    assert record.selected.epoch == 1
    assert record.ending is not None
    assert record.ending.startswith(
        "stopped early after epoch 4 of at most 8 (counted from 0): accuracy on dev had not"
    )
    assert "the best is epoch 1 (patience 3)" in record.ending
    assert read_record(tmp_path).ending == record.ending


def test_without_patience_every_epoch_is_trained_and_nothing_is_said_of_an_ending(tmp_path: Path) -> None:
    record = train(tmp_path, [0.9, 0.5, 0.5, 0.5], epochs=4)
    assert len(record.curves) == 4
    assert record.ending is None
    assert "patience" not in record.config, "as records of older versions are"
    assert TrainConfig().patience == 0, "studies keep the paper's recipe"
    assert SMALL.patience > 0


def test_nothing_stops_before_the_least_number_of_updates(tmp_path: Path) -> None:
    record = train(tmp_path, [0.9, 0.5, 0.5, 0.5, 0.5, 0.5], epochs=8, patience=1, least_updates=10)
    assert record.steps == 12, "the end of the first epoch with as many; there are three updates in each"
    assert record.ending is not None


def test_an_epoch_whose_score_is_no_number_is_none_that_rose(tmp_path: Path) -> None:
    record = train(tmp_path, [float("nan")] * 3, epochs=5, patience=2)
    assert len(record.curves) == 2
    assert "no epoch had a score" in (record.ending or "")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return {**load_file(last / "model.safetensors"), **load_file(folder / "model" / "model.safetensors")}


def test_a_run_that_is_interrupted_stops_at_the_same_epoch_with_the_same_bits(tmp_path: Path) -> None:
    options = {"epochs": 9, "patience": 2, "learning_rate": 1e-4}
    whole = train(tmp_path / "whole", **options)
    assert whole.ending is not None
    at = 3 * (len(whole.curves) - 1) + 2
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", objective=Breaking(at), **options)
    again = train(tmp_path / "broken", resume=True, **options)
    assert again.ending == whole.ending
    ours, theirs = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(theirs[name], x) for name, x in ours.items())
    once_more = train(tmp_path / "broken", resume=True, **options)
    assert once_more.steps == whole.steps, "a run that has stopped stays stopped"


# -- more epochs for a run that is over --------------------------------------------------------------------------------


def test_a_run_that_is_over_is_trained_further_with_more_epochs(tmp_path: Path) -> None:
    first = train(tmp_path, [0.9, 0.2, 0.2, 0.2], epochs=6, patience=2)
    assert first.ending is not None
    more = train(tmp_path, [0.3, 0.95, 0.3, 0.3, 0.3], epochs=9, patience=2, resume=True)
    assert [entry["epoch"] for entry in more.curves] == [0, 1, 2, 3, 4, 5, 6]
    assert more.selected.epoch == 4, "patience counts anew, and a later epoch can be the best"
    assert [each.epochs for each in more.sessions] == [6, 9]
    assert [each.step for each in more.sessions] == [0, 9]
    assert more.config["epochs"] == 9
    assert load_run(tmp_path).sealed


def test_a_run_that_is_broken_off_as_it_goes_further_goes_further_still(tmp_path: Path) -> None:
    train(tmp_path, [0.9, 0.2, 0.2, 0.2], epochs=6, patience=2)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objective=Breaking(1), epochs=9, patience=2, resume=True)
    more = train(tmp_path, [0.3, 0.95, 0.3, 0.3, 0.3], epochs=9, patience=2, resume=True)
    assert len(more.curves) == 7
    assert [each.epochs for each in more.sessions] == [6, 9, 9]


def test_fewer_epochs_or_another_recipe_is_no_training_further(tmp_path: Path) -> None:
    train(tmp_path, epochs=2)
    with pytest.raises(TrainingError, match=r"config differs in epochs \(a run that is over can be given more epochs"):
        train(tmp_path, epochs=1, resume=True)
    with pytest.raises(TrainingError, match="config differs in learning_rate"):
        train(tmp_path, epochs=3, learning_rate=1e-3, resume=True)
    assert read_record(tmp_path).status == "finished", "nothing was touched"


def test_an_interrupted_run_is_finished_before_it_gets_more_epochs(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objective=Breaking(5), epochs=2)
    with pytest.raises(TrainingError, match="one that is interrupted is finished first"):
        train(tmp_path, epochs=3, resume=True)


# -- the best weights so far -------------------------------------------------------------------------------------------


def test_an_interrupted_run_answers_with_its_best_weights_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, [0.4, 0.8, 0.6], objective=Breaking(11), epochs=6)
    run = load_run(tmp_path)
    assert run.unfinished == run.not_sealed
    assert (
        f"{tmp_path} is not finished (its record says: interrupted): these are the best weights so far, of epoch 1 of "
        "6 (counted from 0), with accuracy 0.8000 on dev"
    ) == run.unfinished
    (answer,) = run.predict(small_data().splits["test"][:1])
    assert answer.answer in ("no", "yes")
    assert train(tmp_path, resume=True, epochs=6).status == "finished"
    assert load_run(tmp_path).unfinished is None


def test_weights_that_do_not_fit_their_task_are_told_apart_from_damage(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objective=Breaking(5))
    task = tmp_path / "model" / "task.json"
    hashed = load_run(tmp_path).task.weights_sha256
    task.write_text(task.read_text().replace(hashed, "0" * 64))
    with pytest.raises(StudyError, match="was just replacing its weights: try again, or resume it"):
        load_run(tmp_path)


# -- small train splits ------------------------------------------------------------------------------------------------


def test_a_small_train_split_gets_smaller_batches_and_more_epochs() -> None:
    data = small_data(train=38)
    fitted = fitted_to(SMALL, data)
    assert fitted.batch_size == 9
    assert fitted.epochs * (38 // 9) >= SMALL.least_updates > (fitted.epochs - 1) * (38 // 9)
    assert "a small train split" in (fitted_in_words(SMALL, fitted) or "")
    given = fitted_to(replace(SMALL, epochs=2, batch_size=30), data, given=("epochs", "batch_size"))
    assert (given.epochs, given.batch_size) == (2, 30), "what was asked for stays"
    assert fitted_to(SMALL, small_data(train=5)).batch_size == 5
    enough = fitted_to(SMALL, small_data(train=2000))
    assert (enough.epochs, enough.batch_size) == (SMALL.epochs, SMALL.batch_size)
    assert fitted_in_words(SMALL, enough) is None


def test_a_run_of_before_is_resumed_with_what_it_was_begun_with(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    found = resumed(SMALL, tmp_path)
    assert (found.epochs, found.batch_size, found.patience, found.least_updates) == (1, 16, 0, 0)
    assert resumed(replace(SMALL, epochs=4), tmp_path, given=("epochs",)).epochs == 4


def test_a_tiny_dev_split_and_no_progress_are_noted(tmp_path: Path) -> None:
    record = train(tmp_path / "never", [0.1, 0.1], epochs=2)
    tiny, never = record.notes
    assert tiny.startswith("dev has 17 examples")
    context = record.context["dev"]
    assert never.startswith(f"no progress: accuracy on dev was never above {context.constant:.4f}")
    first = train(tmp_path / "first", [0.95, 0.9], epochs=2)
    assert first.notes[1].startswith("no progress after the first epoch: accuracy on dev was never better")
    risen = train(tmp_path / "risen", [0.9, 0.95], epochs=2)
    assert len(risen.notes) == 1


def test_a_record_has_what_to_hold_its_scores_against(tmp_path: Path) -> None:
    record = train(tmp_path, epochs=1)
    found = record.context["test"]
    assert (found.examples, found.chance, found.intervals["accuracy"].method) == (9, 0.5, "Wilson")
    assert found.intervals["accuracy"].low <= record.metrics["test"]["accuracy"] <= found.intervals["accuracy"].high
    assert read_record(tmp_path) == record
