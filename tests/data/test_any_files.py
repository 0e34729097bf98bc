"""Files of any content are read or refused: the documented error, in little time and memory, and nothing else."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounded import attempt, needs_fork
from data.hostile_files import saved, wav
from data.more_folders import mosei_folder
from hypothesis import given
from hypothesis import strategies as st

from meq.data.content import PictureFile, SoundFile
from meq.data.findings import DataError, Findings
from meq.data.mosei import mosei
from meq.data.pickles import load_plain
from meq.data.pictures import PICTURE_FORMATS
from meq.data.table import TableSchema, new_rows, table
from meq.errors import LONGEST, shown
from meq.records import MAX_DEPTH, FormatError, JsonError, loads, parse_json, plain
from meq.training.record import read_record

pytestmark = [pytest.mark.fuzz, needs_fork]

EXTREME = [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", bytes(4), b"\0\0\0\x80", b"\x7f\xff\xff\xff"]
"""Numbers that heads would rather not say, in either order of bytes."""
RECORDS = sorted((Path(__file__).parents[1] / "records").rglob("record.json"))


@contextmanager
def folder_with(name: str, content: bytes) -> Iterator[Path]:
    """A file in a folder of its own, which must hold nothing else afterwards."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / name).write_bytes(content)
        yield Path(made) / name
        assert os.listdir(made) == [name]


@st.composite
def mutations(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with a few bytes changed, cut out, repeated, or put in; heads, where the sense is, more often."""
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        end = len(made) if draw(st.booleans()) else min(len(made), 200)
        at = draw(st.integers(0, max(0, end - 1)))
        kind = draw(st.sampled_from(["change", "change", "large", "cut", "insert", "repeat", "end"]))
        if kind == "change" and made:
            made[at] = draw(st.integers(0, 255))
        elif kind == "large":
            made[at : at + 4] = draw(
                st.sampled_from([b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", bytes(4), b"\0\0\0\x80"])
            )
        elif kind == "cut":
            del made[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            made[at:at] = draw(st.binary(min_size=1, max_size=12))
        elif kind == "repeat":
            made[at:at] = made[at : at + 30] * draw(st.integers(1, 20))
        else:
            del made[at:]
    return bytes(made)


def check_message(error: Exception) -> None:
    for line in str(error).split("\n"):
        assert line.isprintable(), repr(line)
        assert len(line) <= LONGEST


def check_bounded(action: Callable[[], Any], *errors: str) -> None:
    """In a process of its own: over within two seconds and in little memory, as it should or with one of the errors."""
    outcome = attempt(action)
    assert outcome.error is None or outcome.error in errors, outcome
    assert outcome.message.isprintable(), repr(outcome.message)


def read_everything(path: Path, **columns: Any) -> None:
    """The table with what is bad left out, every example of it, and again as new rows."""
    try:
        data = table(path, findings=Findings("skip"), **columns)
        for split in data.splits.values():
            for example in split:
                assert example.content
        assert len(data.fingerprint()) == 64
    except DataError as error:
        check_message(error)
    known = TableSchema(columns={"t": ["t"]}, kinds={"t": "text"}, widths={}, head="classes", labels=("a", "b"))
    findings = Findings("skip")
    try:
        new_rows(path, known, findings=findings)
    except DataError as error:
        check_message(error)
    for finding in findings:
        assert str(finding).isprintable()


CELLS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["a", "b", "img/1.png", "/etc/passwd", "../x.png", "https://x/y.png", "[1, 2]", "1 2 3", "nan", "1e999"]
    ),
    st.integers(-(10**20), 10**20).map(str),
)
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "utf-16", "cp1252"])
COLUMNS = {"texts": "t", "vectors": "v", "images": "p", "label": "y"}


@given(
    rows=st.lists(st.lists(CELLS, min_size=4, max_size=4), max_size=12),
    encoding=ENCODINGS,
    delimiter=st.sampled_from(",;\t|"),
    data=st.data(),
)
def test_any_csv_is_read_or_refused(rows: list[list[str]], encoding: str, delimiter: str, data: st.DataObject) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([["t", "v", "p", "y"], *rows, *[["word", "1 2", "", "ab"[n % 2]] for n in range(30)]])
    content = text.getvalue().encode(encoding, errors="replace")
    content = data.draw(mutations(content)) if data.draw(st.booleans()) else content
    with folder_with("t.csv", content) as path:
        read_everything(path, **COLUMNS, delimiter=delimiter)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    records=st.lists(st.dictionaries(st.sampled_from(["t", "v", "p", "y"]), VALUES), max_size=12),
    data=st.data(),
)
def test_any_json_lines_are_read_or_refused(records: list[dict[str, Any]], data: st.DataObject) -> None:
    good = [{"t": "word", "v": [1, 2], "y": "ab"[n % 2]} for n in range(30)]
    content = "".join(json.dumps(record) + "\n" for record in [*records, *good]).encode()
    content = data.draw(mutations(content)) if data.draw(st.booleans()) else content
    with folder_with("t.jsonl", content) as path:
        read_everything(path, **COLUMNS)


@given(st.data())
def test_any_parquet_file_is_read_or_refused(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.none() | st.text(max_size=8), min_size=5, max_size=30))
    count = len(texts)
    kinds = [pa.list_(pa.float32()), pa.list_(pa.list_(pa.int64())), pa.large_string(), pa.decimal128(5, 2)]
    kinds += [pa.struct([("a", pa.int8())]), pa.binary(), pa.map_(pa.string(), pa.int8()), pa.timestamp("us")]
    made = pa.table(
        {
            "t": pa.array(texts),
            "v": pa.nulls(count, data.draw(st.sampled_from(kinds))),
            "p": pa.array([""] * count),
            "y": pa.array([n % 2 for n in range(count)]),
        }
    )
    out = io.BytesIO()
    pq.write_table(made, out, compression=data.draw(st.sampled_from(["none", "snappy", "zstd"])))
    content = out.getvalue()
    content = data.draw(mutations(content)) if data.draw(st.booleans()) else content
    with folder_with("t.parquet", content) as path:
        check_bounded(lambda: read_everything(path, **COLUMNS))


def same(first: Any, second: Any) -> bool:
    """Equal, and NaN equal to NaN."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    return type(first) is type(second) and bool(first == second)


@given(VALUES)
def test_what_python_writes_as_json_is_read_back(value: Any) -> None:
    assert same(parse_json(json.dumps(value), constants=True), value)


@given(st.one_of(st.text(), mutations(b'{"a": [1, {"b": "\\u00e9", "a": [[]]}], "c": null, "d": -1.5e3}'), st.binary()))
def test_any_text_is_json_or_an_error(text: str | bytes) -> None:
    try:
        value = parse_json(text, constants=True)
    except JsonError as error:
        check_message(error)
    else:
        assert same(value, json.loads(text if isinstance(text, str) else text.decode("utf-8-sig")))


@given(st.integers(MAX_DEPTH - 3, MAX_DEPTH + 3) | st.integers(1, 2000), st.sampled_from(["[", '{"a":']))
def test_nesting_is_read_up_to_its_limit(depth: int, opening: str) -> None:
    text = opening * depth + "1" + {"[": "]"}.get(opening, "}") * depth
    if depth <= MAX_DEPTH:
        parse_json(text)
    else:
        with pytest.raises(JsonError, match=f"nested deeper than {MAX_DEPTH} levels"):
            parse_json(text)


@pytest.mark.skipif(not RECORDS, reason="there are no committed records")
@given(st.data())
def test_a_changed_record_reads_as_it_stands_or_not_at_all(data: st.DataObject) -> None:
    """Nothing is lost, made up or passed over: what is read is what the file says, field by field."""
    content = data.draw(st.sampled_from(RECORDS)).read_bytes()
    with folder_with("record.json", data.draw(mutations(content))) as path:
        try:
            record = read_record(path.parent)
        except FormatError as error:
            check_message(error)
            return
        said, read = loads(path.read_bytes(), "said"), plain(record)
        for name, value in said.items():
            assert _numbers_as_floats(read[name]) == _numbers_as_floats(plain(value)), name


def _numbers_as_floats(value: Any) -> str:
    """A field of floats reads 1 as 1.0: compared as the texts of what both are."""
    return json.dumps(value, default=str, sort_keys=True).replace(".0,", ",").replace(".0]", "]").replace(".0}", "}")


def _pickled(protocol: int) -> bytes:
    arrays = {
        "text": np.ones((2, 3, 4), np.float32),
        "id": np.array(["a", "b"], dtype=object),
        "labels": np.zeros((2, 1)),
    }
    return pickle.dumps({"train": {**arrays, "words": ["x", "y"], "more": ({1, 2}, 1 << 70, b"x")}}, protocol=protocol)


@given(st.sampled_from([0, 2, 4, 5]).flatmap(lambda protocol: mutations(_pickled(protocol))))
def test_any_change_of_a_pickle_is_read_or_refused(content: bytes) -> None:
    with folder_with("a.pkl", content) as path:
        check_bounded(lambda: load_plain(path), "DataError")


OPCODES = st.sampled_from([
    *(b"(", b"0", b"1", b"2", b"N", b"K\x01", b"]", b"}", b")", b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"a"),
    *(b"e", b"s", b"u", b"\x8f", b"\x90", b"\x91", b"q\x00", b"h\x00", b"q\x01", b"h\x01", b"\x94", b"R", b"b"),
    *(b"\x81", b"o", b"S'f8'\n", b"cnumpy\ndtype\n", b"cbuiltins\nset\n", b"cos\nsystem\n"),
    b"cnumpy.core.multiarray\nscalar\n",
    *(b"c_codecs\nencode\n", b"U\x04touc", b"\x8a\x09" + b"\xff" * 9, b"Q", b"\x93", b"\x97"),
    *(b"\x98", b"r\xff\xff\xff\xff", b"F1e999\n", b"\x88", b"I01\n", b"\x96" + bytes(7) + b"\x01"),
])  # fmt: skip


@given(st.lists(OPCODES, max_size=40))
def test_any_program_in_a_pickle_is_read_or_refused(program: list[bytes]) -> None:
    with folder_with("a.pkl", b"\x80\x04" + b"".join(program) + b".") as path:
        check_bounded(lambda: load_plain(path), "DataError")


@given(
    mutations(wav(bytes(range(200)))),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
)
def test_any_wav_file_is_read_or_refused(mutated: bytes, channels: int, frame: int, bits: int) -> None:
    heads = [
        wav(bytes(300), channels=c, frame=frame % 40, bits=bits % 70, coding=k)
        for c in (1, 2, channels)
        for k in (1, 3)
    ]
    for content in (mutated, *heads):
        with folder_with("a.wav", content) as path:
            try:
                samples, rate = SoundFile(path, path.parent).open()
                assert np.isfinite(samples).all()
                assert rate > 0
            except DataError as error:
                check_message(error)


def _csd() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as made:
        folder = mosei_folder(Path(made), "csd")
        return {file.name: file.read_bytes() for file in folder.iterdir()}


CSD = _csd()


@given(st.sampled_from(sorted(name for name in CSD if name.endswith(".csd"))), st.data())
def test_any_change_of_a_csd_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        for each, content in CSD.items():
            (Path(made) / each).write_bytes(data.draw(mutations(content)) if each == name else content)
        check_bounded(lambda: mosei(Path(made), findings=Findings("skip")), "DataError")
        assert sorted(os.listdir(made)) == sorted(CSD)


PICTURES = {form: saved(form) for form in PICTURE_FORMATS}
PICTURE_ERRORS = ("DataError", "NoPictureError", "TooManyPixelsError")


@pytest.mark.parametrize("form", PICTURES)
@given(data=st.data())
def test_any_change_of_a_picture_is_read_or_refused(form: str, data: st.DataObject) -> None:
    with folder_with("a.jpg", data.draw(mutations(PICTURES[form]))) as path:
        check_bounded(PictureFile(path, path.parent).open, *PICTURE_ERRORS)


@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    assert shown(text, 100).isprintable()
    assert len(shown(text, 100)) <= 100
    assert shown(shown(text, 100), 100) == shown(text, 100)


def test_the_file_that_is_changed_is_one_that_is_read(tmp_path: Path) -> None:
    """Else all of the above would only show that wrong files are refused."""
    for name, content in CSD.items():
        (tmp_path / name).write_bytes(content)
    assert len(mosei(tmp_path).splits["train"])
    assert h5py.is_hdf5(tmp_path / "CMU_MOSEI_COVAREP.csd")
    (tmp_path / "a.pkl").write_bytes(_pickled(4))
    assert load_plain(tmp_path / "a.pkl")["train"]["text"].shape == (2, 3, 4)
