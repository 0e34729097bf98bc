from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from meq.data.contract import TEXT, DataSet, Example, features
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY
from meq.data.standardise import Standardisation, standardise


def made(splits: dict[str, list[dict[str, Any]]], **modalities: Any) -> DataSet:
    rows = {
        name: [Example(id=f"{name}-{n}", content=content, target=torch.tensor(0)) for n, content in enumerate(contents)]
        for name, contents in splits.items()
    }
    return DataSet(name="set", splits=rows, modalities=modalities, labels=("a", "b"), head="classes", metric=ACCURACY)


def stacked(data: DataSet, split: str, name: str) -> Tensor:
    rows = [example.content[name] for example in data.splits[split] if name in example.content]
    return torch.cat([x.reshape(-1, x.shape[-1]) for x in rows if isinstance(x, Tensor)])


def vectors(count: int, *, scale: float = 1.0, seed: int = 0) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"v": torch.randn(3, generator=generator) * scale + 100} for _ in range(count)]


def test_train_gets_mean_0_and_deviation_1() -> None:
    data, found = standardise(made({"train": vectors(50), "dev": vectors(10)}, v=features(3)))
    x = stacked(data, "train", "v")
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert data.facts["standardised"] == ["v"]
    assert data.widths == {"v": 3}
    torch.testing.assert_close(torch.tensor(found.mean["v"]), stacked(made({"t": vectors(50)}), "t", "v").mean(0))


def test_other_splits_have_no_say_in_the_statistics() -> None:
    _, one = standardise(made({"train": vectors(20), "dev": vectors(5)}, v=features(3)))
    _, two = standardise(made({"train": vectors(20), "dev": vectors(9, scale=1000, seed=1)}, v=features(3)))
    assert one == two


def test_a_constant_column_becomes_0_and_stays_finite_elsewhere() -> None:
    splits = {"train": [{"v": torch.tensor([0.1, n])} for n in (1.0, 2.0)], "dev": [{"v": torch.tensor([0.6, 1.5])}]}
    data, found = standardise(made(splits, v=features(2)))
    assert found.std["v"][0] == 1
    assert stacked(data, "train", "v").tolist() == [[0, -1], [0, 1]]
    torch.testing.assert_close(stacked(data, "dev", "v"), torch.tensor([[0.5, 0.0]]))


def test_tokens_count_one_by_one_and_missing_rows_not_at_all() -> None:
    train = [{"v": torch.tensor([[0.0], [2.0], [4.0]])}, {}, {"v": torch.tensor([6.0])}]
    data, found = standardise(made({"train": train}, v=features(1)))
    assert found.mean["v"] == (3.0,)
    assert found.std["v"] == pytest.approx((5**0.5,))
    assert "v" not in data.splits["train"][1].content
    first = data.splits["train"][0].content["v"]
    assert isinstance(first, Tensor)
    assert first.shape == (3, 1)


def test_choices_are_standardised_one_by_one() -> None:
    data, _ = standardise(made({"train": [{"v": (torch.tensor([1.0]), torch.tensor([3.0]))}]}, v=features(1)))
    assert data.splits["train"][0].content["v"] == (torch.tensor([-1.0]), torch.tensor([1.0]))


def test_texts_and_what_train_never_has_stay_as_they_are() -> None:
    splits = {"train": [{"t": "word"}], "dev": [{"t": "word", "v": torch.tensor([7.0])}]}
    data, found = standardise(made(splits, t=TEXT, v=features(1)))
    assert found.mean == {}
    assert data.splits["dev"][0].content == {"t": "word", "v": torch.tensor([7.0])}


def test_statistics_survive_json_exactly() -> None:
    _, found = standardise(made({"train": vectors(20)}, v=features(3)))
    again = Standardisation.from_json(json.dumps(json.loads(found.to_json())))
    assert again == found


def test_stored_statistics_do_to_new_data_what_they_did_to_the_old() -> None:
    data, found = standardise(made({"train": vectors(20)}, v=features(3)))
    again = Standardisation.from_json(found.to_json()).apply(made({"train": vectors(20)}, v=features(3)))
    assert again.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("text", ["{", "[]", '{"mean": {}}', '{"mean": {"v": ["x"]}, "std": {"v": [1]}}'])
def test_json_of_something_else_is_an_error(text: str) -> None:
    with pytest.raises(DataError, match="not the JSON of a standardisation"):
        Standardisation.from_json(text)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deviation_must_be_positive_and_finite(std: float) -> None:
    with pytest.raises(DataError, match="positive and finite"):
        Standardisation(mean={"v": (0.0,)}, std={"v": (std,)})


def test_statistics_of_another_shape_are_errors() -> None:
    data = made({"train": vectors(2)}, v=features(3))
    with pytest.raises(DataError, match="'v' has width 3, the statistics are of 1 columns"):
        Standardisation(mean={"v": (0.0,)}, std={"v": (1.0,)}).apply(data)
    with pytest.raises(DataError, match="no modality 'w'"):
        Standardisation(mean={"w": (0.0,)}, std={"w": (1.0,)}).apply(data)
    with pytest.raises(DataError, match="as many means"):
        Standardisation(mean={"v": (0.0,)}, std={"v": (1.0, 1.0)})


def test_without_train_there_are_no_statistics() -> None:
    with pytest.raises(DataError, match="no train split"):
        standardise(made({"dev": vectors(2)}, v=features(3)))


def test_a_number_that_is_not_finite_is_named_with_its_example() -> None:
    with pytest.raises(DataError, match="example 'train-0': 'v' holds numbers that are not finite"):
        standardise(made({"train": [{"v": torch.tensor([float("nan")])}]}, v=features(1)))
