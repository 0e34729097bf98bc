"""Filling a feature store: shard by shard, each whole or not at all, the manifest last.

A process may be killed at any moment, and the disk may be full: what was written stays, and the next encoding goes on
from there. One launch at a time writes to a store; others are refused, and may read meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meq.encoders.contract import Tokens
from meq.encoders.processes import Share
from meq.encoders.store import (
    DTYPES,
    ENCODER,
    MANIFEST,
    DamagedError,
    Features,
    FeatureStore,
    Identity,
    StoreError,
    hash_matches,
    pack,
    shard_files,
    stored_form,
)
from meq.records import BusyError, alone, free_bytes, in_bytes, is_full, room_in_words, write_bytes

FORGOTTEN_SECONDS = 3600.0
"""Where there are no locks: a half-written file that nobody has touched for so long is what a killed process left."""


class ShardWriter:
    """Tokens in, shards out; `features` knows of every shard as soon as it is written."""

    def __init__(self, features: Features, store: FeatureStore) -> None:
        self.features, self.store = features, store
        self.pending: dict[bytes, tuple[Tokens, bool]] = {}
        self.bytes, self.since = 0, time.monotonic()
        if not (_make_folder(features.folder) / ENCODER).exists():
            self._write(ENCODER, _json(asdict(self.identity)))

    @property
    def identity(self) -> Identity:
        return self.features.identity

    def __contains__(self, key: bytes) -> bool:
        return key in self.features or key in self.pending

    def add(self, key: bytes, tokens: Tokens, *, cut: bool) -> None:
        if not self.pending:
            self.since = time.monotonic()
        stored = stored_form(tokens, self.identity)
        self.pending[key] = stored, cut
        self.bytes += stored.features.nbytes
        if self.bytes >= self.store.shard_bytes or time.monotonic() - self.since >= self.store.shard_seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is pending, and take in what others have written meanwhile."""
        if self.pending:
            content = pack([(key, *stored) for key, stored in self.pending.items()], self.identity)
            self._write(f"{hashlib.sha256(content).hexdigest()}.safetensors", content)
            self.pending, self.bytes = {}, 0
        self.features.refresh()

    def finish(self) -> None:
        """Write the manifest, what is there now, unless it says so already."""
        content, path = _manifest_of(self.features), self.features.folder / MANIFEST
        if not path.is_file() or path.read_bytes() != content:
            self._write(MANIFEST, content)

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
    expected = {ENCODER: _json(asdict(identity))}
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


def refuse_too_little_room(kept: Features, new: int) -> None:
    """An error, before anything is encoded, if so many new contents cannot fit on the disk.

    As large as those that are kept already; where there are none, as small as can be: one token each.
    """
    least = kept.identity.width * DTYPES[kept.identity.dtype].itemsize
    mean = sum(shard.size for shard in kept.shards.values()) / len(kept) if len(kept) else least
    needed, free = new * max(mean, least), free_bytes(kept.folder)
    if needed > free:
        raise StoreError(
            f"{kept.folder}: {new:,} contents take at least {in_bytes(needed)}, and {in_bytes(free)} are free on its "
            "disk: make room, or choose another place for the store"
        )


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
                held = stack.enter_context(alone(_make_folder(store.folder), busy(store.folder)))
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


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error}. The store needs a folder that can be written") from error
    return folder


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
