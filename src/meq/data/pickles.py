"""Pickles as plain data: arrays, numbers, texts and containers come out, and nothing in the file is ever run.

A pickle is a program. It can only call what it looks up by name, so every name leads to a maker of ours or to an error;
numpy's own functions are not among them, since a forged dtype can make them read memory that is not theirs. What the
makers return are notes of what was asked for, turned into arrays and checked once the file is read.

A few bytes can also ask for any amount of time or memory without calling anything: a key whose hash takes forever, a
place in the memo that needs gigabytes, a list of one list a thousand times over. The limits in `pickle_notes` stand
against that. They are counted while reading, which is why the unpickler is the one of pickle that is written in Python.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from meq.data.findings import DataError
from meq.data.pickle_notes import Budget, Memo, check_keys, check_unfolded, makers_of, settled_value
from meq.data.regular_files import open_regular
from meq.foreign import shown


def load_plain(path: Path) -> Any:
    """What the pickle holds, if that is arrays, plain values and containers; Python 2 pickles too.

    Anything else is a DataError that names the class or function which the file asks for.
    """
    try:
        with open_regular(path) as file:
            bounded = _Bounded(file)
            budget = Budget(bounded.left)
            value = _PlainUnpickler(bounded, budget).load()
            check_unfolded(value)
            return settled_value(value, Memo(budget))
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


class _Bounded:
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

    def __init__(self, file: _Bounded, budget: Budget) -> None:
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
