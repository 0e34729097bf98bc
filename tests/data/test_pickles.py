"""Pickles are read as plain data, and nothing in them runs."""

import builtins
import collections
import os
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meq.data.findings import DataError
from meq.data.pickles import load_plain

PLAIN = {
    "float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12)[::2],
    "big endian": np.arange(3, dtype=">i4"),
    "empty": np.zeros((0, 4)),
    "flags": np.array([True, False]),
    "bytes": np.array([b"sp", b"word"]),
    "texts": np.array(["où", "ça"]),
    "objects": np.array([["a", 1], [None, 2.5]], dtype=object),
    "scalar": np.float32(1.5),
    "containers": [1, (2.0, "x"), {"k": {1, 2}}, frozenset([3]), b"raw", b"", None, True, 1 << 80],
    "ordered": collections.OrderedDict(a=1),
    "default": collections.defaultdict(list, a=[1]),
}


def written(path: Path, content: bytes) -> Path:
    file = path / "data.pkl"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"], ids=["numpy 2", "numpy 1"])
def test_plain_data_come_out_as_they_went_in(tmp_path: Path, protocol: int, core: bytes) -> None:
    content = pickle.dumps(PLAIN, protocol=protocol)
    read = load_plain(written(tmp_path, _renamed(content, core, protocol)))
    assert list(read) == list(PLAIN)
    for name, expected in PLAIN.items():
        if isinstance(expected, np.ndarray):
            assert read[name].dtype == expected.dtype, name
            np.testing.assert_array_equal(read[name], expected)
        else:
            assert read[name] == expected, name


def _renamed(content: bytes, core: bytes, protocol: int) -> bytes:
    """The names that numpy 1 used; texts carry their length from protocol 4 on."""
    for module in (b".multiarray", b".numeric"):
        new, old = core + module, b"numpy._core" + module
        if protocol >= 4:
            content = content.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new)
        else:
            content = content.replace(b"c" + old + b"\n", b"c" + new + b"\n")
    return _without_frames(content) if protocol >= 4 else content


def _without_frames(content: bytes) -> bytes:
    """Frames carry lengths that no longer hold once a name was replaced."""
    frames = [place for opcode, _, place in pickletools.genops(content) if opcode.name == "FRAME"]
    for place in reversed(frames):
        content = content[:place] + content[place + 9 :]
    return content


def test_a_python_2_pickle_of_an_array_is_read(tmp_path: Path) -> None:
    values = struct.pack("<2d", 1.5, -2.0)
    content = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\ntcnumpy\ndtype\n(S'f8'\nI0\nI1\ntR"
        b"(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nU" + bytes([len(values)]) + values + b"tb."
    )
    np.testing.assert_array_equal(load_plain(written(tmp_path, content)), [1.5, -2.0])


def test_arrays_that_are_shared_stay_shared(tmp_path: Path) -> None:
    x = np.arange(3)
    read = load_plain(written(tmp_path, pickle.dumps([x, x])))
    assert read[0] is read[1]


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.how = (function, args)

    def __reduce__(self) -> Any:
        return self.how


HOSTILE = {
    "os.system": (lambda mark: Calls(os.system, f"touch {mark}"), "system"),
    "eval": (lambda mark: Calls(eval, f"open({str(mark)!r}, 'w')"), r"builtin.*\.eval"),
    "exec": (lambda mark: Calls(exec, f"open({str(mark)!r}, 'w')"), r"builtin.*\.exec"),
    "open": (lambda mark: Calls(open, str(mark), "w"), "open"),
    "getattr": (lambda mark: Calls(getattr, Calls(__import__, "os"), "system"), r"builtin.*\.getattr"),
    "in an array of objects": (
        lambda mark: np.array([Calls(os.system, f"touch {mark}"), 1], dtype=object),
        "system",
    ),
    "numpy's own load": (lambda mark: Calls(np.load, str(mark), None, True), "load"),
    "a class": (lambda mark: Path(mark), "pathlib"),
}


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_runs_nothing_and_is_named(tmp_path: Path, name: str, protocol: int) -> None:
    make, asked_for = HOSTILE[name]
    mark = tmp_path / "ran"
    file = written(tmp_path, pickle.dumps({"x": make(mark)}, protocol=protocol))
    with pytest.raises(DataError, match=asked_for):
        load_plain(file)
    assert not mark.exists()


def test_the_same_pickle_would_have_run_otherwise(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Calls(builtins.exec, f"open({str(mark)!r}, 'w').close()")))
    assert mark.exists()


@pytest.mark.parametrize("name", ["numpy.f2py.compile", "numpy.testing.measure", "builtins.bytearray", "numpy.matrix"])
def test_nothing_else_of_numpy_or_python_can_be_reached(tmp_path: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        load_plain(written(tmp_path, f"c{module}\n{function}\n.".encode()))


def test_a_dotted_name_cannot_reach_through_an_admitted_one(tmp_path: Path) -> None:
    content = b"\x80\x04\x8c\x05numpy\x8c\x16ndarray.__subclasses__\x93."
    with pytest.raises(DataError, match=r"ndarray\.__subclasses__"):
        load_plain(written(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\ndtype\n}S'make'\nI1\nsb.",  # BUILD on a maker: would change every later reading
        b"cnumpy\ndtype\n(N}S'make'\nI1\nstb.",
        b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR(I3\nS'|'\nN(S'a'\nt}I8\nI1\nI0\ntb.",  # a forged structured dtype
        b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",  # a dtype alone is no data
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntRS'12345678'\ntR.",  # bytes as a pointer
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'f8,O'\nI0\nI1\ntRS'12345678'\ntR.",
        b"cnumpy.core.numeric\n_frombuffer\n(S'12345678'\ncnumpy\ndtype\n(S'f8'\nI0\nI1\ntR(I1000000000\ntS'C'\ntR.",
        b"(lp0\ng0\na.",  # a list that contains itself
        b"Pname\n.",  # a persistent id
        b"c_codecs\nencode\n(S'x'\nS'zip'\ntR.",
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",  # says that a terabyte follows
        b"\x80\x02\x82\x01.",  # an extension code
        b"cnumpy\nndarray\n)\x81.",  # NEWOBJ
    ],
)
def test_forged_parts_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError):
        load_plain(written(tmp_path, content))
    np.testing.assert_array_equal(load_plain(written(tmp_path, pickle.dumps(np.arange(2)))), [0, 1])


@pytest.mark.parametrize("kept", [0, 10, -1])
def test_a_truncated_pickle_says_so(tmp_path: Path, kept: int) -> None:
    file = written(tmp_path, pickle.dumps(PLAIN)[:kept])
    with pytest.raises(DataError, match=r"data\.pkl: .*(not a whole pickle|cannot be read)"):
        load_plain(file)


def test_deep_nesting_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nested too deeply"):
        load_plain(written(tmp_path, b"]" * 50_000 + b"a" * 49_999 + b"."))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.pkl: the file is missing"):
        load_plain(tmp_path / "gone.pkl")
