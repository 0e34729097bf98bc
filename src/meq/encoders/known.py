"""An encoder that encodes only what nobody has encoded yet: the rest is read from a feature store, or remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from meq.data.content import Content, fingerprint_of
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.store import Features, FeatureStore, Identity

REMEMBERED = 64
"""Contents, the latest ones: two batches, so that what is asked for again at once is not encoded again."""


class KnownEncoder(Encoder):
    """Reads as another encoder does, which is loaded when there is something that neither store nor memory has.

    Contents are known by their fingerprints and features by the encoder's identity, so what is read is what encoding
    would have given. Nothing is written to the store.
    """

    def __init__(
        self,
        identity: Identity,
        load: Callable[[], Encoder],
        *,
        store: FeatureStore | None = None,
        remember: int = REMEMBERED,
    ) -> None:
        self.name, self.revision, self.weight_hash = identity.name, identity.revision, identity.weight_hash
        self.kind, self.width, self.truncated = identity.kind, identity.width, 0
        self.identity, self.store, self.remember, self._load = identity, store, remember, load
        self._remembered: OrderedDict[bytes, tuple[Tokens, bool]] = OrderedDict()

    @cached_property
    def loaded(self) -> Encoder:
        """The encoder itself."""
        return self._load()

    @cached_property
    def _kept(self) -> Features | None:
        return None if self.store is None else Features(self.store.folder, self.identity)

    @property
    def spec(self) -> dict[str, Any]:
        return self.loaded.spec

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        keys = [fingerprint_of(content) for content in contents]
        found = {key: known for key in keys if (known := self._known(key)) is not None}
        missing = {key: content for key, content in zip(keys, contents, strict=True) if key not in found}
        new = self._encoded(missing) if missing else {}
        found |= new
        self._remembered |= new
        while len(self._remembered) > self.remember:
            self._remembered.popitem(last=False)
        self.truncated += sum(found[key][1] for key in keys)
        return [found[key][0] for key in keys]

    def _known(self, key: bytes) -> tuple[Tokens, bool] | None:
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        if self._kept is None or not self._kept.is_sound(key):
            return None
        place = self._kept.place(key)
        return self._kept.tokens(place), self._kept.cut(place)

    def _encoded(self, contents: Mapping[bytes, Content]) -> dict[bytes, tuple[Tokens, bool]]:
        """An encoder only counts what it cuts: where that was some and not all, each is encoded alone to see."""
        before = self.loaded.truncated
        tokens = self.loaded(list(contents.values()))
        cut = self.loaded.truncated - before
        if 0 < cut < len(contents):
            return {key: self._encoded({key: content})[key] for key, content in contents.items()}
        return {key: (each, cut > 0) for key, each in zip(contents, tokens, strict=True)}
