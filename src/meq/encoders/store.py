"""The feature store: frozen features, computed once and read many times.

    store/
      words-64-v1-float16-52b1.../      one folder per encoder: name, revision, weights, width, number format
        encoder.json                    which encoder that is, in words
        3f9a....safetensors             shards, each with its own index (`shards`)
        manifest.json                   written last: what was there when an encoding ended

Contents are known by their fingerprint. The shards in the folder are the truth, and the index is made from them when it
is opened: whoever adds a shard does so by one rename, and whoever reads needs no lock. One launch at a time writes to a
store (`writing.filling`); another one is refused. Everything is JSON or safetensors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from meq.core.options import nearest
from meq.data.strict_json import parse_json
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.shards import DTYPES, SHARD_NAME, DamagedError, Identity, Shard, StoreError, hash_matches

MANIFEST, ENCODER = "manifest.json", "encoder.json"
OnDamage = Literal["encode", "raise"]


@dataclass(frozen=True, kw_only=True)
class FeatureStore:
    """A folder of features, and how to write to it."""

    folder: Path
    dtype: str = "float16"
    """float16, bfloat16 or float32."""
    on_damage: OnDamage = "encode"
    """What encoding does about a shard that is damaged or gone: encode its contents again, or raise."""
    verify: bool = False
    """Hash every shard before encoding. Without it damage is found when the content that it hit is first read."""
    shard_bytes: int = 64 * 2**20
    shard_seconds: float = 60.0
    """A shard is written when it has this size, or took this long: at most that much is lost by a kill."""

    def __post_init__(self) -> None:
        for value, known, what in (
            (self.dtype, DTYPES, "keep features as"),
            (self.on_damage, ("encode", "raise"), "answer damage with"),
        ):
            if value not in known:
                raise ValueError(f"a feature store cannot {what} {value!r}: {nearest(value, known)}")
        if self.shard_bytes < 1 or self.shard_seconds <= 0:
            raise ValueError("shard_bytes and shard_seconds must be positive")

    @classmethod
    def at(cls, place: FeatureStore | Path | str) -> FeatureStore:
        return place if isinstance(place, FeatureStore) else cls(folder=Path(place))

    def features(self, encoder: Encoder) -> Features:
        """What is there of this encoder, ready to be read."""
        return Features(self.folder, Identity.of(encoder, self.dtype))

    def damaged(self) -> list[Path]:
        """Shards, of all encoders, whose bytes are not those that were written: the whole store is read for it."""
        folders = sorted(path for path in self.folder.iterdir() if path.is_dir()) if self.folder.is_dir() else []
        return [path for folder in folders for path in shard_files(folder) if not hash_matches(path)]


class Features:
    """The features of one encoder: an index over its shards. A place, once given, stays."""

    def __init__(self, store: Path, identity: Identity) -> None:
        self.identity, self.folder = identity, store / identity.folder
        self.shards: dict[str, Shard] = {}
        self.damaged: dict[Path, str] = {}
        """Shards that cannot be used, and why; their contents count as not there."""
        self._places: dict[bytes, int] = {}
        self._rows: list[tuple[Shard, int]] = []
        self.refresh()

    def refresh(self) -> None:
        """Take in the shards that were added since, by this process or by another."""
        for path in shard_files(self.folder):
            if path.name not in self.shards and path not in self.damaged:
                try:
                    self._take_in(Shard(path, self.identity))
                except FileNotFoundError:  # another process found it damaged and removed it
                    continue
                except DamagedError as error:
                    self.damaged[path] = str(error)

    def _take_in(self, shard: Shard) -> None:
        self.shards[shard.path.name] = shard
        for row, key in enumerate(shard.keys):
            if self._places.setdefault(key, len(self._rows)) == len(self._rows):
                self._rows.append((shard, row))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def place(self, key: bytes) -> int:
        """Where a content's features are; a number to keep instead of the key."""
        try:
            return self._places[key]
        except KeyError:
            raise StoreError(f"{self.folder} holds nothing of the content {key.hex()}: encode it first") from None

    def key(self, place: int) -> bytes:
        shard, row = self._rows[place]
        return shard.keys[row]

    def cut(self, place: int) -> bool:
        """Whether the content was longer than the encoder reads."""
        shard, row = self._rows[place]
        return shard.cut[row]

    def read(self, place: int) -> Float[Tensor, "N W"]:
        shard, row = self._rows[place]
        return shard.features(row)

    def tokens(self, place: int) -> Tokens:
        """Features, and where in the original each token lies."""
        shard, row = self._rows[place]
        return shard.tokens(row)

    def lost(self) -> list[str]:
        """Shards that the manifest names and that are no longer there."""
        manifest = read_manifest(self.folder)
        return sorted(set(manifest.get("shards", {})) - set(self.shards) - {path.name for path in self.damaged})

    def as_listed(self) -> bool:
        """Whether the manifest lists the shards that are there, no more and no fewer."""
        try:
            return set(read_manifest(self.folder).get("shards", {})) == set(self.shards)
        except DamagedError:
            return False


def shard_files(folder: Path) -> list[Path]:
    """The files in the folder that are named as shards are; a link that leads out of it is refused."""
    try:
        names = sorted(name for name in os.listdir(folder) if SHARD_NAME.fullmatch(name))
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise StoreError(
            f"{folder.parent} is not a folder; a feature store needs one, or a name that is free"
        ) from error
    home = folder.resolve()
    for name in names:
        if (folder / name).is_symlink() and (folder / name).resolve().parent != home:
            raise StoreError(f"{folder / name} leads out of the store, and is not followed")
    return [folder / name for name in names]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the last encoding that ended left; empty before the first one has. Names that no shard has are refused."""
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise DamagedError(f"{path} is damaged: {error}. Delete it; the next encoding writes it anew") from error
    shards = manifest.get("shards") if isinstance(manifest, dict) else None
    if not isinstance(shards, dict) or not all(SHARD_NAME.fullmatch(name) for name in shards):
        raise DamagedError(f"{path} is damaged: no list of shards. Delete it; the next encoding writes it anew")
    return manifest
