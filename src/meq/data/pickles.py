"""Pickles as plain data: arrays, numbers, texts and containers come out, and nothing in the file is ever run.

A pickle is a program. It can only call what it looks up by name, so every name leads to a maker of ours or to an error;
numpy's own functions are not among them, since a forged dtype can make them read memory that is not theirs. What the
makers return are notes of what was asked for, turned into arrays and checked once the file is read.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from meq.data.findings import DataError

KINDS = "biufcSUO"
"""Kinds of dtype that are read: numbers, bytes, texts and objects, whose elements are checked as all the rest."""


def load_plain(path: Path) -> Any:
    """What the pickle holds, if that is arrays, plain values and containers; Python 2 pickles too.

    Anything else is a DataError that names the class or function which the file asks for.
    """
    try:
        with path.open("rb") as file:
            return _settled(_PlainUnpickler(file).load(), {})
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: the file is missing") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply to be a data set") from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise DataError(
            f"{path}: not a whole pickle: {str(error) or 'it ends too early'}; download it again"
        ) from error
    except (TypeError, ValueError, AttributeError, LookupError, MemoryError, OverflowError) as error:
        # a forged or damaged file can fail in any of these ways inside the unpickler
        raise DataError(f"{path}: the pickle cannot be read: {error}") from error


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows the names in `_MAKERS` and no others."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")  # how numpy wrote raw data under Python 2

    def find_class(self, module: str, name: str) -> Any:
        maker = _MAKERS.get((module, name))
        if maker is None:
            raise DataError(
                f"asks for {module}.{name}, which is not plain data and was not run; "
                "only numpy arrays, numbers, texts and containers are read from a pickle"
            )
        return maker

    def persistent_load(self, pid: Any) -> Any:
        raise DataError(f"refers to something outside of the file ({pid!r}), which is not followed")


class _Maker:
    """A callable that a pickle can call and cannot change."""

    __slots__ = ("make",)
    make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "make", make)

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise DataError("tries to change how it is read")

    def __setstate__(self, state: Any) -> None:
        raise DataError("tries to change how it is read")


class _DType:
    """A dtype as the file describes it; `__setstate__` is what the pickle's BUILD instruction calls."""

    __slots__ = ("name", "order")

    def __init__(self, name: Any, *flags: Any) -> None:
        self.name, self.order = _text(name), "="

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise DataError(f"holds an array of the structured dtype {self.name!r}; only plain arrays are read")
        order = _text(state[1])
        if order not in ("<", ">", "=", "|"):
            raise DataError(f"holds an array of unknown byte order {order!r}")
        self.order = order

    def settled(self) -> np.dtype[Any]:
        try:
            dtype = np.dtype(self.name)
        except TypeError as error:
            raise DataError(f"holds an array of the unknown dtype {self.name!r}") from error
        if dtype.kind not in KINDS or dtype.names is not None or dtype.subdtype is not None:
            raise DataError(f"holds an array of dtype {self.name!r}; only numbers, texts and objects are read")
        return dtype if self.order in ("=", "|") else dtype.newbyteorder(self.order)  # type: ignore[arg-type]


class _Array:
    """An array, or one number, as the file describes it."""

    __slots__ = ("dtype", "fortran", "raw", "shape")

    def __init__(self, shape: Any = None, dtype: Any = None, raw: Any = None, *, fortran: bool = False) -> None:
        self.shape, self.dtype, self.raw, self.fortran = shape, dtype, raw, fortran

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise DataError("holds an array in a form that is not known")
        self.shape, self.dtype, fortran, self.raw = state[-4:]
        self.fortran = bool(fortran)

    def settled(self, memo: dict[int, Any]) -> Any:
        if not isinstance(self.dtype, _DType) or not _is_shape(self.shape):
            raise DataError("holds an array without a dtype or a shape")
        dtype = self.dtype.settled()
        flat = _objects(self.raw, memo) if dtype.hasobject else np.frombuffer(_bytes(self.raw), dtype=dtype)
        if flat.size != int(np.prod(self.shape, dtype=object)):
            raise DataError(f"holds {flat.size} values for an array of shape {self.shape}")
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


class _Scalar(_Array):
    """One number or text of numpy's."""

    __slots__ = ()

    def settled(self, memo: dict[int, Any]) -> Any:
        return super().settled(memo)[()]


def _settled(value: Any, memo: dict[int, Any]) -> Any:
    """The value with arrays in place of their descriptions; shared parts stay shared, cycles are refused."""
    if isinstance(value, str | bytes | bytearray | int | float | complex) or value is None:
        return value
    if id(value) in memo:
        if memo[id(value)] is memo:
            raise DataError("holds a container that contains itself")
        return memo[id(value)]
    memo[id(value)] = memo  # begun, not finished
    memo[id(value)] = made = _made(value, memo)
    return made


def _made(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, _Array):
        return value.settled(memo)
    if isinstance(value, dict):
        return {_settled(key, memo): _settled(item, memo) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_settled(item, memo) for item in value)
    raise DataError(f"holds a {type(value).__name__.strip('_')} where data should be")


def _objects(raw: Any, memo: dict[int, Any]) -> np.ndarray[Any, Any]:
    if not isinstance(raw, list):
        raise DataError("holds an array of objects without a list of them")
    flat = np.empty(len(raw), dtype=object)
    for place, item in enumerate(raw):
        flat[place] = _settled(item, memo)
    return flat


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(type(size) is int and 0 <= size <= sys.maxsize for size in shape)


def _bytes(raw: Any) -> bytes | bytearray:
    if isinstance(raw, str):
        return raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray):
        raise DataError("holds an array without its values")
    return raw


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise DataError(f"names a dtype by {value!r}")
    return value


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError(f"encodes something with {encoding!r}; only latin1 is known in pickles of arrays")
    return text.encode("latin1")


def _reconstruct(*args: Any) -> _Array:
    return _Array()


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, dtype, raw, fortran=order == "F")


def _scalar(dtype: Any, raw: Any = b"") -> _Scalar:
    return _Scalar((), dtype, raw)


def _makers() -> Mapping[tuple[str, str], _Maker]:
    made: dict[tuple[str, str], Callable[..., Any]] = {("_codecs", "encode"): _encode}
    for numpy_core in ("numpy.core", "numpy._core"):
        made[f"{numpy_core}.multiarray", "_reconstruct"] = _reconstruct
        made[f"{numpy_core}.multiarray", "scalar"] = _scalar
        made[f"{numpy_core}.numeric", "_frombuffer"] = _from_buffer
    made["numpy", "dtype"], made["numpy", "ndarray"] = _DType, _reconstruct
    made["collections", "OrderedDict"] = dict
    made["collections", "defaultdict"] = lambda *factory: {}
    for builtins in ("builtins", "__builtin__"):
        for plain in (set, frozenset, list, dict, tuple):
            made[builtins, plain.__name__] = plain
        made[builtins, "bytes"] = lambda: b""  # with an argument it could ask for any amount of memory
    return {name: _Maker(make) for name, make in made.items()}


_MAKERS = _makers()
