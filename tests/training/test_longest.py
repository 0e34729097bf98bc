from __future__ import annotations

from pathlib import Path

import pytest

from meq.data import open_data
from meq.encoders import default_encoders, encode
from meq.encoders.store import Features
from meq.training.arms import longest


def test_the_longest_examples_of_a_store_are_known_without_reading_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = open_data("scenes", train=18, dev=18, test=18)
    data = encode(raw, default_encoders(raw), store=tmp_path)
    counted = {
        name: max(len(example.content[name]) for split in data.splits.values() for example in split)
        for name in data.widths
    }
    assert longest(data) == counted

    def refuse(*given: object) -> None:
        raise AssertionError("features were read")

    monkeypatch.setattr(Features, "read", refuse)
    assert longest(data) == counted
    assert data.splits["train"][:3].lengths is not None, "a part of a split knows as much"
