from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from meq.analysis.importance import Part, measure_importance, over_repeats


class Reader:
    """Answers with the sign of a[0] where `a` is there, and with class 0 where it is not; `b` is never read."""

    head_kind, answering = "classes", ()

    def modules(self) -> Any:
        return iter(())

    def __call__(self, features: dict[str, Tensor], masks: dict[str, Tensor] | None) -> Any:
        x, real = features["a"], (masks or {}).get("a")
        real = torch.ones(x.shape[:2], dtype=torch.bool) if real is None else real
        known = real.any(1)
        value = torch.where(real, x[:, :, 0], 0.0).sum(1)
        logits = torch.stack([torch.zeros(len(x)), torch.where(known, value, -1.0)], dim=1)
        return SimpleNamespace(logits=logits)


def batch(count: int = 200, tokens: int = 1) -> SimpleNamespace:
    random = torch.Generator().manual_seed(0)
    a = torch.randn(count, tokens, 2, generator=random)
    b = torch.randn(count, 4, 3, generator=random)
    return SimpleNamespace(features={"a": a, "b": b}, masks={}, target=(a[:, :, 0].sum(1) > 0).long())


def test_a_modality_that_decides_loses_half_and_one_that_is_not_read_nothing() -> None:
    found = measure_importance(Reader(), [batch()], repeats=5)
    read, ignored = found.parts
    assert found.score.value == 1.0
    assert read.shuffled.value == pytest.approx(0.5, abs=0.07)
    assert read.shuffled.low < read.shuffled.value < read.shuffled.high
    assert read.spread > 0
    assert read.removed is not None
    assert read.removed.value == pytest.approx(0.5, abs=0.1), "class 0 is right for half of them"
    assert (ignored.shuffled.value, ignored.shuffled.low, ignored.shuffled.high) == (0, 0, 0)
    assert ignored.changed == 0


def test_columns_and_tokens_are_told_apart() -> None:
    parts = [Part(name=f"a_{at}", modality="a", numbers=(at,)) for at in range(2)]
    used, unused = measure_importance(Reader(), [batch()], parts, repeats=3).parts
    assert used.kind == "column"
    assert used.shuffled.low > 0.3
    assert used.removed is not None
    assert used.removed.value > 0.3, "the mean of the column says nothing of its sign"
    assert unused.shuffled.value == 0
    both = [Part(name=f"a {at}", modality="a", tokens=(at,)) for at in range(2)]
    first, second = measure_importance(Reader(), [batch(tokens=2)], both, repeats=3).parts
    assert first.kind == "token"
    assert first.shuffled.low > 0.1
    assert second.shuffled.low > 0.1
    assert first.shuffled.value < 0.4, "the other token still says something"
    assert first.removed is not None
    assert first.removed.low > 0.1


def test_samples_without_the_part_are_counted_and_stay_as_they_are() -> None:
    made = batch(tokens=2)
    real = torch.ones(200, 2, dtype=torch.bool)
    real[:150, 1] = False
    made.masks["a"] = real
    (found,) = measure_importance(Reader(), [made], [Part(name="a 2", modality="a", tokens=(1,))], repeats=2).parts
    assert found.samples == 50
    assert found.changed < 0.25


def test_the_only_modality_cannot_be_removed_but_shuffled() -> None:
    made = batch()
    del made.features["b"]
    (found,) = measure_importance(Reader(), [made], repeats=2).parts
    assert found.removed is None
    assert found.shuffled.value > 0.3


def test_an_interval_over_repeats_is_wider_than_one_of_repeats_that_agree() -> None:
    random = torch.Generator().manual_seed(0)
    same = torch.rand(1, 300, generator=random).expand(6, 300)
    shifted = same + torch.linspace(-0.3, 0.3, 6)[:, None]
    narrow, wide = over_repeats(same, 0), over_repeats(shifted, 0)
    assert narrow.value == pytest.approx(wide.value, abs=1e-6)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    assert narrow.high - narrow.low == pytest.approx(2 * 1.96 * float(same[0].std()) / 300**0.5, rel=0.15)
