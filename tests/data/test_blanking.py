"""A blanked modality says nothing more, whatever form its features have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from meq.data.blanking import blank
from meq.data.content import Content
from meq.data.contract import DataSet, Example, Modality, collate, features
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY
from meq.models import MutualEquilibrium

WIDTH = 4


def tokens(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))


FORMS: dict[str, Callable[[int, int], Content]] = {
    "tokens": lambda seed, row: tokens(seed + row, 2 + row % 3),
    "vectors": lambda seed, row: tokens(seed + row),
    "choices": lambda seed, row: tuple(tokens(seed + row + 10 * at, 1 + (at + row) % 3) for at in range(4)),
    "choices of vectors": lambda seed, row: tuple(tokens(seed + row + 10 * at) for at in range(4)),
}
"""By name: (seed, row) -> what an example's modality holds."""


def data_of(form: str, *, seed: int = 0, missing: bool = False) -> DataSet:
    """Six examples; with `missing`, every third one lacks the modality."""

    def example(row: int) -> Example:
        content: dict[str, Content] = {"image": tokens(1000 + row, 3)}
        if not (missing and row % 3 == 0):
            content["text"] = FORMS[form](seed, row)
        return Example(id=f"{row}", content=content, target=torch.tensor(row % 2))

    return DataSet(
        name="made up",
        splits={"train": [example(row) for row in range(6)]},
        modalities={"image": features(WIDTH), "text": features(WIDTH)},
        labels=("no", "yes"),
        head="choices" if form.startswith("choices") else "classes",
        metric=ACCURACY,
    )


def logits(data: DataSet) -> Tensor:
    torch.manual_seed(0)
    model = MutualEquilibrium(data.widths, 2, dim=8, heads=2, steps=2, head=data.head, head_width=8).eval()
    batch = collate(list(data.splits["train"]), data.widths)
    with torch.no_grad():
        return model(batch.features, batch.masks).logits


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_a_blanked_modality_reaches_the_model(form: str, missing: bool) -> None:
    whole, other = data_of(form, missing=missing), data_of(form, seed=500, missing=missing)
    assert not torch.equal(logits(whole), logits(other)), "before, it is read"
    without = blank(whole, ["text"])
    assert torch.equal(logits(without), logits(blank(other, ["text"])))
    assert not torch.equal(logits(without), logits(whole))
    assert without.fingerprint() == blank(other, ["text"]).fingerprint() != whole.fingerprint()
    assert without.facts["blank"] == ["text"]
    assert not collate(list(without.splits["train"]), without.widths).features["text"].any()


@pytest.mark.parametrize("form", FORMS)
def test_the_other_modality_is_read_as_before(form: str) -> None:
    data = data_of(form)
    changed = [
        replace(each, content={**each.content, "image": -each.content["image"]}) for each in data.splits["train"]
    ]
    moved = replace(data, splits={"train": changed})
    assert not torch.equal(logits(blank(data, ["text"])), logits(blank(moved, ["text"])))


def test_blanked_choices_cannot_be_told_apart_by_their_length() -> None:
    found = logits(blank(data_of("choices"), ["text"]))
    assert found.shape == (6, 4)
    torch.testing.assert_close(found, found[:, :1].expand(-1, 4))


def test_what_cannot_be_blanked_is_not_passed_on() -> None:
    data = data_of("tokens")
    strange: Any = [replace(data.splits["train"][0], content={"image": tokens(0), "text": "words"})]
    with pytest.raises(DataError, match="example '0': 'text' is a str, which cannot be blanked"):
        list(blank(replace(data, splits={"train": strange}), ["text"]).splits["train"])
    with pytest.raises(DataError, match="nothing left to learn from"):
        blank(data, ["text", "image"])
    with pytest.raises(DataError, match="did you mean 'text'"):
        blank(data, ["txt"])
    raw = replace(data, modalities={**data.modalities, "text": Modality(kind="text")})
    with pytest.raises(DataError, match="is not encoded yet"):
        blank(raw, ["text"])
