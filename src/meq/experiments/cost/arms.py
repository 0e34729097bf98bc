"""What the cost study measures: the SNLI-VE architecture of the paper, with random weights and random inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from meq.core.options import nearest
from meq.encoders.pretrained import require_transformers
from meq.experiments.cost.sweep import at_depth
from meq.experiments.settings import FULL, QUICK
from meq.experiments.study import StudyError
from meq.models.base import FusionModel
from meq.models.iterated import Iterated
from meq.models.match import match_parameters
from meq.training.recipes import ARMS

BENCHMARK, CLASSES = "snli-ve", 3
EQUILIBRIUM = "meq"
SINGLE_PASS = ("concat", "low-rank", "cross-attention", "self-attention")
ARM_NAMES = (*SINGLE_PASS, EQUILIBRIUM)
DEPTHS = (1, 5, 10, 20)
MATCHING = 0.005
"""How far the parameters of two arms may lie apart, relative: a narrow arm grows in large steps."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """The sizes of one form of the study; encoders are CLIP's for pictures and BERT's for texts."""

    batch_size: int
    encoder_width: int = 768
    encoder_layers: int = 12
    encoder_heads: int = 12
    picture_side: int = 224
    patch_side: int = 32
    text_tokens: int = 60
    vocabulary: int = 30522
    passes: int = 30
    warmups: int = 5

    @property
    def image_tokens(self) -> int:
        """One per patch, and the class token."""
        return (self.picture_side // self.patch_side) ** 2 + 1


FULL_FORM = Form(batch_size=FULL[BENCHMARK].train.batch_size)
QUICK_FORM = replace(
    FULL_FORM, batch_size=4, encoder_width=64, encoder_layers=2, encoder_heads=4, vocabulary=1000, passes=15, warmups=2
)


class LastHidden(nn.Module):
    """A transformers model as a function of one tensor: its last hidden state (B N W)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).last_hidden_state


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenEncoders:
    """Encoders by modality, and random pixels and words for them."""

    encoders: Mapping[str, LastHidden]
    raw: Mapping[str, Tensor]


def form_of(quick: bool) -> Form:
    return QUICK_FORM if quick else FULL_FORM


def paper_encoders(quick: bool = True, *, device: str = "cpu", seed: int = 0) -> FrozenEncoders:
    """CLIP ViT-B/32 for pictures and BERT-base for texts, with random weights: nothing is downloaded.

    The quick form has the same tokens, two layers and narrow states. On the meta device nothing is allocated.
    """
    form, transformers = form_of(quick), require_transformers()
    sizes: dict[str, Any] = {
        "hidden_size": form.encoder_width,
        "num_hidden_layers": form.encoder_layers,
        "num_attention_heads": form.encoder_heads,
        "intermediate_size": 4 * form.encoder_width,
    }
    picture = transformers.CLIPVisionConfig(**sizes, image_size=form.picture_side, patch_size=form.patch_side)
    text = transformers.BertConfig(**sizes, vocab_size=form.vocabulary)
    with _drawn(seed, device):
        raw = {
            "image": torch.randn(form.batch_size, 3, form.picture_side, form.picture_side),
            "text": torch.randint(form.vocabulary, (form.batch_size, form.text_tokens)),
        }
        models = {
            "image": transformers.CLIPVisionModel(picture),
            "text": transformers.BertModel(text, add_pooling_layer=False),
        }
    frozen = {name: LastHidden(model.eval().requires_grad_(False)).to(device) for name, model in models.items()}
    return FrozenEncoders(encoders=frozen, raw={name: x.to(device) for name, x in raw.items()})


def matched_arms(
    names: Sequence[str] = ARM_NAMES,
    *,
    quick: bool = True,
    depths: Sequence[int] = DEPTHS,
    device: str = "cpu",
    seed: int = 0,
) -> dict[str, FusionModel]:
    """The arms by name; those that do not iterate are as large as the equilibrium, which comes once per depth."""
    for name in names:
        if name not in ARM_NAMES:
            raise StudyError(f"the cost study has no arm {name!r}: {nearest(name, ARM_NAMES)}")
    target = _equilibrium(quick, "meta", seed).count_parameters()
    arms: dict[str, FusionModel] = {}
    for name in names:
        if name == EQUILIBRIUM:
            model = _equilibrium(quick, device, seed)
            arms |= {f"{name} K={depth}": at_depth(model, depth) for depth in depths}
        else:
            arms[name] = _matched(name, target, quick=quick, device=device, seed=seed)
    return arms


def _equilibrium(quick: bool, device: str, seed: int) -> Iterated:
    with _drawn(seed, device):
        model = _build(EQUILIBRIUM, quick)
    assert isinstance(model, Iterated)
    return model.to(device).eval()


def _matched(name: str, target: int, *, quick: bool, device: str, seed: int) -> FusionModel:
    found = match_parameters(lambda size: _build(name, quick, hidden=size), target, tolerance=MATCHING)
    with _drawn(seed, device):
        return _build(name, quick, hidden=found.size).to(device).eval()


def _build(name: str, quick: bool, **options: Any) -> FusionModel:
    """The arm in the shape that the benchmark's setting has."""
    make, fixed = ARMS[name]
    shape = (QUICK if quick else FULL)[BENCHMARK].shape
    known = inspect.signature(make).parameters
    shared = {option: value for option, value in shape.items() if option in known}
    width = form_of(quick).encoder_width
    return make({"image": width, "text": width}, CLASSES, **{**shared, **fixed, **options})


@contextmanager
def _drawn(seed: int, device: str) -> Iterator[None]:
    """Weights are drawn on the CPU, so that they are the same everywhere, and the caller's random numbers stay."""
    with torch.random.fork_rng(devices=[]), torch.device("meta" if device == "meta" else "cpu"):
        torch.manual_seed(seed)
        yield
