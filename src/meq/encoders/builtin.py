"""Encoders without weights: patches of a picture by fixed descriptors, words by a vocabulary and by hashing.

Nothing is downloaded and nothing is learned. They describe colour, texture and outline, not what a photograph is of:
for photographs and free text a pretrained encoder will serve better, these serve anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image

from meq.data.content import Content, Picture
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.encoders.descriptors import (
    BITMAP,
    BUCKETS,
    DESCRIPTORS,
    EDGES,
    FAINT,
    FOLDS,
    HUES,
    NOTHING,
    OUTLINE,
    PATCH_GAIN,
    SHADES,
    SIDE,
    VOCABULARY,
    WAVES,
    WORD,
    WORD_GAIN,
    cut,
    describe,
    patch_tokens,
    word_tokens,
)
from meq.options import checked_options

PHOTO_GRID = 6
"""Rows and columns of patches for pictures of which nothing is known."""


@checked_options
class Patches(Encoder):
    """One token per cell of a grid over the picture: colours, edges, the outline of what stands out, and the place."""

    registered = "patches"
    kind = "image"
    revision = "v1"

    def __init__(self, *, grid: int = PHOTO_GRID) -> None:
        if not 1 <= grid <= 64:
            raise ValueError(f"Patches: grid must lie between 1 and 64, got {grid}")
        self.grid = grid
        self.name = f"patches-{grid}x{grid}-v1"
        self.weight_hash = definition_hash(
            self.name, SIDE, BITMAP, HUES, SHADES, EDGES, OUTLINE, FOLDS, FAINT, NOTHING, PATCH_GAIN
        )
        self.width = DESCRIPTORS + 2 * grid

    @property
    def window(self) -> tuple[int, int]:
        """Pixels of a picture that is summed up."""
        return self.grid * SIDE, self.grid * SIDE

    def pooled(self, images: Sequence[Image.Image]) -> Float[torch.Tensor, "B W"]:
        """One vector per picture, the mean over its patches without their places: what regions are told by."""
        patches = [describe(cut(image.convert("RGB"), self.grid, SIDE, Image.Resampling.BOX)) for image in images]
        return torch.from_numpy(PATCH_GAIN * np.stack([each.mean(0) for each in patches]).astype(np.float32))

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        image, whole = content_of(Picture, content, self.name, "pictures").open_scaled(self.grid * SIDE)
        features = patch_tokens(image.convert("RGB"), self.grid)
        return Tokens(features=torch.from_numpy(features.astype(np.float32)), boxes=grid_boxes(self.grid, *whole))


def grid_boxes(grid: int, width: int, height: int) -> Float[torch.Tensor, "T 4"]:
    """The places of a grid's cells in a picture of that size, row by row."""
    row, column = torch.arange(grid).repeat_interleave(grid), torch.arange(grid).repeat(grid)
    corners = torch.stack([column, row, column + 1, row + 1], dim=1)
    return corners.float() * torch.tensor([width, height, width, height]) / grid


@checked_options
class Words(Encoder):
    """One token per word or mark: which word of the vocabulary, else a hash of it and its letter triples; the position.

    A text without a word has no tokens and counts as a missing modality.
    """

    registered = "words"
    kind = "text"
    revision = "v1"

    def __init__(self, *, max_words: int = 64) -> None:
        if max_words < 1:
            raise ValueError(f"Words: max_words must be at least 1, got {max_words}")
        self.max_words = max_words
        self.name = f"words-{max_words}-v1"
        self.weight_hash = definition_hash(self.name, VOCABULARY, BUCKETS, WAVES, WORD.pattern, WORD_GAIN)
        self.width = len(VOCABULARY) + BUCKETS + 2 * WAVES
        self.truncated = 0
        """How many of the texts encoded so far were longer than `max_words`."""

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        features, places, cut_off = word_tokens(content_of(str, content, self.name, "texts"), self.max_words)
        self.truncated += cut_off
        spans = torch.tensor(places).reshape(-1, 2).long()
        return Tokens(features=torch.from_numpy(features.astype(np.float32)), spans=spans)


def definition_hash(*parts: object) -> str:
    """Stands for the hash of weights. A changed way of describing needs a new version in the encoder's name."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
