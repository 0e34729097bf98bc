"""What an encoder is, and what it makes of a picture, a text or a sound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from meq.data.content import Content


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """What an encoder makes of one picture, text or sound, and where in the original each token lies."""

    features: Float[Tensor, "N W"]
    boxes: Float[Tensor, "N 4"] | None = None
    """Left, top, right, bottom in pixels of the original picture; NaN for a token without a place."""
    spans: Int[Tensor, "N 2"] | None = None
    """First and past-the-last character of the text; -1, -1 for a token without a place."""
    times: Float[Tensor, "N 2"] | None = None
    """Begin and end in seconds of the sound; NaN for a token without a place."""


class Encoder(ABC):
    """Pictures, texts or sounds in, tokens out; it never learns."""

    name: str
    revision: str
    """Which version of that name: a commit of the Hub, a package's version, or "local" for a folder."""
    weight_hash: str
    """SHA-256, in hex, of all that decides the features: weights, preprocessing, tokeniser, options."""
    kind: str
    """What it reads: image, regions, text or audio."""
    width: int
    truncated: int = 0
    """How many of the contents encoded so far were longer than the encoder reads, and were cut."""

    @abstractmethod
    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        """Tokens of each content; the result does not depend on what else is in the list."""
