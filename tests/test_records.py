from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.records import (
    SCHEMA,
    FormatError,
    dumps,
    loads,
    plain,
    read_cached,
    read_dataclass,
    sha256,
    typed,
    write_bytes,
    write_dataclass,
    write_sealed,
)
from meq.training.record import Selection


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"first")
    write_bytes(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"second"
    assert sha256(tmp_path / "a") == "16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4"
    assert os.listdir(tmp_path) == ["a"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    write_bytes(tmp_path / "a", b"first")
    monkeypatch.setattr("meq.records.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


# -- dataclasses as JSON -----------------------------------------------------------------------------------------------


class Colour(Enum):
    RED, BLUE = "red", "blue"


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    colour: Colour
    logits: Float[Tensor, "B C"]
    counts: dict[str, Int[Tensor, " B"]]
    kept: Bool[Tensor, " B"]
    pair: tuple[Float[Tensor, " B"], int]
    schema: int = SCHEMA


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "colour": Colour.BLUE,
        "logits": torch.tensor([[0.1, math.nan], [math.inf, -0.0]]),
        "counts": {"text": torch.tensor([1, 2**60])},
        "kept": torch.tensor([True, False]),
        "pair": (torch.tensor([0.5, 0.25], dtype=torch.bfloat16), 3),
    }
    return Sample(**{**fields, **changes})


def test_tensors_and_enums_come_back_from_a_file_digit_by_digit(tmp_path: Path) -> None:
    write_dataclass(tmp_path / "sample.json", sample())
    back = read_dataclass(Sample, tmp_path / "sample.json")
    assert back.colour is Colour.BLUE
    assert torch.allclose(back.logits.float(), sample().logits, rtol=0, atol=0, equal_nan=True)
    assert back.counts["text"].tolist() == [1, 2**60]
    assert back.kept.tolist() == [True, False]
    assert back.pair[0].tolist() == [0.5, 0.25]
    assert dumps(back) == dumps(sample())


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("logits", "0.1", "the field 'logits' is no tensor of Float"),
        ("logits", [[0.1], [0.2, 0.3]], "the field 'logits' is no tensor of Float"),
        ("logits", [0.1], "the field 'logits' has 1 axes instead of 'B C'"),
        ("counts", {"text": [1.5]}, "the field 'counts.text' is no tensor of Int"),
        ("kept", [1], "the field 'kept' is no tensor of Bool"),
        ("pair", [[0.5]], r"the field 'pair' should be a list of 2, has 1"),
        ("colour", "rad", "the field 'colour' cannot be 'rad': did you mean 'red'"),
        ("colour", ["red"], "the field 'colour' cannot be"),
        ("schema", 2, "written in format 2, this version of meq reads up to 1; upgrade meq"),
        ("schema", "1", "the field 'schema' is '1'"),
        ("schema", 0, "the field 'schema' is 0"),
        ("schema", None, "the field 'schema' is missing"),
    ],
)
def test_what_is_of_another_kind_is_an_error_that_names_the_field(
    field: str, value: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({**plain(sample()), field: value}))
    with pytest.raises(FormatError, match=words) as caught:
        read_dataclass(Sample, path)
    assert str(path) in str(caught.value)


def test_a_file_of_another_version_is_no_cache_and_a_changed_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    assert read_cached(Sample, path) is None
    write_sealed(path, sample())
    assert read_cached(Sample, path) is not None
    path.write_text(path.read_text().replace("blue", "red"))
    with pytest.raises(FormatError, match="its own hash does not match"):
        read_cached(Sample, path)
    write_sealed(path, {"schema": 1, "colour": "red"})
    assert read_cached(Sample, path) is None


@pytest.mark.parametrize("value", [{1: "a"}, {"not finite": 1}, {"a": {1, 2}}, {"a": Path("x")}])
def test_what_json_cannot_hold_is_an_error_not_a_guess(value: Any) -> None:
    with pytest.raises(TypeError, match="a record"):
        dumps(value)


@pytest.mark.parametrize("text", ['{"not finite": "12"}', '{"not finite": 1}'])
def test_only_three_numbers_are_not_finite(text: str) -> None:
    with pytest.raises(FormatError, match='"nan", "inf" or "-inf"'):
        loads(text, "here")


def test_a_whole_number_may_stand_for_a_number_and_nothing_else() -> None:
    value = {"by": "best", "split": "dev", "metric": "accuracy", "epoch": 1, "value": 1}
    assert typed(Selection, value, "here").value == 1.0
    with pytest.raises(FormatError, match=r"here: the field 'epoch' should be a whole number, is 1\.5"):
        typed(Selection, {**value, "epoch": 1.5}, "here")
