"""What a run keeps of how its data looked, so that new data can be compared with it: a few numbers per modality.

Missing cells, sizes of pictures and where numbers lie are those of the train split. How many words are unknown, and how
many numbers lie outside of their range, is counted in dev, by what train has: of train itself, it would be none. Words
are kept as hashes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from meq.data.content import PictureBytes, PictureFile
from meq.data.contract import DataSet, Example, Rows, Split
from meq.data.findings import DataError

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 5_000
"""Rows of a split that are looked at, evenly spread over it."""
PICTURES = 500
"""Pictures whose size is looked at."""
WORDS = 10_000
"""Words of train that are kept, the most frequent ones."""
COLUMNS = 512
"""Modalities of more numbers per row are not described."""
WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of one number per row: how many rows, the mean, and the standard deviation."""

    count: int
    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        found = np.asarray(values, dtype=np.float64)
        return cls(count=len(found), mean=float(found.mean()), std=float(found.std())) if len(found) else None


@dataclass(frozen=True, kw_only=True)
class ModalityProfile:
    """How one modality looked in training; None for what it has not."""

    missing: Spread | None = None
    """1 for a row without it, 0 for the others."""
    words: str | None = None
    """Hashes of the words of train."""
    unknown: Spread | None = None
    """The share of a text's words that are none of these."""
    side: Spread | None = None
    """The shorter side of pictures, as log2 of its pixels."""
    columns: tuple[Spread, ...] = ()
    """Of numbers: column by column."""
    low: tuple[float, ...] = ()
    """The smallest number of each column."""
    high: tuple[float, ...] = ()
    outside: Spread | None = None
    """The share of a row's numbers that are smaller or larger."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How the data of a run looked."""

    modalities: Mapping[str, ModalityProfile] = field(default_factory=dict)
    confidence: Spread | None = None
    """Of the answers to the split that the weights were chosen on, as the model gives them by itself."""


def profile_of(data: DataSet) -> Profile:
    """The profile of a data set before it is encoded."""
    train, dev = (list(spread_out(data.splits.get(name, ()))) for name in ("train", "dev"))
    return Profile(modalities={name: _modality(name, train, dev) for name in data.modalities})


def _modality(name: str, train: Sequence[Example], dev: Sequence[Example]) -> ModalityProfile:
    texts, numbers = texts_of(train, name), numbers_of(train, name)
    words = known_words(texts) if texts else None
    low = high = outside = None
    if numbers is not None:
        low, high = numbers.min(0), numbers.max(0)
        outside = outside_of(dev, name, low, high)
    return ModalityProfile(
        missing=missing_of(train, name),
        words=words,
        unknown=None if words is None else unknown_of(texts_of(dev, name), words),
        side=sides_of(train, name),
        columns=() if numbers is None else columns_of(numbers),
        low=() if low is None else tuple(low.tolist()),
        high=() if high is None else tuple(high.tolist()),
        outside=outside,
    )


def spread_out(split: Split) -> Iterator[Example]:
    """At most ROWS examples, from all over the split, as plain as they come."""
    step = max(1, math.ceil(len(split) / ROWS))
    some = split[::step]
    return some.plain() if isinstance(some, Rows) else iter(some)


# -- what is counted, in training and later ----------------------------------------------------------------------------


def missing_of(examples: Sequence[Example], name: str) -> Spread | None:
    return Spread.of([name not in example.content for example in examples])


def texts_of(examples: Iterable[Example], name: str) -> list[str]:
    """The texts of a modality; the choices of one example are one text."""
    found = [example.content.get(name) for example in examples]
    several = [each if isinstance(each, tuple) else (each,) for each in found]
    return [" ".join(map(str, each)) for each in several if each and all(isinstance(text, str) for text in each)]


def known_words(texts: Iterable[str]) -> str:
    """The hashes of the most frequent words, as they are kept."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    hashes = sorted(_hash(word) for word, _ in counts.most_common(WORDS))
    return base64.b64encode(np.array(hashes, dtype="<u4").tobytes()).decode()


def unknown_of(texts: Iterable[str], words: str) -> Spread | None:
    """The share of each text's words that are none of these; texts without a word do not count."""
    known = set(np.frombuffer(base64.b64decode(words), dtype="<u4").tolist())
    found = [WORD.findall(text.lower()) for text in texts]
    return Spread.of([sum(_hash(word) not in known for word in each) / len(each) for each in found if each])


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(errors="replace"), digest_size=4).digest(), "little")


def sides_of(examples: Sequence[Example], name: str) -> Spread | None:
    """Of at most PICTURES pictures, by their heads; those that cannot be read are left to whoever decodes them."""
    pictures = [found for each in examples if isinstance(found := each.content.get(name), PictureFile | PictureBytes)]
    sides = []
    for picture in pictures[:: max(1, math.ceil(len(pictures) / PICTURES))]:
        try:
            sides.append(math.log2(max(1, min(picture.size()))))
        except DataError:
            continue
    return Spread.of(sides)


def numbers_of(examples: Iterable[Example], name: str) -> np.ndarray[Any, Any] | None:
    """Rows of numbers; None where there are none, or they are tokens or too many."""
    found = [np.asarray(x) for each in examples if (x := each.content.get(name)) is not None and hasattr(x, "shape")]
    vectors = [x for x in found if x.ndim == 1 and 0 < len(x) <= COLUMNS]
    return np.stack(vectors).astype(np.float64) if vectors and len(vectors) == len(found) else None


def columns_of(numbers: np.ndarray[Any, Any]) -> tuple[Spread, ...]:
    return tuple(
        Spread(count=len(numbers), mean=mean, std=std)
        for mean, std in zip(numbers.mean(0).tolist(), numbers.std(0).tolist(), strict=True)
    )


def outside_of(examples: Iterable[Example], name: str, low: Any, high: Any) -> Spread | None:
    """The share of each row's numbers that lie outside of these bounds."""
    numbers = numbers_of(examples, name)
    if numbers is None or numbers.shape[1] != len(low):
        return None
    return Spread.of(((numbers < np.asarray(low)) | (numbers > np.asarray(high))).mean(1).tolist())


def confidence_of(logits: Sequence[Tensor], head: str) -> Spread | None:
    """Of the model's answers by themselves, whatever is calibrated; None for numbers and for answers per token."""
    if head in ("score", "tokens") or not len(logits) or len({x.shape for x in logits}) != 1:
        return None
    import torch

    from meq.analysis.walk import answer as read_answer

    found = read_answer(torch.stack(list(logits)), head)[1]
    return Spread.of(found[found.isfinite()].tolist())
