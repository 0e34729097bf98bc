"""Encoders of real size with random weights: what they compute costs what the pretrained ones cost, and means nothing.

Nothing is downloaded. Their features are for clocks and counters alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from meq.encoders.pretrained import require_transformers
from meq.options import nearest


@dataclass(frozen=True, kw_only=True)
class EncoderSize:
    """The sizes of a transformer that reads pictures or texts."""

    kind: str
    """image or text."""
    like: str
    """Whose sizes these are."""
    width: int = 768
    layers: int = 12
    heads: int = 12
    picture_side: int = 224
    patch_side: int = 32
    text_tokens: int = 60
    vocabulary: int = 30522

    @property
    def tokens(self) -> int:
        """Of a picture one per patch, and the class token."""
        return (self.picture_side // self.patch_side) ** 2 + 1 if self.kind == "image" else self.text_tokens


SIZES: Mapping[str, EncoderSize] = {
    "clip": EncoderSize(kind="image", like="CLIP ViT-B/32"),
    "bert": EncoderSize(kind="text", like="BERT-base"),
}
"""By the name that is asked for."""


class LastHidden(nn.Module):
    """A transformers model as a function of one tensor: its last hidden state (B N W)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).last_hidden_state


def sizes_named(names: Sequence[str]) -> dict[str, EncoderSize]:
    """By kind of content; a name that is not known, or a second one of a kind, is an error."""
    found: dict[str, EncoderSize] = {}
    for name in names:
        if name not in SIZES:
            raise ValueError(f"`encoders` cannot be {name!r}: {nearest(name, SIZES)}")
        size = SIZES[name]
        if size.kind in found:
            raise ValueError(f"`encoders` has two for {size.kind}: give one for each kind of content")
        found[size.kind] = size
    return found


def random_encoder(size: EncoderSize) -> LastHidden:
    """Frozen, with weights from torch's random numbers as they are."""
    transformers = require_transformers()
    sizes: dict[str, Any] = {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
    }
    if size.kind == "image":
        config = transformers.CLIPVisionConfig(**sizes, image_size=size.picture_side, patch_size=size.patch_side)
        model = transformers.CLIPVisionModel(config)
    else:
        config = transformers.BertConfig(**sizes, vocab_size=size.vocabulary)
        model = transformers.BertModel(config, add_pooling_layer=False)
    return LastHidden(model.eval().requires_grad_(False))


def random_contents(size: EncoderSize, batch_size: int) -> Tensor:
    """Pixels, or words, for such an encoder."""
    if size.kind == "image":
        return torch.randn(batch_size, 3, size.picture_side, size.picture_side)
    return torch.randint(size.vocabulary, (batch_size, size.text_tokens))


@contextmanager
def drawn(seed: int, device: str) -> Iterator[None]:
    """Weights are drawn on the CPU, so that they are the same everywhere, and the caller's random numbers stay."""
    with torch.random.fork_rng(devices=[]), torch.device("meta" if device == "meta" else "cpu"):
        torch.manual_seed(seed)
        yield


def sizes_in_words(sizes: Mapping[str, EncoderSize], names: Mapping[str, str] | None = None) -> str:
    """`image as large as CLIP ViT-B/32, text as large as BERT-base`; `names` are modalities, by kind."""
    return ", ".join(f"{(names or {}).get(kind, kind)} as large as {size.like}" for kind, size in sizes.items())
