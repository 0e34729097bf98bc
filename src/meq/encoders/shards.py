"""One shard of a feature store: a safetensors file with its own index and checksums.

Tensors, T tokens of n contents: `features` (T W), where the encoder gives them `boxes` (T 4), `spans` (T 2) and `times`
(T 2), and per content `keys` (n 32), `ends` (n), `cut` (n), `checksums` (n). A shard is named after the SHA-256 of its
bytes and never changed: writing the same one twice is harmless, and a file that does not match its name is damaged.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from meq.core.options import nearest
from meq.encoders.contract import Encoder, Tokens

FORMAT = "1"
"""Part of a folder's name: what another version of meq wrote otherwise is left alone."""
SHARD_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
PLACES = {"boxes": (4, torch.float32), "spans": (2, torch.int64), "times": (2, torch.float32)}
"""Where tokens lie in the original: numbers per token, and how they are kept."""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
KEY_BYTES = 32


class StoreError(OSError):
    """The store cannot be read or written; the message says which file, why, and what to do."""


class DamagedError(StoreError):
    """A file of the store does not hold what was written to it."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which features these are: the encoder in every respect that decides them, and how they are kept."""

    name: str
    revision: str
    weight_hash: str
    kind: str
    width: int
    dtype: str

    @classmethod
    def of(cls, encoder: Encoder, dtype: str) -> Identity:
        if dtype not in DTYPES:
            raise ValueError(f"features cannot be kept as {dtype!r}: {nearest(dtype, DTYPES)}")
        return cls(
            name=encoder.name,
            revision=encoder.revision,
            weight_hash=encoder.weight_hash,
            kind=encoder.kind,
            width=encoder.width,
            dtype=dtype,
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps({**asdict(self), "format": FORMAT}, sort_keys=True).encode()).hexdigest()

    @property
    def folder(self) -> str:
        """A name that says what is inside and cannot lead anywhere else."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")[:60]
        return f"{readable}-{self.dtype}-{self.digest[:16]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """Tokens in the form that a shard keeps."""

    features: Float[Tensor, "N W"]
    boxes: Float[Tensor, "N 4"] | None
    spans: Int[Tensor, "N 2"] | None
    times: Float[Tensor, "N 2"] | None
    cut: bool
    """Whether the content was longer than the encoder reads."""

    def tokens(self) -> Tokens:
        return Tokens(features=self.features, boxes=self.boxes, spans=self.spans, times=self.times)


def as_kept(tokens: Tokens, identity: Identity, *, cut: bool) -> Kept:
    """The tokens in the form that a shard keeps; what it cannot hold is refused."""
    x = tokens.features.detach().cpu()
    if x.shape[-1] != identity.width:
        raise StoreError(f"{identity.name} says that it is {identity.width} wide, and gave {x.shape[-1]} numbers")
    kept = x.to(DTYPES[identity.dtype])
    if not bool(kept.isfinite().all()):
        largest = f"{float(x.abs().max()):.3g}"
        raise StoreError(
            f"{identity.name} gave a feature of {largest}, which {identity.dtype} cannot hold: use bfloat16"
        )
    return Kept(
        features=kept,
        boxes=None if tokens.boxes is None else tokens.boxes.detach().cpu().float(),
        spans=None if tokens.spans is None else tokens.spans.detach().cpu().long(),
        times=None if tokens.times is None else tokens.times.detach().cpu().float(),
        cut=cut,
    )


def pack(contents: Sequence[tuple[bytes, Kept]], identity: Identity) -> bytes:
    """The bytes of a shard, from keys and tokens as they are kept."""
    keys, parts = zip(*contents, strict=True)
    tensors = {"features": torch.cat([part.features for part in parts])}
    if any(part.boxes is not None for part in parts):
        tensors["boxes"] = torch.cat([_or(part.boxes, len(part.features), 4, torch.nan) for part in parts])
    if any(part.spans is not None for part in parts):
        tensors["spans"] = torch.cat([_or(part.spans, len(part.features), 2, -1) for part in parts])
    if any(part.times is not None for part in parts):
        tensors["times"] = torch.cat([_or(part.times, len(part.features), 2, torch.nan) for part in parts])
    ends = torch.tensor([len(part.features) for part in parts]).cumsum(0)
    bounds = [0, *ends.tolist()]
    sums = [
        _checksum(key, part.cut, tensors, start, end)
        for key, part, start, end in zip(keys, parts, bounds[:-1], bounds[1:], strict=True)
    ]
    tensors["keys"] = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).reshape(-1, KEY_BYTES)
    tensors |= {"ends": ends, "cut": torch.tensor([part.cut for part in parts]), "checksums": torch.tensor(sums)}
    return save(tensors, _metadata(identity))


def _metadata(identity: Identity) -> dict[str, str]:
    """One entry only: safetensors writes several in any order, and the same content would have several names."""
    return {"meq features": f"format {FORMAT}, encoder {identity.digest}"}


def _or(places: Tensor | None, tokens: int, width: int, nowhere: float) -> Tensor:
    """Places of tokens that have none, where others in the shard do."""
    return torch.full((tokens, width), nowhere) if places is None else places


def _checksum(key: bytes, cut: bool, tensors: dict[str, Tensor], start: int, end: int) -> int:
    """CRC-32 of all that is kept of a content, its key included: a changed index cannot pass off one for another."""
    value = zlib.crc32(bytes([cut]), zlib.crc32(key))
    for name in ("features", *PLACES):
        if name in tensors and end > start:
            value = zlib.crc32(tensors[name][start:end].view(torch.uint8).numpy().data, value)
    return value


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

    def _checked(self, row: int) -> tuple[int, int]:
        start, end = self.bounds[row], self.bounds[row + 1]
        if not self.sound[row]:
            if _checksum(self.keys[row], self.cut[row], self.tensors, start, end) != self.sums[row]:
                raise DamagedError(
                    f"{self.path} is damaged: content {row} of {len(self)} does not match its checksum. Encode again "
                    "with FeatureStore(..., verify=True), or meq encode --verify, to replace what is damaged"
                )
            self.sound[row] = 1
        return start, end

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
        expected = tables | places
        if found != expected or not _rising(self.tensors["ends"].numpy(), *tokens):
            raise DamagedError(f"{self.path} is damaged: its tensors do not fit together")


def _rising(ends: np.ndarray, last: int) -> bool:
    return len(ends) > 0 and bool((np.diff(ends, prepend=0) >= 0).all()) and int(ends[-1]) == last


def hash_matches(path: Path) -> bool:
    """Whether the file's bytes are those that it was named after."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == path.stem
