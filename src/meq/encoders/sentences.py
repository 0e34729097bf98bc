"""Sentences of a text, one token each: the first word, which says what it is about, and the bag of all the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float

from meq.data.content import Content
from meq.data.duels_worlds import WORDS as KNOWN
from meq.encoders.builtin import definition_hash
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.encoders.descriptors import WORD, hashed
from meq.options import checked_options, whole_number

BUCKETS = 16
"""Features that all words share which have none of their own."""
CODE = len(KNOWN) + BUCKETS
GAIN = 4.0
"""Brings the mean square of a token near one, as the other built-in encoders have it."""
SENTENCE = re.compile(r"[^.?!;\n]*[^.?!;\s][^.?!;\n]*[.?!;]*|[.?!;]+")


@checked_options
class Sentences(Encoder):
    """One token per sentence: which word comes first, and which others there are, in any order.

    Words it does not know are told by a hash. Sentences end at . ? ! ; or a new line. A text without a word has no
    tokens and counts as a missing modality.
    """

    registered = "sentences"
    kind = "text"
    revision = "v1"

    def __init__(self, *, max_sentences: int = 64) -> None:
        self.max_sentences = whole_number("Sentences: max_sentences", max_sentences)
        self.name = f"sentences-{max_sentences}-v1"
        self.weight_hash = definition_hash(self.name, KNOWN, BUCKETS, GAIN, WORD.pattern, SENTENCE.pattern)
        self.width = 2 * CODE
        self.truncated = 0
        """How many of the texts encoded so far had more sentences than are read."""

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        text = content_of(str, content, self.name, "texts")
        found = [_stripped(text, *match.span()) for match in SENTENCE.finditer(text)]
        self.truncated += len(found) > self.max_sentences
        found = found[: self.max_sentences]
        features = np.zeros((len(found), 2, CODE), dtype=np.float32)
        for row, (start, end) in enumerate(found):
            for place, word in enumerate(WORD.findall(text[start:end].lower())):
                features[row, min(place, 1)] += _code(word)
        spans = torch.tensor(found).reshape(-1, 2).long()
        return Tokens(features=torch.from_numpy(GAIN * features.reshape(len(found), self.width)), spans=spans)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the space around it."""
    within = text[start:end]
    return start + len(within) - len(within.lstrip()), end - len(within) + len(within.rstrip())


@lru_cache(maxsize=100_000)
def _code(word: str) -> Float[np.ndarray, " W"]:
    """One-hot for a known word; for another, signed hashes of it and its letter triples."""
    code = np.zeros(CODE, dtype=np.float32)
    if word in KNOWN:
        code[KNOWN.index(word)] = 1
    else:
        code[len(KNOWN) :] = hashed(word, BUCKETS)
    return code
