"""The feature store: frozen features, computed once and read many times.

    store/
      words-64-v1-float16-52b1.../      one folder per encoder: name, revision, weights, width, number format
        encoder.json                    which encoder that is, in words
        3f9a....safetensors             shards
        manifest.json                   written last: what was there when an encoding ended

A shard is a safetensors file with its own index. Tensors, T tokens of n contents: `features` (T W), where the encoder
gives them `boxes` (T 4), `spans` (T 2) and `times` (T 2), and per content `keys` (n 32), `ends` (n), `cut` (n) and
`checksums` (n). A shard is named after the SHA-256 of its bytes and never changed: writing the same one twice is
harmless, and a file that does not match its name is damaged.

Contents are known by their fingerprint. The shards in the folder are the truth, and the index is made from them when it
is opened: whoever adds a shard does so by one rename, and whoever reads needs no lock. One launch at a time writes to a
store (`writing.filling`); another one is refused. Everything is JSON or safetensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from meq.encoders.contract import Encoder, Tokens
from meq.options import nearest
from meq.records import parse_json, sha256

FORMAT = "1"
"""Part of a folder's name: what another version of meq wrote otherwise is left alone."""
MANIFEST, ENCODER = "manifest.json", "encoder.json"
SHARD_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
PLACES = {"boxes": (4, torch.float32), "spans": (2, torch.int64), "times": (2, torch.float32)}
"""Where tokens lie in the original: numbers per token, and how they are stored."""
NOWHERE = {"boxes": torch.nan, "spans": -1, "times": torch.nan}
"""Stands for the place of a token that has none, where others in the shard have one."""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
KEY_BYTES = 32
OnDamage = Literal["encode", "raise"]


class StoreError(OSError):
    """The store cannot be read or written; the message says which file, why, and what to do."""


class DamagedError(StoreError):
    """A file of the store does not hold what was written to it."""


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
    read_only: ClassVar[bool] = False

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


class ReadOnlyStore(FeatureStore):
    """Nothing is written: what is not there, or is damaged, is encoded and kept in memory. Nobody is ever refused."""

    read_only: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which features these are: the encoder in every respect that decides them, and the format of the numbers."""

    name: str
    revision: str
    weight_hash: str
    kind: str
    width: int
    dtype: str

    @classmethod
    def of(cls, encoder: Encoder, dtype: str) -> Identity:
        parts = ("name", "revision", "weight_hash", "kind", "width")
        return cls(**{part: getattr(encoder, part) for part in parts}, dtype=dtype)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps({**asdict(self), "format": FORMAT}, sort_keys=True).encode()).hexdigest()

    @property
    def folder(self) -> str:
        """A name that says what is inside and cannot lead anywhere else."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")[:60]
        return f"{readable}-{self.dtype}-{self.digest[:16]}"


def stored_form(tokens: Tokens, identity: Identity) -> Tokens:
    """The tokens with the number formats of a shard, on the CPU; what a shard cannot hold is an error."""
    x = tokens.features.detach().cpu()
    if x.shape[-1] != identity.width:
        raise StoreError(f"{identity.name} says that it is {identity.width} wide, and gave {x.shape[-1]} numbers")
    features = x.to(DTYPES[identity.dtype])
    if not bool(features.isfinite().all()):
        largest = f"{float(x.abs().max()):.3g}"
        raise StoreError(
            f"{identity.name} gave a feature of {largest}, which {identity.dtype} cannot hold: use bfloat16"
        )
    given = {name: getattr(tokens, name) for name in PLACES}
    places = {name: None if x is None else x.detach().cpu().to(PLACES[name][1]) for name, x in given.items()}
    return Tokens(features=features, **places)


# -- reading -----------------------------------------------------------------------------------------------------------


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
            if path.name in self.shards or path in self.damaged:
                continue
            try:
                shard = Shard(path, self.identity)
            except FileNotFoundError:  # another process found it damaged and removed it
                continue
            except DamagedError as error:
                self.damaged[path] = str(error)
                continue
            self.shards[path.name] = shard
            for row, key in enumerate(shard.keys):
                if key not in self._places:  # two processes may have written the same content
                    self._places[key] = len(self._rows)
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

    def length(self, place: int) -> int:
        """How many tokens; known from the index, without reading them."""
        shard, row = self._rows[place]
        return shard.bounds[row + 1] - shard.bounds[row]

    def read(self, place: int) -> Float[Tensor, "N W"]:
        shard, row = self._rows[place]
        return shard.features(row)

    def tokens(self, place: int) -> Tokens:
        """Features, and where in the original each token lies."""
        shard, row = self._rows[place]
        return shard.tokens(row)

    def is_sound(self, key: bytes) -> bool:
        """Whether the content is there, as it was written; it is read for that."""
        if key not in self._places:
            return False
        shard, row = self._rows[self._places[key]]
        return shard.is_sound(row)

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


class Memory:
    """Features that are kept for as long as the process runs; read like `Features`, filled like a `ShardWriter`."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._places: dict[bytes, int] = {}
        self._rows: list[tuple[bytes, Tokens, bool]] = []

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def add(self, key: bytes, tokens: Tokens, *, cut: bool) -> None:
        self._places[key] = len(self._rows)
        self._rows.append((key, stored_form(tokens, self.identity), cut))

    def flush(self) -> None:
        """Nothing is waiting."""

    def place(self, key: bytes) -> int:
        return self._places[key]

    def key(self, place: int) -> bytes:
        return self._rows[place][0]

    def cut(self, place: int) -> bool:
        return self._rows[place][2]

    def length(self, place: int) -> int:
        return len(self._rows[place][1].features)

    def read(self, place: int) -> Float[Tensor, "N W"]:
        return self._rows[place][1].features.float()

    def tokens(self, place: int) -> Tokens:
        found = self._rows[place][1]
        return replace(found, features=found.features.float())


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


def hash_matches(path: Path) -> bool:
    """Whether the file's bytes are those that it was named after."""
    return sha256(path) == path.stem


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


# -- one shard ---------------------------------------------------------------------------------------------------------


class Shard:
    """A shard that is mapped into memory; a content is checked when it is first read."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path, self.size = path, path.stat().st_size
        if self.size == 0:
            raise DamagedError(f"{path} is damaged: it is empty")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                self.tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise DamagedError(f"{path} is damaged: {error}") from error
        except FileNotFoundError:
            raise
        except OSError as error:  # no damage: a file that may not be read must not be taken for one to be replaced
            raise StoreError(f"{path} cannot be read: {error}") from error
        if metadata != _metadata(identity):
            raise DamagedError(f"{path} is damaged, or not a shard of {identity.name} in format {FORMAT}")
        self._check_shapes(identity)
        self.keys = [bytes(row) for row in self.tensors["keys"].numpy()]
        self.bounds: list[int] = [0, *self.tensors["ends"].tolist()]
        self.cut: list[bool] = self.tensors["cut"].tolist()
        self.sums: list[int] = self.tensors["checksums"].tolist()
        self.sound = bytearray(len(self.keys))
        """Which contents were checked since the shard was opened."""

    def __len__(self) -> int:
        return len(self.keys)

    def features(self, row: int) -> Float[Tensor, "N W"]:
        """A copy, in float32."""
        start, end = self._checked(row)
        return self.tensors["features"][start:end].to(torch.float32, copy=True)

    def tokens(self, row: int) -> Tokens:
        start, end = self._checked(row)
        places = {name: self.tensors[name][start:end].clone() for name in PLACES if name in self.tensors}
        return Tokens(features=self.features(row), **places)

    def is_sound(self, row: int) -> bool:
        """Whether the content matches its checksum; it is looked at once."""
        if not self.sound[row]:
            start, end = self.bounds[row], self.bounds[row + 1]
            self.sound[row] = _checksum(self.keys[row], self.cut[row], self.tensors, start, end) == self.sums[row]
        return bool(self.sound[row])

    def _checked(self, row: int) -> tuple[int, int]:
        if not self.is_sound(row):
            raise DamagedError(
                f"{self.path} is damaged: content {row} of {len(self)} does not match its checksum. Encode again "
                "with FeatureStore(..., verify=True), or meq encode --verify, to replace what is damaged"
            )
        return self.bounds[row], self.bounds[row + 1]

    def _check_shapes(self, identity: Identity) -> None:
        """Whatever the header says, nothing outside of the tensors is ever read."""
        found = {name: (tuple(x.shape), x.dtype) for name, x in self.tensors.items()}
        tokens, count = (found[name][0][:1] if name in found else (0,) for name in ("features", "ends"))
        tables = {
            "features": ((*tokens, identity.width), DTYPES[identity.dtype]),
            "keys": ((*count, KEY_BYTES), torch.uint8),
            "ends": (count, torch.int64),
            "cut": (count, torch.bool),
            "checksums": (count, torch.int64),
        }
        places = {name: ((*tokens, width), dtype) for name, (width, dtype) in PLACES.items() if name in found}
        fits = found == tables | places and len(self.tensors["ends"]) > 0
        if fits:
            ends = self.tensors["ends"].numpy()
            fits = bool((np.diff(ends, prepend=0) >= 0).all()) and (int(ends[-1]),) == tokens
        if not fits:
            raise DamagedError(f"{self.path} is damaged: its tensors do not fit together")


def pack(contents: Sequence[tuple[bytes, Tokens, bool]], identity: Identity) -> bytes:
    """The bytes of a shard: of each content its key, its tokens in `stored_form`, and whether it was cut."""
    keys, parts, cut = zip(*contents, strict=True)
    tensors = {"features": torch.cat([part.features for part in parts])}
    for name, (width, _) in PLACES.items():
        places = [getattr(part, name) for part in parts]
        if any(each is not None for each in places):
            nowhere = (torch.full((len(part.features), width), NOWHERE[name]) for part in parts)
            tensors[name] = torch.cat([none if x is None else x for x, none in zip(places, nowhere, strict=True)])
    ends = torch.tensor([len(part.features) for part in parts]).cumsum(0)
    bounds = zip([0, *ends.tolist()], ends.tolist(), strict=False)
    sums = [_checksum(key, was, tensors, *bound) for key, was, bound in zip(keys, cut, bounds, strict=True)]
    tensors["keys"] = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).reshape(-1, KEY_BYTES)
    tensors |= {"ends": ends, "cut": torch.tensor(cut), "checksums": torch.tensor(sums)}
    return save(tensors, _metadata(identity))


def _metadata(identity: Identity) -> dict[str, str]:
    """One entry only: safetensors writes several in any order, and the same content would have several names."""
    return {"meq features": f"format {FORMAT}, encoder {identity.digest}"}


def _checksum(key: bytes, cut: bool, tensors: dict[str, Tensor], start: int, end: int) -> int:
    """CRC-32 of all that is stored of a content, its key included: a changed index cannot pass off one for another."""
    value = zlib.crc32(bytes([cut]), zlib.crc32(key))
    for name in ("features", *PLACES):
        if name in tensors and end > start:
            value = zlib.crc32(tensors[name][start:end].view(torch.uint8).numpy().data, value)
    return value
