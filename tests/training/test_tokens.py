"""Answers per token, from training to the files of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from training.token_set import LABELS, token_data, token_model, train_tokens

import meq
from meq.objectives import Objective
from meq.training import TrainConfig, fit
from meq.training.predictions import Predictions, predict_split, read_predictions, scores, write_predictions
from meq.training.record import RunRecord


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def record(folder: Path) -> RunRecord:
    return train_tokens(folder)


def test_tokens_learn_to_say_what_stands_in_the_other_modality(record: RunRecord) -> None:
    assert record.status == "finished"
    assert record.metrics["dev"].keys() == {"token accuracy", "whole accuracy", "loss"}
    data = token_data()
    asked = torch.cat([example.target[example.target >= 0] for example in data.splits["dev"]])
    constant = float((asked == asked.mode().values).double().mean())
    assert record.metrics["dev"]["token accuracy"] > constant + 0.2
    assert record.curves[-1]["train_loss"] < record.curves[0]["train_loss"] / 2


def test_stored_answers_are_of_real_tokens_and_score_as_recorded(record: RunRecord, folder: Path) -> None:
    data = token_data()
    stored = read_predictions(folder / "predictions" / "dev.parquet")
    assert stored.logits.shape == (24, 4, len(LABELS))
    assert stored.target.shape == (24, 4)
    for row, example in enumerate(data.splits["dev"]):
        count = len(example.target)
        assert torch.equal(stored.target[row, :count], example.target)
        assert (stored.target[row, count:] == -1).all()
        assert (stored.logits[row, count:] == 0).all()
        assert (stored.logits[row, :count] != 0).any(-1).all()
    assert scores((data.metric, *data.also), "tokens", stored) == record.metrics["dev"]


def test_the_kept_model_answers_as_the_stored_answers_say_whatever_the_batch(record: RunRecord, folder: Path) -> None:
    model = meq.FusionModel.from_pretrained(folder / "model").eval()
    stored = read_predictions(folder / "predictions" / "dev.parquet")
    for size in (12, 5):
        again = predict_split(model, token_data(), "dev", batch_size=size)
        assert again.ids == stored.ids
        assert torch.equal(again.target, stored.target)
        torch.testing.assert_close(again.logits, stored.logits, rtol=1e-4, atol=1e-5)


def test_answers_per_token_are_the_same_after_the_disk_to_the_last_bit(tmp_path: Path) -> None:
    logits = torch.tensor([[[1e-30, torch.nan], [torch.inf, -0.0]], [[1 / 3, 2.0], [0.0, 0.0]]])
    target = torch.tensor([[1, 0], [-1, -1]])
    write_predictions(tmp_path / "dev.parquet", Predictions(ids=["a", "b"], logits=logits, target=target))
    back = read_predictions(tmp_path / "dev.parquet")
    assert back.logits.view(torch.int32).equal(logits.view(torch.int32))
    assert back.target.dtype == torch.int64
    assert back.target.equal(target)


def test_a_model_that_answers_for_other_modalities_than_the_data_is_refused(tmp_path: Path) -> None:
    model = token_model(answering=("image", "text"))
    with pytest.raises(ValueError, match=r"answering=\('text',\)"):
        fit(model, token_data(), Objective(task="tokens"), tmp_path, TrainConfig(epochs=1), console=Console(quiet=True))
