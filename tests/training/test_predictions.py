from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.small import WIDTHS, small_data, small_model

import meq
from meq.training.predictions import (
    Predictions,
    PredictionsError,
    batched,
    predict_split,
    read_predictions,
    write_predictions,
)


@pytest.mark.parametrize(
    "target",
    [torch.tensor([0, 2, 1]), torch.tensor([0.5, -1.0, 3.0]), torch.rand(3, 4), torch.tensor([1.0, 0.0, 1.0]).double()],
    ids=["classes", "scores", "soft labels", "double"],
)
def test_answers_are_the_same_after_the_disk_to_the_last_bit(target: torch.Tensor, tmp_path: Path) -> None:
    logits = torch.tensor([[1e-30, torch.nan], [torch.inf, -0.0], [1 / 3, 2.0]])
    write_predictions(tmp_path / "deep" / "dev.parquet", Predictions(ids=["a", "b", "ü"], logits=logits, target=target))
    back = read_predictions(tmp_path / "deep" / "dev.parquet")
    assert back.ids == ["a", "b", "ü"]
    assert back.logits.view(torch.int32).equal(logits.view(torch.int32))
    assert back.target.dtype == target.dtype
    assert back.target.equal(target)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["dev.parquet"], "no half-written file is left"


def test_the_file_is_read_by_anything_that_reads_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_predictions(
        tmp_path / "dev.parquet", Predictions(ids=["a"], logits=torch.tensor([[1.0, 2.0]]), target=torch.tensor([1]))
    )
    assert pq.read_table(tmp_path / "dev.parquet").to_pylist() == [{"id": "a", "target": 1, "logits": [1.0, 2.0]}]


def test_a_file_that_holds_no_predictions_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(PredictionsError, match=r"text\.parquet: not a readable Parquet file"):
        read_predictions(tmp_path / "text.parquet")
    pq.write_table(pa.table({"id": ["a"], "score": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(PredictionsError, match="expected the columns id, target, logits, found id, score"):
        read_predictions(tmp_path / "other.parquet")
    ragged = pa.table({"id": ["a"], "target": [1], "logits": [[1.0]]})
    pq.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(PredictionsError, match=r"ragged\.parquet: target and logits are numbers, or as many per row"):
        read_predictions(tmp_path / "ragged.parquet")
    gaps = pa.table({"id": ["a"], "target": pa.array([None], pa.int64()), "logits": [1.0]})
    pq.write_table(gaps, tmp_path / "gaps.parquet")
    with pytest.raises(PredictionsError, match="an entry is empty"):
        read_predictions(tmp_path / "gaps.parquet")


def test_as_many_answers_as_ids() -> None:
    with pytest.raises(PredictionsError, match="2 ids, 1 logits and 1 targets"):
        Predictions(ids=["a", "b"], logits=torch.zeros(1, 2), target=torch.zeros(1))


def test_a_split_is_answered_without_dropout_and_every_part_gets_its_mode_back(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = small_data(), small_model(dropout=0.5).train()
    model.head.eval()
    modes = [module.training for module in model.modules()]
    found = predict_split(model, data, "dev", batch_size=5)
    assert [module.training for module in model.modules()] == modes
    assert found.ids == [example.id for example in data.splits["dev"]]
    again = predict_split(model, data, "dev", batch_size=17)
    torch.testing.assert_close(found.logits, again.logits, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(type(model), "fuse", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict_split(model, data, "dev")
    assert [module.training for module in model.modules()] == modes


def test_a_model_without_a_head_has_no_answers() -> None:
    model = meq.MutualEquilibrium(WIDTHS, None, dim=8, heads=2, steps=1)
    with pytest.raises(ValueError, match="it has no head to answer with"):
        predict_split(model, small_data(), "dev")


def test_batches_hold_every_example_once_or_every_so_manieth() -> None:
    examples = small_data().splits["dev"]
    assert [len(part) for part in batched(examples, 5)] == [5, 5, 5, 2]
    shares = [[each.id for part in batched(examples, 4, rank, 3) for each in part] for rank in range(3)]
    assert [shares[row % 3][row // 3] for row in range(17)] == [each.id for each in examples]
