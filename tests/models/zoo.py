"""Every model at a size that tests can afford, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meq import models

WIDTHS = {"image": 6, "text": 5, "audio": 4}
PAIR = {"image": 6, "text": 5}
TOKENS = {"image": 4, "text": 3, "audio": 2}
DIM, HEADS, CLASSES = 8, 2, 3
SMALL: dict[str, Any] = {"head_width": 12}
ITERATED: dict[str, Any] = {"heads": HEADS, "steps": 4, **SMALL}

Build = Callable[..., models.FusionModel]


def _equilibrium(widths: dict[str, int], **fixed: Any) -> Build:
    def build(**options: Any) -> models.FusionModel:
        return models.MutualEquilibrium(
            **{"widths": widths, "classes": CLASSES, "dim": DIM, **ITERATED, **fixed, **options}
        )

    return build


def _tree(**fixed: Any) -> Build:
    def build(**options: Any) -> models.FusionModel:
        order = (("image", "audio"), "text")
        given = {"widths": WIDTHS, "classes": CLASSES, "dim": DIM, "order": order, **ITERATED, **fixed, **options}
        return models.EquilibriumTree(**given)

    return build


def _baseline(cls: type[models.FusionModel], **fixed: Any) -> Build:
    def build(**options: Any) -> models.FusionModel:
        return cls(**{"widths": WIDTHS, "classes": CLASSES, "dim": DIM, **SMALL, **fixed, **options})

    return build


MODELS: dict[str, Build] = {
    "pair": _equilibrium(PAIR),
    "three modalities": _equilibrium(WIDTHS),
    "merge": _equilibrium(PAIR, readout="merge"),
    "control": _equilibrium(PAIR, readout="control"),
    "gmlp": _equilibrium(WIDTHS, mixer="gmlp", max_tokens={"image": 9, "text": 9, "audio": 9}),
    "mlp": _equilibrium(WIDTHS, mixer="mlp"),
    "zero start": _equilibrium(PAIR, start="zero"),
    "learned damping": _equilibrium(PAIR, damping="learned"),
    "no gate": _equilibrium(PAIR, gate=False),
    "gate floor": _equilibrium(PAIR, gate_floor=0.1),
    "decaying carry": _equilibrium(PAIR, gate="decay"),
    "no cross": _equilibrium(PAIR, cross=False),
    "no own": _equilibrium(PAIR, own=False),
    "single iteration": _equilibrium(PAIR, steps=1),
    "tokens": _equilibrium(PAIR, head="tokens"),
    "tree": _tree(),
    "tree of vectors": _tree(mixer="mlp"),
    "concat": _baseline(models.Concat),
    "self-attention": _baseline(models.SelfAttention, heads=HEADS),
    "cross-attention": _baseline(models.CrossAttention, heads=HEADS),
    "low-rank": _baseline(models.LowRankFusion),
    "single state": _baseline(models.SingleState, heads=HEADS, steps=4),
    "single vector": _baseline(models.SingleVector, heads=HEADS, steps=4),
    "feature sum": _baseline(models.FeatureSum, heads=HEADS, steps=4),
    "self-attention, tokens": _baseline(models.SelfAttention, heads=HEADS, head="tokens"),
}


def features_for(model: models.FusionModel, batch: int = 4, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    return {
        name: torch.randn(batch, TOKENS[name], width, generator=generator, dtype=torch.float64).to(dtype)
        for name, width in model.widths.items()
    }


def ragged_masks(model: models.FusionModel, batch: int = 4) -> dict[str, Tensor]:
    """Sample 1 has shorter texts, sample 2 lacks its text altogether."""
    text = torch.ones(batch, TOKENS["text"], dtype=torch.bool)
    text[1, 2:] = False
    text[2] = False
    return {"text": text}


def answers(output: models.Output) -> Tensor:
    """The logits that answer something: with answers per token, those of real tokens, sample by sample."""
    assert output.logits is not None
    return output.logits if output.answered is None else output.logits[output.answered]


def build(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> models.FusionModel:
    torch.manual_seed(3)
    model = MODELS[name](**options).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from the symmetric values that some parts start from
            parameter.add_(0.05 * torch.randn(parameter.shape, dtype=torch.float64).to(dtype))
    return model
