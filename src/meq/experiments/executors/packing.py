"""Prepared data, packed for other processes: nobody reads, draws or encodes it a second time.

Tensors go into one file, which every process maps into its memory, so that features are there once however many
workers read them; the rest is a pickle that is handed over, never kept. Shards of a feature store are not copied: they
are opened again where the data is unpacked.
"""

from __future__ import annotations

import importlib
import io
import marshal
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import IO, Any

import torch
from torch import Tensor

from meq.encoders.shards import Identity, Shard
from meq.encoders.store import Features
from meq.experiments.build import Prepared

ALIGNED = 64
"""Bytes: where a tensor may begin in the file."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What a worker is given: small, and the same for all of them."""

    content: bytes
    tensors: Path
    token: str
    """Two packings differ in it, even if their contents look alike."""


def pack(prepared: Prepared, tensors: Path) -> Packed:
    """Write the tensors to that file, and return the rest."""
    content = io.BytesIO()
    with open(tensors, "wb") as file:
        _Packer(content, file).dump(prepared)
    return Packed(content=content.getvalue(), tensors=tensors.resolve(), token=uuid.uuid4().hex)


def unpack(packed: Packed) -> Prepared:
    """The data as it was packed. A process that is given the same once more keeps what it has."""
    return _unpack(_ByToken(packed))


class _ByToken:
    """Equal if they were packed at the same time: the content is not compared."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    def __hash__(self) -> int:
        return hash(self.packed.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByToken) and other.packed.token == self.packed.token


@lru_cache(maxsize=1)
def _unpack(known: _ByToken) -> Prepared:
    return _Unpacker(io.BytesIO(known.packed.content), known.packed.tensors).load()


class _Packer(pickle.Pickler):
    """Tensors by their place in a file, shards by their path, functions inside of functions by what they do."""

    def __init__(self, content: IO[bytes], file: IO[bytes]) -> None:
        super().__init__(content, protocol=5)
        self.file, self.end = file, 0
        self.known: dict[int, tuple[Tensor, tuple[int, str, tuple[int, ...]]]] = {}
        """By address, with the tensor itself, so that no other one can come to lie there."""
        self.identities: dict[int, Identity] = {}
        """Which encoder the shards at these addresses are of; the features that hold them come before them."""

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.is_sparse or obj.requires_grad or obj.device.type != "cpu":
            return None
        if id(obj) not in self.known:
            self.known[id(obj)] = (obj, self._written(obj))
        return self.known[id(obj)][1]

    def _written(self, x: Tensor) -> tuple[int, str, tuple[int, ...]]:
        content = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        place, self.end = self.end, self.end + len(content) + -len(content) % ALIGNED
        self.file.write(content + bytes(-len(content) % ALIGNED))
        return place, str(x.dtype).removeprefix("torch."), tuple(x.shape)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Features):
            self.identities |= {id(shard): obj.identity for shard in obj.shards.values()}
        if isinstance(obj, Shard):
            return Shard, (obj.path.resolve(), self.identities[id(obj)])
        if isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__:
            cells = tuple(cell.cell_contents for cell in obj.__closure__ or ())
            named = (obj.__module__, obj.__qualname__)
            return _made_again, (marshal.dumps(obj.__code__), *named, obj.__defaults__, obj.__kwdefaults__, cells)
        return NotImplemented


class _Unpacker(pickle.Unpickler):
    """Only ever given what `pack` made in the process that started this one."""

    def __init__(self, content: IO[bytes], tensors: Path) -> None:
        super().__init__(content)
        size = tensors.stat().st_size
        # private: a worker that writes into a tensor changes its own copy of that page
        self.bytes = torch.from_file(str(tensors), shared=False, size=size, dtype=torch.uint8) if size else None

    def persistent_load(self, pid: tuple[int, str, tuple[int, ...]]) -> Tensor:
        place, name, shape = pid
        dtype, count = getattr(torch, name), torch.Size(shape).numel()
        if count == 0 or self.bytes is None:
            return torch.empty(shape, dtype=dtype)
        return self.bytes[place : place + count * dtype.itemsize].view(dtype).reshape(shape)


def _made_again(
    code: bytes, module: str, name: str, defaults: Any, keyword_defaults: Any, cells: tuple[Any, ...]
) -> Callable[..., Any]:
    """A function that was defined inside another one."""
    loaded: CodeType = marshal.loads(code)
    scope = vars(importlib.import_module(module))
    function = FunctionType(loaded, scope, loaded.co_name, defaults, tuple(map(CellType, cells)))
    function.__kwdefaults__, function.__qualname__, function.__module__ = keyword_defaults, name, module
    return function
