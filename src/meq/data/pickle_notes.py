"""What a pickle asks for, noted down: makers that it may call, and their notes turned into arrays and plain values.

See `meq.data.pickles`, which reads the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from meq.data.findings import DataError
from meq.foreign import shown

KINDS = "biufcSUO"
"""Kinds of dtype that are read: numbers, bytes, texts and objects, whose elements are checked as all the rest."""
MAX_PARTS = 500_000
"""Containers and remembered parts of a file; each costs a byte of it, and up to two hundred of memory."""
MAX_UNFOLDED = 10_000_000
"""Values of a file with every shared part counted as often as it is held; arrays count as one."""
MAX_BITS = 1024
"""Of a whole number."""
MAX_DIMENSIONS, MAX_NAME = 32, 40
"""Of an array, and letters in the name of its dtype."""
MAX_KEY_PARTS = 16
"""Of a tuple that is a key."""
EMPTY_LENGTH = 1_000_000
"""The longest side of an array that holds nothing."""


class Budget:
    """What may be copied while a file is read: no more than the file is long, and a little."""

    def __init__(self, size: int) -> None:
        self.left = size + 2**20
        self.parts = 0

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise DataError("copies its parts over and over: it would unfold to far more than it holds")

    def count_part(self) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise DataError(f"holds more than {MAX_PARTS:,} containers, and is no data set of arrays")


def check_keys(keys: Iterable[Any]) -> None:
    """Keys and elements of sets are plain: the hash of nested tuples can take longer than the world has existed."""
    for key in keys:
        parts = key if type(key) is tuple and len(key) <= MAX_KEY_PARTS else (key,)
        for part in parts:
            if not isinstance(part, str | bytes | float | _Scalar | None) and not _is_short(part):
                raise DataError(f"has a key that is a {type(part).__name__.strip('_')}; keys are texts and numbers")


def _is_short(number: Any) -> bool:
    """Whole numbers of 60 bits: of longer ones, any number can be made that share their hash."""
    return isinstance(number, int) and number.bit_length() <= 60


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
            dtype = np.dtype(self.name[:MAX_NAME])
        except (TypeError, ValueError, SyntaxError) as error:
            raise DataError(f"holds an array of the unknown dtype {shown(self.name, MAX_NAME)!r}") from error
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

    def settled(self, memo: Memo) -> Any:
        if not isinstance(self.dtype, _DType) or not _is_shape(self.shape):
            raise DataError("holds an array without a dtype or a shape")
        dtype = self.dtype.settled()
        flat = _objects(self.raw, memo) if dtype.hasobject else _flat(self.raw, dtype, memo)
        if flat.size != int(np.prod(self.shape, dtype=object)):
            raise DataError(f"holds {flat.size} values for an array of shape {self.shape}")
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


class _Scalar(_Array):
    """One number or text of numpy's."""

    __slots__ = ()

    def settled(self, memo: Memo) -> Any:
        return super().settled(memo)[()]


class Memo(dict[int, Any]):
    """What has been settled already, by its identity, and what may still be copied."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget


def check_unfolded(value: Any) -> None:
    """Lists of one list of one list are short in a file, and without end once somebody walks them."""
    known: dict[int, int] = {}

    def size(value: Any) -> int:
        if isinstance(value, _Array):
            value = value.raw
        if not isinstance(value, dict | list | tuple | set | frozenset):
            return 1
        if id(value) not in known:
            known[id(value)] = 1  # of a container that contains itself, which is refused when it is settled
            parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            known[id(value)] = 1 + sum(map(size, parts))
        return known[id(value)]

    if size(value) > MAX_UNFOLDED:
        raise DataError(f"unfolds to more than {MAX_UNFOLDED:,} values")


def settled_value(value: Any, memo: Memo) -> Any:
    """The value with arrays in place of their descriptions; shared parts stay shared, cycles are refused."""
    if isinstance(value, str | bytes | bytearray | int | float | complex) or value is None:
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise DataError(f"holds a whole number of more than {MAX_BITS} bits")
        return value
    if id(value) in memo:
        if memo[id(value)] is memo:
            raise DataError("holds a container that contains itself")
        return memo[id(value)]
    memo[id(value)] = memo  # begun, not finished
    memo[id(value)] = made = _made(value, memo)
    return made


def _made(value: Any, memo: Memo) -> Any:
    if isinstance(value, _Array):
        return value.settled(memo)
    if isinstance(value, dict):
        return {settled_value(key, memo): settled_value(item, memo) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(settled_value(item, memo) for item in value)
    raise DataError(f"holds a {type(value).__name__.strip('_')} where data should be")


def _objects(raw: Any, memo: Memo) -> np.ndarray[Any, Any]:
    if not isinstance(raw, list):
        raise DataError("holds an array of objects without a list of them")
    flat = np.empty(len(raw), dtype=object)
    for place, item in enumerate(raw):
        flat[place] = settled_value(item, memo)
    return flat


def _flat(raw: Any, dtype: np.dtype[Any], memo: Memo) -> np.ndarray[Any, Any]:
    if isinstance(raw, str):
        memo.budget.spend(len(raw))
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray):
        raise DataError("holds an array without its values")
    return np.frombuffer(raw, dtype=dtype)


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
        return False
    longest = EMPTY_LENGTH if 0 in shape else sys.maxsize
    return all(type(size) is int and 0 <= size <= longest for size in shape)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise DataError(f"names a dtype by a {type(value).__name__.strip('_')}")
    return value


def _encode(budget: Budget, text: Any, encoding: Any = "latin1") -> bytes:
    """How Python 3 writes bytes in old protocols."""
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("encodes something otherwise than in latin1, which alone is known in pickles of arrays")
    budget.spend(len(text))
    return text.encode("latin1")


def _container(budget: Budget, kind: type[Any], *given: Any) -> Any:
    """list, tuple, set, frozenset or dict, of nothing or of one container."""
    budget.count_part()
    if not given:
        return kind()
    (content,) = given
    if not isinstance(content, list | tuple | set | frozenset | dict):
        raise DataError(f"makes a {kind.__name__} of a {type(content).__name__.strip('_')}")
    budget.spend(len(content))
    if kind is dict and not isinstance(content, dict):
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in content):
            raise DataError("makes a dict of something other than pairs")
        check_keys(pair[0] for pair in content)
    elif kind in (set, frozenset):
        check_keys(content)
    return kind(content)


def _reconstruct(*args: Any) -> _Array:
    return _Array()


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, dtype, raw, fortran=order == "F")


def _scalar(dtype: Any, raw: Any = b"") -> _Scalar:
    return _Scalar((), dtype, raw)


def makers_of(budget: Budget) -> Mapping[tuple[str, str], _Maker]:
    made: dict[tuple[str, str], Callable[..., Any]] = {("_codecs", "encode"): partial(_encode, budget)}
    for numpy_core in ("numpy.core", "numpy._core"):
        made[f"{numpy_core}.multiarray", "_reconstruct"] = _reconstruct
        made[f"{numpy_core}.multiarray", "scalar"] = _scalar
        made[f"{numpy_core}.numeric", "_frombuffer"] = _from_buffer
    made["numpy", "dtype"], made["numpy", "ndarray"] = _DType, _reconstruct
    made["collections", "OrderedDict"] = partial(_container, budget, dict)
    made["collections", "defaultdict"] = lambda *factory: {}
    for builtins in ("builtins", "__builtin__"):
        for plain in (set, frozenset, list, dict, tuple):
            made[builtins, plain.__name__] = partial(_container, budget, plain)
        made[builtins, "bytes"] = lambda: b""  # with an argument it could ask for any amount of memory
    return {name: _Maker(make) for name, make in made.items()}
