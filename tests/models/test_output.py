"""What a model returns is read by attribute, by key and by place."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import meq


def answer(classes: int | None = 3) -> meq.Output:
    model = meq.MutualEquilibrium({"image": 6, "text": 5}, classes, 8, heads=2, steps=2)
    return model({"image": torch.randn(2, 3, 6), "text": torch.randn(2, 4, 5)})


def test_an_output_is_read_by_attribute_key_and_place() -> None:
    out = answer()
    assert out["logits"] is out.logits is out[0]
    assert out["solution"] is out.solution is out[-1]
    assert out[:2] == (out.logits, out.pooled)
    assert out.get("logits") is out.logits
    assert out.get("loss", 1.0) == 1.0


def test_keys_values_and_the_tuple_stand_in_one_order_without_what_is_none_or_empty() -> None:
    out = answer()
    assert out.keys() == tuple(out) == ("logits", "pooled", "solution")
    logits, pooled, solution = out.to_tuple()
    assert logits is out.logits
    assert pooled is out.pooled
    assert solution is out.solution
    assert dict(out) == dict(out.items()) == dict(zip(out.keys(), out.values(), strict=True))
    assert {**out}["pooled"] is out.pooled
    assert "logits" in out
    assert "branches" not in out
    assert len(out) == 3


def test_without_classes_the_first_place_is_the_pooled_vectors() -> None:
    out = answer(classes=None)
    assert out[0] is out.pooled
    with pytest.raises(KeyError, match=r"no 'logits': it is None or empty\. It has pooled, solution"):
        out["logits"]


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean 'logits'"):
        answer()["logit"]
    with pytest.raises(IndexError):
        answer()[7]


def test_the_tensors_of_an_output_are_found_by_what_walks_through_trees_of_them() -> None:
    """DistributedDataParallel(static_graph=True) adds up the gradients of the tensors that it finds, and no others."""
    out = answer()
    leaves, layout = pytree.tree_flatten(out)
    assert any(leaf is out.logits for leaf in leaves)
    assert any(leaf is out.pooled["text"] for leaf in leaves)
    again = pytree.tree_unflatten(leaves, layout)
    assert again.logits is out.logits
    assert again.solution is out.solution
    assert again.keys() == out.keys()
