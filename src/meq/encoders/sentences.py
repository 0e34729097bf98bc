"""Sentences of a text, one token each: the words of a sentence side by side, each at its own place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float

from meq.data.content import Content
from meq.data.duels_worlds import WORDS as KNOWN
from meq.encoders.builtin import WORD, definition_hash, hashed
from meq.encoders.contract import Encoder, Tokens, content_of
from meq.options import checked_options, whole_number

BUCKETS = 16
"""Features of a place that all words share which have none of their own."""
CODE = len(KNOWN) + BUCKETS
GAIN = 6.0
"""Brings the mean square of a token near one, as the other built-in encoders have it: 0.5 for nine words."""
SENTENCE = re.compile(r"[^.?!;\n]*[^.?!;\s][^.?!;\n]*[.?!;]*|[.?!;]+")


@checked_options
class Sentences(Encoder):
    """One token per sentence: for each place in it, which word stands there, of those it knows, else a hash of it.

    Sentences end at . ? ! ; or a new line. A text without a word has no tokens and counts as a missing modality.
    """

    registered = "sentences"
    kind = "text"
    revision = "v1"

    def __init__(self, *, max_words: int = 12, max_sentences: int = 64) -> None:
        self.max_words = whole_number("Sentences: max_words", max_words)
        self.max_sentences = whole_number("Sentences: max_sentences", max_sentences)
        self.name = f"sentences-{max_sentences}x{max_words}-v1"
        self.weight_hash = definition_hash(self.name, KNOWN, BUCKETS, GAIN, WORD.pattern, SENTENCE.pattern)
        self.width = self.max_words * CODE
        self.truncated = 0
        """How many of the texts encoded so far had more sentences, or a longer one, than are read."""

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Tokens:
        text = content_of(str, content, self.name, "texts")
        found = [_stripped(text, *match.span()) for match in SENTENCE.finditer(text)]
        words = [WORD.findall(text[start:end].lower()) for start, end in found]
        longest = max(map(len, words), default=0)
        self.truncated += len(found) > self.max_sentences or longest > self.max_words
        found, words = found[: self.max_sentences], words[: self.max_sentences]
        features = np.zeros((len(found), self.max_words, CODE), dtype=np.float32)
        for row, sentence in enumerate(words):
            for place, word in enumerate(sentence[: self.max_words]):
                features[row, place] = _code(word)
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
