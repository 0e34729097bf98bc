"""Filling a feature store: shard by shard, each whole or not at all, the manifest last.

A process may be killed at any moment, and the disk may be full: what was written stays, and the next encoding goes on
from there. One launch at a time writes to a store; others are refused, and may read meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from meq.data.content import Content, Picture, Regions, SoundFile
from meq.data.findings import DataError, Finding
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.processes import Share
from meq.encoders.shards import DamagedError, Identity, Kept, StoreError, as_kept, hash_matches, pack
from meq.encoders.store import ENCODER, MANIFEST, Features, FeatureStore, shard_files
from meq.files import BusyError, alone, is_full, room_in_words, write_bytes

BATCH = 32
"""Contents that are given to an encoder at once."""
FORGOTTEN_SECONDS = 3600.0
"""Where there are no locks: a half-written file that nobody has touched for so long is what a killed process left."""

Bad = Callable[[bytes, Finding], None]
"""Told of a content that cannot be encoded, by its key; may raise."""
Done = Callable[[int], None]
"""Told how many more contents are dealt with."""


class Sink(Protocol):
    """Where tokens go: a store, or memory."""

    def __contains__(self, key: bytes) -> bool: ...
    def add(self, key: bytes, tokens: Tokens, *, cut: bool) -> None: ...
    def flush(self) -> None: ...


class ShardWriter:
    """Tokens in, shards out; `features` knows of every shard as soon as it is written."""

    def __init__(self, features: Features, store: FeatureStore) -> None:
        self.features, self.store = features, store
        self.pending: dict[bytes, Kept] = {}
        self.bytes, self.since = 0, time.monotonic()
        self._begin()

    @property
    def identity(self) -> Identity:
        return self.features.identity

    def __contains__(self, key: bytes) -> bool:
        return key in self.features or key in self.pending

    def add(self, key: bytes, tokens: Tokens, *, cut: bool) -> None:
        if not self.pending:
            self.since = time.monotonic()
        kept = as_kept(tokens, self.identity, cut=cut)
        self.pending[key] = kept
        self.bytes += kept.features.nbytes
        if self.bytes >= self.store.shard_bytes or time.monotonic() - self.since >= self.store.shard_seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is pending, and take in what others have written meanwhile."""
        if self.pending:
            content = pack(list(self.pending.items()), self.identity)
            self._write(f"{hashlib.sha256(content).hexdigest()}.safetensors", content)
            self.pending, self.bytes = {}, 0
        self.features.refresh()

    def finish(self) -> None:
        """Write the manifest, what is there now, unless it says so already."""
        content, path = _manifest_of(self.features), self.features.folder / MANIFEST
        if not path.is_file() or path.read_bytes() != content:
            self._write(MANIFEST, content)

    def _begin(self) -> None:
        folder = _made(self.features.folder)
        if not (folder / ENCODER).exists():
            self._write(ENCODER, _encoder_of(self.identity))

    def _write(self, name: str, content: bytes) -> None:
        path = self.features.folder / name
        try:
            write_bytes(path, content)
        except OSError as error:
            size = f"{len(content) / 2**20:.1f} MB"
            why = room_in_words(path) if is_full(error) else error.strerror or error
            raise StoreError(
                f"{path} ({size}) cannot be written: {why}. The {len(self.features.shards)} shards "
                "written before are whole and kept: make room, and encode again to go on from there"
            ) from error


def mend(store: FeatureStore, identity: Identity) -> list[str]:
    """See to damaged and lost shards before encoding: remove what is left of them, or raise. Returns what was wrong."""
    features = Features(store.folder, identity)
    damaged = dict(features.damaged)
    if store.verify:
        wrong = [path for path in shard_files(features.folder) if path not in damaged and not hash_matches(path)]
        damaged |= {path: f"{path} is damaged: its bytes do not have the hash that it is named after" for path in wrong}
    try:
        lost = [f"{features.folder / name} is gone" for name in features.lost()]
    except DamagedError as error:
        lost = []
        damaged[features.folder / MANIFEST] = str(error)
    expected = {ENCODER: _encoder_of(identity)}
    if not damaged and features.as_listed():  # else an encoding was killed before it had written the manifest
        expected[MANIFEST] = _manifest_of(features)
    for name, content in expected.items():
        path = features.folder / name
        if path not in damaged and path.is_file() and path.read_bytes() != content:
            damaged[path] = f"{path} is damaged: it does not say what the shards are"
    found = [*damaged.values(), *lost]
    if found and store.on_damage == "raise":
        raise DamagedError(f"{found[0]} ({len(found)} in all). To encode what is lost again: on_damage='encode'")
    for path in damaged:
        path.unlink(missing_ok=True)
    return found


def fill(
    sink: Sink, contents: Mapping[bytes, Callable[[], Content]], encoder: Encoder, *, bad: Bad, done: Done
) -> None:
    """Encode the contents that are not there yet, batch by batch; a content is made when its turn comes."""
    keys = list(contents)
    try:
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            missing = {key: contents[key]() for key in batch if key not in sink}
            for key, tokens, cut in encode_batch(encoder, missing, bad):
                sink.add(key, tokens, cut=cut)
            done(len(batch))
    except (DataError, KeyboardInterrupt):
        sink.flush()  # what was encoded until now need not be encoded again
        raise
    sink.flush()


def encode_batch(encoder: Encoder, contents: Mapping[bytes, Content], bad: Bad) -> Iterator[tuple[bytes, Tokens, bool]]:
    """Keys, tokens, and whether the content was cut. `bad` is told of contents that cannot be encoded.

    An encoder only counts what it cuts: where that was some of a batch and not all, each is encoded alone to see.
    """
    if not contents:
        return
    before = encoder.truncated
    try:
        encoded = encoder(list(contents.values()))
    except DataError as error:
        if len(contents) == 1:
            [(key, content)] = contents.items()
            bad(key, broken(content, str(error)))
        else:
            yield from _one_by_one(encoder, contents, bad)
        return
    cut = encoder.truncated - before
    if 0 < cut < len(contents):
        encoder.truncated = before  # they are counted again, one by one
        yield from _one_by_one(encoder, contents, bad)
        return
    if len(encoded) != len(contents):
        raise ValueError(f"{encoder.name} was given {len(contents)} contents and encoded {len(encoded)}")
    for (key, content), tokens in zip(contents.items(), encoded, strict=True):
        if bool(tokens.features.isfinite().all()):
            yield key, tokens, cut > 0
        else:
            message = f"{encoder.name} gave features that are not finite"
            bad(key, Finding(kind="not finite", message=message, file=name_of(content)))


def _one_by_one(encoder: Encoder, contents: Mapping[bytes, Content], bad: Bad) -> Iterator[tuple[bytes, Tokens, bool]]:
    for key, content in contents.items():
        yield from encode_batch(encoder, {key: content}, bad)


def broken(content: Content, message: str) -> Finding:
    """What is wrong with a content that could not be read."""
    name = name_of(content)
    kind = "broken picture" if isinstance(content, Picture | Regions) else "not encodable"
    if isinstance(content, SoundFile):
        kind = "broken sound"
    return Finding(kind=kind, message=message.removeprefix(f"{name}: "), file=name)


def name_of(content: Content) -> str:
    if isinstance(content, Regions):
        return str(content.picture)
    if isinstance(content, str):
        return f"the text {content[:60]!r}{'...' if len(content) > 60 else ''}"
    return str(content) if isinstance(content, Picture | SoundFile) else type(content).__name__


def clear_forgotten(folder: Path, *, held: bool) -> None:
    """Remove what killed processes left half-written: at once for who holds the store, else what is old enough."""
    for path in [*folder.glob(".writing-*"), *folder.glob(".*.writing")]:
        try:
            if held or time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            continue


@contextmanager
def filling(store: FeatureStore, share: Share) -> Iterator[None]:
    """The store, for one launch to write to: its first process holds it for all of them. A BusyError elsewhere."""
    with ExitStack() as stack:
        problem: str | None = None
        if share.first:
            try:
                held = stack.enter_context(alone(_made(store.folder), busy(store.folder)))
            except BusyError as error:
                problem = str(error)
            else:
                for folder in store.folder.iterdir():
                    clear_forgotten(folder, held=held)
        said = share.collect([problem])[0][0]
        if said is not None:
            raise BusyError(said)
        yield


def busy(folder: Path) -> str:
    return (
        f"another process is filling the feature store {folder}: wait until it has finished, and the same command goes "
        "on from what is there; or choose another store"
    )


def refuse_filling(store: FeatureStore) -> None:
    """A BusyError if another process is writing to the store: worth asking before data is read."""
    if store.folder.is_dir():
        with alone(store.folder, busy(store.folder)):
            pass


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error}. The store needs a folder that can be written") from error
    return folder


def _encoder_of(identity: Identity) -> bytes:
    return _json(asdict(identity))


def _manifest_of(features: Features) -> bytes:
    shards = {name: {"bytes": shard.size, "contents": len(shard)} for name, shard in sorted(features.shards.items())}
    return _json(
        {
            "encoder": asdict(features.identity),
            "contents": len(features),
            "truncated": sum(features.cut(place) for place in range(len(features))),
            "shards": shards,
        }
    )


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
