from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from meq.data.contract import DataSet, Example, Rows, features
from meq.data.metrics import ACCURACY
from meq.encoders.shards import SHARD_NAME
from meq.experiments.build import Places, Prepared, prepare_data
from meq.experiments.executors.packing import pack, unpack
from meq.experiments.study import DataConfig

PICTURES = DataConfig(name="scenes", options={"train": 18, "dev": 18, "test": 18})


def same_examples(ours: DataSet, theirs: DataSet) -> bool:
    return ours.fingerprint() == theirs.fingerprint() and all(
        torch.equal(x, b.content[name])
        for split in ours.splits
        for a, b in zip(ours.splits[split], theirs.splits[split], strict=True)
        for name, x in a.content.items()
    )


def test_unpacked_data_is_the_same_and_its_tensors_lie_in_one_file(tmp_path: Path) -> None:
    prepared = prepare_data(PICTURES)
    packed = pack(prepared, tmp_path / "tensors")
    assert packed.tensors.stat().st_size > 0
    assert len(packed.content) < len(pickle.dumps(prepared)), "the tensors are elsewhere"
    again = unpack(packed)
    assert same_examples(prepared.data, again.data)
    assert again.raw is not None
    assert again.encoders.keys() == prepared.encoders.keys()
    assert unpack(packed) is again, "a process unpacks it once"


def test_writing_into_unpacked_data_stays_in_the_process(tmp_path: Path) -> None:
    packed = pack(vectors(lambda: 1.0), tmp_path / "tensors")
    unpack(packed).data.splits["train"].rows[0].add_(1)
    other = replace(packed, token="another process")
    assert unpack(other).data.splits["train"].rows[0].tolist() == [0.0, 1.0]


def test_a_feature_store_is_read_where_it_lies(tmp_path: Path) -> None:
    places = Places(store=tmp_path / "store")
    prepare_data(replace(PICTURES, limit=4), places)
    prepared = prepare_data(PICTURES, places)  # a second shard, so that their order matters
    shards = [path for path in places.store.rglob("*") if SHARD_NAME.fullmatch(path.name)]
    packed = pack(prepared, tmp_path / "tensors")
    assert same_examples(prepared.data, unpack(packed).data)
    assert packed.tensors.stat().st_size < sum(path.stat().st_size for path in shards), "it was not copied"


def test_functions_made_by_functions_are_packed_too(tmp_path: Path) -> None:
    """As readers of data sets hold on to what they read."""
    factor = 3.0
    packed = pack(vectors(lambda: factor), tmp_path / "tensors")
    again = unpack(packed).data.splits["train"]
    assert [example.content["x"].tolist() for example in again] == [[0.0, 3.0], [3.0, 6.0]]


def vectors(factor: Callable[[], float]) -> Prepared:
    """Two examples, made by a function that lives in this one."""

    def make(row: torch.Tensor, times: float = 1.0) -> Example:
        return Example(id=str(row.tolist()), content={"x": row * factor() * times}, target=torch.tensor(0))

    rows = [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])]
    data = DataSet(
        name="vectors",
        splits={"train": Rows(rows, make)},
        modalities={"x": features(2)},
        labels=["a"],
        head="classes",
        metric=ACCURACY,
    )
    return Prepared(data=data)
