"""Examples with features in place of pictures and texts, read when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from meq.data.contract import Example, Split, stamp_of
from meq.encoders.contract import Tokens
from meq.encoders.shards import Identity, Kept, as_kept
from meq.encoders.survey import Keys

KEPT_EXAMPLES, KEPT_NUMBERS = 50_000, 64
"""Splits up to this size, with targets up to this size, are kept in memory but for their features."""


class Source(Protocol):
    """Where features are read from: a store, or memory."""

    identity: Identity

    def place(self, key: bytes) -> int: ...
    def key(self, place: int) -> bytes: ...
    def cut(self, place: int) -> bool: ...
    def read(self, place: int) -> Tensor: ...
    def tokens(self, place: int) -> Tokens: ...


class Memory:
    """Features that are kept for as long as the process runs."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._places: dict[bytes, int] = {}
        self._kept: list[tuple[bytes, Kept]] = []

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def add(self, key: bytes, tokens: Tokens, *, cut: bool) -> None:
        self._places[key] = len(self._kept)
        self._kept.append((key, as_kept(tokens, self.identity, cut=cut)))

    def flush(self) -> None:
        """Nothing is waiting."""

    def place(self, key: bytes) -> int:
        return self._places[key]

    def key(self, place: int) -> bytes:
        return self._kept[place][0]

    def cut(self, place: int) -> bool:
        return self._kept[place][1].cut

    def read(self, place: int) -> Tensor:
        return self._kept[place][1].features

    def tokens(self, place: int) -> Tokens:
        return self._kept[place][1].tokens()


Places = int | tuple[int, ...] | None
"""Where the features of one modality are, or those of each choice; None where the example lacks the modality."""


class EncodedRow(NamedTuple):
    """What is kept of an example: its place in the split it came from, and the places of its features."""

    place: int
    features: tuple[Places, ...]


def places_of(source: Source, keys: Keys) -> Places:
    if keys is None:
        return None
    return tuple(map(source.place, keys)) if isinstance(keys, tuple) else source.place(keys)


def each_place(places: Places) -> tuple[int, ...]:
    return () if places is None else places if isinstance(places, tuple) else (places,)


class ExampleMaker:
    """From a row to its example, with features in place of what was encoded."""

    def __init__(self, split: Split, sources: Mapping[str, Source]) -> None:
        self.split, self.sources = split, sources
        self.kept: dict[int, Example] = {}

    def __call__(self, row: EncodedRow) -> Example:
        rest, content = self._rest(row.place), {}
        for name, source, places in self._features(row):
            content[name] = tuple(map(source.read, places)) if isinstance(places, tuple) else source.read(places)
        facts = {**rest.facts, "tokens": partial(self.tokens, row)}
        return Example(id=rest.id, content={**rest.content, **content}, target=rest.target, facts=facts)

    def tokens(self, row: EncodedRow) -> dict[str, tuple[Tokens, ...]]:
        """By modality, one per choice: features, and where in the original each token lies."""
        return {name: tuple(map(source.tokens, each_place(places))) for name, source, places in self._features(row)}

    def stamp(self, row: EncodedRow) -> bytes:
        """Features are known by what was encoded and by which encoder: no need to read them."""
        known = {}
        for name, source, places in self._features(row):
            keys = b"".join(map(source.key, each_place(places)))
            known[name] = hashlib.sha256(source.identity.digest.encode() + keys).digest()
        return stamp_of(self._rest(row.place), known)

    def _features(self, row: EncodedRow) -> Iterator[tuple[str, Source, int | tuple[int, ...]]]:
        for (name, source), places in zip(self.sources.items(), row.features, strict=True):
            if places is not None:
                yield name, source, places

    def _rest(self, place: int) -> Example:
        """The example without what was encoded; kept where it is small, since making it can cost more than reading."""
        if place in self.kept:
            return self.kept[place]
        example = self.split[place]
        rest = {name: content for name, content in example.content.items() if name not in self.sources}
        example = replace(example, content=rest)
        small = not rest and (example.target is None or example.target.numel() <= KEPT_NUMBERS)
        if small and len(self.split) <= KEPT_EXAMPLES:
            self.kept[place] = example
        return example
