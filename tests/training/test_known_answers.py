"""What was computed for the scores of an epoch is not computed again, and is what it would be if it were."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from training.small import PENALTIES, Interrupting, small_config, small_data, small_model, train_small

from meq.models.base import FusionModel
from meq.models.hub import WEIGHTS
from meq.objectives import Objective
from meq.training import seed_everything
from meq.training.alarms import take_vitals
from meq.training.predictions import predict_split, read_predictions

module = importlib.import_module("meq.training.fit")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits that a run predicts, in order."""
    splits: list[str] = []

    def predicted(model: Any, data: Any, split: str, **options: Any) -> Any:
        splits.append(split)
        return predict_split(model, data, split, **options)

    monkeypatch.setattr(module, "predict_split", predicted)
    return splits


def assert_saved_model_answers(folder: Path) -> None:
    """To the bit, what is recorded."""
    kept = read_predictions(folder / "predictions" / "dev.parquet")
    model = FusionModel.from_pretrained(folder / "model")
    again = predict_split(model, small_data(), "dev", batch_size=small_config().batch_size)
    assert kept.ids == again.ids
    assert torch.equal(kept.logits, again.logits)


@pytest.mark.parametrize("options", [{}, {"select": "last"}, {"average": 0.9}, {"average": 0.9, "select": "last"}])
def test_dev_is_not_asked_again_at_the_end(options: dict[str, Any], asked: list[str], tmp_path: Path) -> None:
    train_small(tmp_path, **options)
    assert asked == ["dev", "dev", "test"]
    assert_saved_model_answers(tmp_path)


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_resumed_run_asks_again_where_another_process_was_answered(
    select: str, asked: list[str], tmp_path: Path
) -> None:
    seed_everything(3)
    model, objective = small_model(damping="learned", tol=1e-3), Interrupting(penalties=PENALTIES)
    object.__setattr__(objective, "left", 9)  # of six updates an epoch, in the second one
    quiet = Console(quiet=True)
    with pytest.raises(KeyboardInterrupt):
        module.fit(model, small_data(), objective, tmp_path, small_config(select=select), console=quiet)
    asked.clear()
    record = train_small(tmp_path, resume=True, select=select)
    known = record.selected.epoch == 1
    assert asked == (["dev", "test"] if known else ["dev", "dev", "test"])
    assert_saved_model_answers(tmp_path)


def test_weights_that_somebody_replaced_are_asked(asked: list[str], tmp_path: Path) -> None:
    class Replaced(module.Training):  # type: ignore[misc, name-defined]
        def _scored(self, record: Any) -> Any:
            other = small_model()
            other.save_pretrained(tmp_path / "other")
            (tmp_path / "other" / WEIGHTS).replace(tmp_path / "run" / "model" / WEIGHTS)
            return super()._scored(record)

    quiet = Console(quiet=True)
    Replaced(small_model(), small_data(), Objective(), tmp_path / "run", small_config(), quiet).run(resume=False)
    assert asked == ["dev", "dev", "dev", "test"]


@pytest.mark.parametrize("batch_size", [4, 8])
def test_vitals_are_the_same_from_the_scores_first_batch_and_from_an_own_pass(batch_size: int, tmp_path: Path) -> None:
    model, data = small_model(), small_data()
    config = small_config(batch_size=batch_size, monitor_samples=6, select="last", epochs=1)
    record = module.fit(model, data, Objective(), tmp_path, config, console=Console(quiet=True))
    own = take_vitals(model, data.collate(data.splits["dev"][:6]), 0, radius_samples=2)
    assert own is not None
    (found,) = record.vitals
    for name, value in asdict(own).items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
