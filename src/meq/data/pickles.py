"""Pickles as plain data: arrays, numbers, texts and containers come out, and nothing in the file is ever run.

A pickle is a program. It can only call what it looks up by name, so every name leads to a maker of ours or to an error;
numpy's own functions are not among them, since a forged dtype can make them read memory that is not theirs. What the
makers return are notes of what was asked for, turned into arrays and checked once the file is read.

A few bytes can also ask for any amount of time or memory without calling anything: a key whose hash takes forever, a
place in the memo that needs gigabytes, a list of one list a thousand times over. The limits below stand against that.
They are counted while reading, which is why the unpickler is the one of pickle that is written in Python.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from meq.data.files import open_regular
from meq.data.findings import DataError
from meq.errors import shown

KINDS = "biufcSUO"
"""Kinds of dtype that are read: numbers, bytes, texts and objects, whose elements are checked as all the rest."""
MAX_PARTS = 150_000
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
    """What may be copied while a file is read, no more than the file is long and a little; and what was made of it."""

    def __init__(self, size: int) -> None:
        self.left = size + 2**20
        self.parts = 0
        self.settled: dict[int, Any] = {}
        """By its identity, what was made of a part; the budget itself while that is begun and not finished."""

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
            # of whole numbers longer than 60 bits, any number can be made that share their hash
            short = isinstance(part, int) and part.bit_length() <= 60
            if not short and not isinstance(part, str | bytes | float | _Scalar | None):
                raise DataError(f"has a key that is a {type(part).__name__.strip('_')}; keys are texts and numbers")


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

    def settled(self, budget: Budget) -> Any:
        if not isinstance(self.dtype, _DType) or not _is_shape(self.shape):
            raise DataError("holds an array without a dtype or a shape")
        dtype = self.dtype.settled()
        flat = _flat(self.raw, dtype, budget)
        if flat.size != int(np.prod(self.shape, dtype=object)):
            raise DataError(f"holds {flat.size} values for an array of shape {self.shape}")
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


class _Scalar(_Array):
    """One number or text of numpy's."""

    __slots__ = ()

    def settled(self, budget: Budget) -> Any:
        return super().settled(budget)[()]


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


def settled_value(value: Any, budget: Budget) -> Any:
    """The value with arrays in place of their descriptions; shared parts stay shared, cycles are refused."""
    if isinstance(value, str | bytes | bytearray | int | float | complex) or value is None:
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise DataError(f"holds a whole number of more than {MAX_BITS} bits")
        return value
    known = budget.settled
    if id(value) in known:
        if known[id(value)] is budget:
            raise DataError("holds a container that contains itself")
        return known[id(value)]
    known[id(value)] = budget
    made: Any
    if isinstance(value, _Array):
        made = value.settled(budget)
    elif isinstance(value, dict):
        made = {settled_value(key, budget): settled_value(item, budget) for key, item in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        made = type(value)(settled_value(item, budget) for item in value)
    else:
        raise DataError(f"holds a {type(value).__name__.strip('_')} where data should be")
    known[id(value)] = made
    return made


def _flat(raw: Any, dtype: np.dtype[Any], budget: Budget) -> np.ndarray[Any, Any]:
    """The values of an array, one after the other: a list of objects, or the bytes of numbers and texts."""
    if dtype.hasobject:
        if not isinstance(raw, list):
            raise DataError("holds an array of objects without a list of them")
        flat = np.empty(len(raw), dtype=object)
        for place, item in enumerate(raw):
            flat[place] = settled_value(item, budget)
        return flat
    if isinstance(raw, str):
        budget.spend(len(raw))
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


def makers_of(budget: Budget) -> Mapping[tuple[str, str], _Maker]:
    """What a pickle may call, by the module and name it asks for."""

    def reconstruct(*args: Any) -> _Array:
        return _Array()

    def from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        return _Array(shape, dtype, raw, fortran=order == "F")

    def scalar(dtype: Any, raw: Any = b"") -> _Scalar:
        return _Scalar((), dtype, raw)

    made: dict[tuple[str, str], Callable[..., Any]] = {("_codecs", "encode"): partial(_encode, budget)}
    for numpy_core in ("numpy.core", "numpy._core"):
        made[f"{numpy_core}.multiarray", "_reconstruct"] = reconstruct
        made[f"{numpy_core}.multiarray", "scalar"] = scalar
        made[f"{numpy_core}.numeric", "_frombuffer"] = from_buffer
    made["numpy", "dtype"], made["numpy", "ndarray"] = _DType, reconstruct
    made["collections", "OrderedDict"] = partial(_container, budget, dict)
    made["collections", "defaultdict"] = lambda *factory: {}
    for builtins in ("builtins", "__builtin__"):
        for plain in (set, frozenset, list, dict, tuple):
            made[builtins, plain.__name__] = partial(_container, budget, plain)
        made[builtins, "bytes"] = lambda: b""  # with an argument it could ask for any amount of memory
    return {name: _Maker(make) for name, make in made.items()}


def load_plain(path: Path) -> Any:
    """What the pickle holds, if that is arrays, plain values and containers; Python 2 pickles too.

    Anything else is a DataError that names the class or function which the file asks for.
    """
    try:
        with open_regular(path) as file:
            bounded = _BoundedFile(file)
            budget = Budget(bounded.left)
            value = _PlainUnpickler(bounded, budget).load()
            check_unfolded(value)
            return settled_value(value, budget)
    except DataError as error:
        said = str(error)
        raise DataError(said if said.startswith(str(path)) else f"{path}: {said}") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: the file is missing") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply to be a data set") from error
    except (pickle.UnpicklingError, EOFError) as error:
        raise DataError(
            f"{path}: not a whole pickle: {str(error) or 'it ends too early'}; download it again"
        ) from error
    except Exception as error:  # a forged or damaged file can fail in any way inside the unpickler, or inside numpy
        raise DataError(f"{path}: the pickle cannot be read: {str(error) or type(error).__name__}") from error


class _BoundedFile:
    """A file that is never asked for more than it has left: reading reserves the memory before it looks."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.left = file.seek(0, 2)
        file.seek(0)

    def read(self, count: int) -> bytes:
        if count > self.left:
            raise EOFError
        self.left -= count
        return self.file.read(count)

    def readline(self) -> bytes:
        line = self.file.readline()
        self.left -= len(line)
        return line


class _PlainUnpickler(pickle._Unpickler):  # type: ignore[name-defined,misc,unused-ignore]
    """An unpickler that knows the names in `makers_of` and no others, and counts what it makes."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined,unused-ignore]

    def __init__(self, file: _BoundedFile, budget: Budget) -> None:
        super().__init__(file, encoding="latin1")  # how numpy wrote raw data under Python 2
        self.budget = budget
        self.makers = makers_of(budget)

    def find_class(self, module: str, name: str) -> Any:
        maker = self.makers.get((module, name))
        if maker is None:
            raise DataError(
                f"asks for {shown(f'{module}.{name}', 120)}, which is not plain data and was not run; "
                "only numpy arrays, numbers, texts and containers are read from a pickle"
            )
        return maker

    def persistent_load(self, pid: Any) -> Any:
        name = repr(pid) if isinstance(pid, str) else f"a {type(pid).__name__}"
        raise DataError(f"refers to something outside of the file ({shown(name, 60)}), which is not followed")

    def get_extension(self, code: int) -> Any:
        raise DataError(f"asks for the extension {code}, which is not plain data")


def _step(opcode: bytes, check: Callable[[_PlainUnpickler], None]) -> None:
    """Let `check` look at the unpickler before it takes the step of that opcode."""
    take = _PlainUnpickler.dispatch[opcode[0]]

    def checked(unpickler: Any) -> None:
        check(unpickler)
        take(unpickler)

    _PlainUnpickler.dispatch[opcode[0]] = checked


def _no_room_before_reading(unpickler: Any) -> None:
    """BYTEARRAY8 in place of pickle's own, which reserves what the file says before it looks how much there is."""
    count = int.from_bytes(unpickler.read(8), "little")
    unpickler.append(bytearray(unpickler.read(count)))


for _code in (
    *(pickle.MARK, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.LIST, pickle.DICT, pickle.TUPLE),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
):
    _step(_code, lambda unpickler: unpickler.budget.count_part())
# since the mark, the stack holds keys and values in turn, or elements; before a single item, its key and its value
_step(pickle.DICT, lambda unpickler: check_keys(unpickler.stack[::2]))
_step(pickle.SETITEMS, lambda unpickler: check_keys(unpickler.stack[::2]))
_step(pickle.SETITEM, lambda unpickler: check_keys(unpickler.stack[-2:-1]))
_step(pickle.ADDITEMS, lambda unpickler: check_keys(unpickler.stack))
_step(pickle.FROZENSET, lambda unpickler: check_keys(unpickler.stack))
_PlainUnpickler.dispatch[pickle.BYTEARRAY8[0]] = _no_room_before_reading
