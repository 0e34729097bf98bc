"""Clips of one split, whatever file they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODALITIES = ("image", "audio", "text")


@dataclass(frozen=True, kw_only=True, eq=False)
class Clips:
    """Features of all clips of a split, and which of their tokens are real."""

    ids: Sequence[str]
    scores: np.ndarray[Any, Any]
    """Sentiment, from -3 to 3."""
    features: Mapping[str, Any]
    """By modality: N T W, or one (T W) for each clip."""
    spans: Mapping[str, np.ndarray[Any, Any]]
    """By modality, N 2: the first real token, and the one past the last."""
    words: Sequence[str] | None = None
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Clips that could not be used, and why."""
    wrong_lengths: Mapping[int, str] = field(default_factory=dict)

    def tokens(self, modality: str, row: int) -> np.ndarray[Any, Any]:
        """The clip's real tokens, n W."""
        first, end = self.spans[modality][row]
        return self.features[modality][row][first:end]

    def width(self, modality: str) -> int:
        features = self.features[modality]
        return int(features.shape[-1] if isinstance(features, np.ndarray) else features[0].shape[-1])
