"""One contract over every mixer, readout, head and model: a sample is answered as if it were alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from models.zoo import WIDTHS
from torch import Tensor

import meq
from meq.models import FusionModel
from meq.models.heads import HEADS
from meq.models.readout import READOUTS
from meq.models.sides import SIDES

SMALL: dict[str, Any] = {"widths": WIDTHS, "classes": 3, "dim": 8, "head_width": 12}
LONGEST = {"image": 4, "text": 3, "audio": 2}
ORDER = (("image", "audio"), "text")
SINGLE = (meq.SingleState, meq.SingleVector, meq.FeatureSum, meq.Concat, meq.SelfAttention, meq.CrossAttention)
BATCH, CHOICES = 4, 2


def combinations() -> list[Any]:
    """Every way to put a model together, as (class, options)."""
    coupled: list[tuple[type[FusionModel], dict[str, Any]]] = [
        (meq.MutualEquilibrium, {}),
        (meq.EquilibriumTree, {"order": ORDER}),
    ]
    cases: list[tuple[type[FusionModel], dict[str, Any]]] = []
    for (cls, extra), mixer, readout, head in product(coupled, SIDES, READOUTS, HEADS):
        tokens = {"max_tokens": LONGEST} if mixer == "gmlp" else {}
        cases.append(
            (cls, {"heads": 2, "steps": 2, "mixer": mixer, "readout": readout, "head": head, **tokens, **extra})
        )
    cases += [(cls, {"heads": 2, "head": head}) for cls, head in product(SINGLE, HEADS)]
    cases += [(meq.LowRankFusion, {"head": head}) for head in HEADS]
    answering = [(cls, options) for cls, options in cases if not _without_token_states(cls, options)]
    return [pytest.param(cls, options, id=_label(cls, options)) for cls, options in answering]


def _without_token_states(cls: type[FusionModel], options: dict[str, Any]) -> bool:
    """Asked for answers per token, and refused: see `test_heads.py`."""
    one_vector = cls in (meq.SingleVector, meq.FeatureSum, meq.LowRankFusion) or options.get("mixer") == "mlp"
    return options["head"] == "tokens" and one_vector


def _label(cls: type[FusionModel], options: dict[str, Any]) -> str:
    return "-".join([cls.__name__, *(options[name] for name in ("mixer", "readout", "head") if name in options)])


def built(cls: type[FusionModel], options: dict[str, Any]) -> FusionModel:
    torch.manual_seed(3)
    model = cls(**SMALL, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    return model


def drawn(seed: int, *, choices: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = {
        name: torch.randn(BATCH, LONGEST[name], width, generator=generator, dtype=torch.float64)
        for name, width in WIDTHS.items()
    }
    if choices:
        shape = (BATCH, CHOICES, LONGEST["text"], WIDTHS["text"])
        features["text"] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return features


def missing_parts(*, choices: bool) -> dict[str, Tensor]:
    """Row 0 has a short text and no sound; other rows lack other things."""
    text = torch.ones(BATCH, LONGEST["text"], dtype=torch.bool)
    text[0, 2:] = text[2] = False
    masks = {"text": text, "audio": torch.tensor([False, True, True, False])}
    return {**masks, "text": text[:, None].expand(BATCH, CHOICES, -1).clone()} if choices else masks


@pytest.mark.parametrize(("cls", "options"), combinations())
def test_a_sample_is_not_read_by_its_neighbours(cls: type[FusionModel], options: dict[str, Any]) -> None:
    model, choices = built(cls, options), options["head"] == "choices"
    first, second = drawn(1, choices=choices), drawn(2, choices=choices)
    mixed = {name: torch.cat([first[name][:1], second[name][1:]]) for name in first}
    masks = missing_parts(choices=choices)
    others = {name: torch.cat([mask[:1], mask[1:].flip(0)]) for name, mask in masks.items()}
    lacking = {name: x for name, x in first.items() if name != "audio"}
    lacking_mixed = {name: x for name, x in mixed.items() if name != "audio"}
    cases = [
        ((first, {}), (mixed, {})),
        ((first, masks), (mixed, others)),
        ((lacking, {}), (lacking_mixed, {})),
        ((first, masks), ({name: x[:1] for name, x in first.items()}, {name: x[:1] for name, x in masks.items()})),
    ]
    with torch.no_grad():
        for (features, real), (changed, changed_real) in cases:
            before, after = model(features, real).logits, model(changed, changed_real).logits
            torch.testing.assert_close(after[0], before[0], rtol=0, atol=1e-9)
        assert not torch.allclose(model(mixed).logits[1:], model(first).logits[1:]), "the other rows did change"


@pytest.mark.parametrize("readout", ["merge", "control"])
@pytest.mark.parametrize("build", [meq.MutualEquilibrium, meq.EquilibriumTree])
def test_a_merge_of_vectors_reads_the_other_modalities_of_its_own_sample(build: Any, readout: str) -> None:
    """Of one token there is only one way to attend, so the merge adds what the others say, and the control does not."""
    order = {"order": ORDER} if build is meq.EquilibriumTree else {}
    model = built(build, {"mixer": "mlp", "readout": readout, "heads": 2, **order})
    names = model.state_names
    state = {name: torch.randn(3, 8, dtype=torch.float64) for name in names}
    other = {**state, names[-1]: state[names[-1]] + torch.tensor([[0.0], [1.0], [0.0]])}
    with torch.no_grad():
        moved = (model.pool(other, {})[names[0]] - model.pool(state, {})[names[0]]).abs().amax(-1)
    assert (moved > 1e-6).tolist() == [False, readout == "merge", False]
