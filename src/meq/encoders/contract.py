"""What an encoder is, and how a data set of pictures and texts becomes one of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from meq.core.options import nearest
from meq.data.content import Content, fingerprint_of
from meq.data.contract import DataSet, Example, Rows, Split, features


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """What an encoder makes of one picture or text, and where in the original each token lies."""

    features: Float[Tensor, "N W"]
    boxes: Float[Tensor, "N 4"] | None = None
    """Left, top, right, bottom in pixels of the original picture; NaN for a token without a place."""
    spans: Int[Tensor, "N 2"] | None = None
    """First and past-the-last character of the text; -1, -1 for a token without a place."""


class Encoder(ABC):
    """Pictures or texts in, tokens out; it never learns."""

    name: str
    kind: str
    """What it reads: image, regions or text."""
    width: int

    @abstractmethod
    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        """Tokens of each content; the result does not depend on what else is in the list."""


def encode(data: DataSet, encoders: Mapping[str, Encoder]) -> DataSet:
    """The same data set with features instead of pictures and texts, one encoder per modality that needs one.

    Each distinct content is encoded once, here, and kept in memory.
    """
    _check_encoders(data, encoders)
    known: dict[tuple[str, bytes], Tensor] = {}
    splits = {name: _encode_split(split, encoders, known) for name, split in data.splits.items()}
    modalities = {
        name: features(encoders[name].width) if name in encoders else modality
        for name, modality in data.modalities.items()
    }
    used = {name: encoder.name for name, encoder in encoders.items()}
    return replace(data, splits=splits, modalities=modalities, facts={**data.facts, "encoders": used})


def _encode_split(split: Split, encoders: Mapping[str, Encoder], known: dict[tuple[str, bytes], Tensor]) -> Split:
    rows = []
    for example in split:
        keys = {
            name: _encode_content(name, example.content[name], encoders[name], known)
            for name in encoders
            if name in example.content
        }
        rows.append((example, keys))

    def make(row: tuple[Example, dict[str, list[tuple[str, bytes]]]]) -> Example:
        example, keys = row
        made = {
            name: tuple(known[key] for key in several)
            if isinstance(example.content[name], tuple)
            else known[several[0]]
            for name, several in keys.items()
        }
        return replace(example, content={**example.content, **made})

    return Rows(rows, make)


def _encode_content(
    name: str, content: Content, encoder: Encoder, known: dict[tuple[str, bytes], Tensor]
) -> list[tuple[str, bytes]]:
    """The keys under which the content's features are known from now on, one per choice."""
    keys = []
    for each in content if isinstance(content, tuple) else (content,):
        key = (name, fingerprint_of(each))
        if key not in known:
            known[key] = encoder([each])[0].features
        keys.append(key)
    return keys


def _check_encoders(data: DataSet, encoders: Mapping[str, Encoder]) -> None:
    for name, encoder in encoders.items():
        if name not in data.modalities:
            raise ValueError(f"{data.name} has no modality {name!r} to encode: {nearest(name, data.modalities)}")
        if data.modalities[name].kind != encoder.kind:
            kind = data.modalities[name].kind
            raise ValueError(
                f"{data.name}: {name!r} is of kind {kind!r}, the encoder {encoder.name!r} reads {encoder.kind}"
            )
    missing = [name for name, modality in data.modalities.items() if modality.width is None and name not in encoders]
    if missing:
        raise ValueError(f"{data.name}: no encoder was given for {', '.join(map(repr, missing))}")
