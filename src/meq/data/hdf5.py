"""HDF5 files that somebody else wrote: nothing outside of the file is read, and nothing larger than it should be.

A few kilobytes can claim a data set of any size, or lead to any other file of the machine by a link, an external data
set or a virtual one. Links are not followed, and sizes are judged before the library is asked for a single number.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meq.data.files import explained, open_regular
from meq.data.findings import DataError
from meq.errors import needs

MAX_BYTES = 2**28
"""Of one data set, and of each of its chunks: an hour of every feature of CMU-MOSEI needs a tenth of it."""
MAX_CHUNKS = 2**17
"""Pieces of one data set."""
MOST_PACKED = 1100
"""How many times smaller than its numbers a data set may be in the file: what deflate can do at best, and a little."""
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""What may lie between the file and the numbers, each once: two in a row could unpack to a million times their size."""
Array = np.ndarray[Any, Any]


def open_hdf5(path: Path, opened: ExitStack) -> Group:
    """The root of a file, which stays open as long as `opened` does."""
    h5py = require_h5py()
    open_regular(path).close()  # a pipe or a device would hold the library forever
    with explained(f"{path}: not a readable HDF5 file", "; download it again"):
        return Group(opened.enter_context(h5py.File(path, "r")), path)


class Group:
    """A folder in a file."""

    def __init__(self, group: Any, file: Path) -> None:
        self._group, self.file = group, file

    def __contains__(self, name: str) -> bool:
        with explained(f"{self.file}: broken"):
            # asked of the link itself: h5py's own `in` would open what the link leads to
            return bool(name) and "/" not in name and bool(self._group.id.links.exists(name.encode()))

    def names(self) -> list[str]:
        with explained(f"{self.file}: broken"):
            return [name for name in self._group if isinstance(name, str)]

    def group(self, name: str) -> Group | None:
        """The folder of that name; None if there is none."""
        part = self._own(name)
        return Group(part, self.file) if isinstance(part, require_h5py().Group) else None

    def data_set(self, name: str) -> DataSetOfFile | None:
        """The data set of that name; None if there is none."""
        part = self._own(name)
        place = f"{self.file}: {self._group.name}/{name}"
        return DataSetOfFile(part, place) if isinstance(part, require_h5py().Dataset) else None

    def _own(self, name: str) -> Any:
        """A part of the file itself; a link of another kind could lead to any file of the machine."""
        if name not in self:
            return None
        with explained(f"{self.file}: broken"):
            link = self._group.get(name, getlink=True)
            if isinstance(link, require_h5py().HardLink):
                return self._group[name]
        raise DataError(f"{self.file}: {self._group.name}/{name} leads outside of the file, and is not followed")


class DataSetOfFile:
    """Numbers or texts in a file, judged by their head and read when they are asked for."""

    def __init__(self, numbers: Any, place: str) -> None:
        self._numbers, self.place = numbers, place
        with explained(f"{place}: broken"):
            if numbers.external or numbers.is_virtual:
                raise DataError(f"{place} leads outside of the file, and is not followed")
            self.shape, self.dtype = tuple(numbers.shape or ()), numbers.dtype
            # an array in every cell, or a pointer to one, is neither numbers nor texts
            text = self.kind == "S" or require_h5py().check_string_dtype(self.dtype) is not None
            if self.kind not in "fiu" and not text:
                raise DataError(f"{place} holds {self.dtype}, where numbers or texts should be")
            self._check_size()
            self._check_filters()

    @property
    def kind(self) -> str:
        return str(self.dtype.kind)

    def read(self, start: int = 0, stop: int | None = None) -> Array:
        """The rows from `start` to `stop`."""
        with explained(f"{self.place}: cannot be read"):
            return np.asarray(self._numbers[start:stop])

    def _check_size(self) -> None:
        itemsize, chunks = max(1, self.dtype.itemsize), self._numbers.chunks
        claimed = int(np.prod([1, *self.shape], dtype=object)) * itemsize
        chunk = int(np.prod([1, *(chunks or ())], dtype=object)) * itemsize
        for what, size in (("claims", claimed), ("has chunks of", chunk)):
            if size > MAX_BYTES:
                raise DataError(f"{self.place} {what} {size:,} bytes, more than the {MAX_BYTES:,} that are read")
        pairs = zip(self.shape, chunks or self.shape, strict=True)
        count = math.prod(-(-length // max(1, size)) for length, size in pairs)
        if count > MAX_CHUNKS:  # each costs time whether anything is stored in it or not
            raise DataError(f"{self.place} lies in {count:,} pieces, more than the {MAX_CHUNKS:,} that are read")
        stored = self._numbers.id.get_storage_size()
        if claimed > MOST_PACKED * stored + 2**20:
            raise DataError(f"{self.place} claims {claimed:,} bytes, and the file has {stored:,}: it is not whole")
        if stored > 2 * claimed // itemsize * self.dtype.itemsize + 2**20:
            raise DataError(f"{self.place} takes {stored:,} bytes of the file, far more than its {self.shape} numbers")

    def _check_filters(self) -> None:
        settings = self._numbers.id.get_create_plist()
        filters = [settings.get_filter(place)[0] for place in range(settings.get_nfilters())]
        unknown = [number for number in filters if number not in FILTERS]
        if unknown or len(set(filters)) < len(filters):
            known = ", ".join(FILTERS.values())
            raise DataError(f"{self.place} is packed by the filters {filters[:8]}; {known}, each once, are read")


def as_float32(numbers: Array) -> Array:
    """In float32; what is too large becomes infinite, and is reported as such."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def require_h5py() -> ModuleType:
    try:
        import h5py  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(needs("h5py", "reading .csd files")) from error
    return h5py
