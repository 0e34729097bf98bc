"""An encoder such as a user writes in a module of their own: one file, and the line that registers it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import torch

from meq.data.content import Content
from meq.encoders import Encoder, Tokens, register_encoder


@register_encoder("letters")
class Letters(Encoder):
    """One token per letter of the alphabet, one-hot.

    Everything else is left out.
    """

    kind = "text"
    revision = "v1"
    name = "letters-v1"
    width = 26

    def __init__(self, *, most: int = 8, batch_size: int = 1) -> None:
        self.most, self.batch_size = most, batch_size
        self.weight_hash = sha256(f"letters {most}".encode()).hexdigest()

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._tokens(str(content)) for content in contents]

    def _tokens(self, text: str) -> Tokens:
        places = [place for place, letter in enumerate(text.lower()) if "a" <= letter <= "z"][: self.most]
        codes = torch.tensor([ord(text[place].lower()) - ord("a") for place in places], dtype=torch.long)
        spans = torch.tensor([(place, place + 1) for place in places]).reshape(-1, 2).long()
        return Tokens(features=torch.nn.functional.one_hot(codes, self.width).float(), spans=spans)
