"""Hostile files end in one sentence, within two seconds and in little memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounded import Outcome, attempt, needs_fork
from data.hostile_files import EPS, JSONS, PICKLES, PICTURES, WAVS, hdf5_cases, png, saved
from data.more_folders import mosei_folder
from data.table_cases import as_csv
from PIL import Image

from meq.data import table_files
from meq.data.content import PictureFile, SoundFile
from meq.data.files import MAX_LINE_BYTES, json_lines, read_json
from meq.data.findings import DataError, Findings
from meq.data.mosei import mosei
from meq.data.pickles import load_plain
from meq.data.pictures import MAX_PICTURE_BYTES
from meq.data.sound import MAX_WAV_BYTES
from meq.data.table import table
from meq.errors import LONGEST, shown
from meq.records import FormatError, loads

pytestmark = needs_fork


def check_sentence(outcome: Outcome, kind: str = "DataError") -> None:
    """One line, not long, nothing in it that moves a cursor."""
    assert outcome.error == kind, outcome
    assert outcome.message.isprintable(), repr(outcome.message)
    assert 10 < len(outcome.message) <= LONGEST
    assert "MemoryError" not in outcome.message


def written(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("case", PICKLES)
def test_a_hostile_pickle_ends_in_a_sentence(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, "data.pkl", PICKLES[case])
    check_sentence(attempt(lambda: load_plain(path)))


@pytest.mark.parametrize("content", [b"\x80\x02]r\xff\xff\xff\xff.", b"(lp99999999999\n."])
def test_a_far_place_in_the_memo_takes_no_memory(content: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, "data.pkl", content)
    assert load_plain(path) == []
    assert attempt(lambda: load_plain(path), megabytes=50).error is None


@pytest.mark.parametrize("case", PICTURES)
def test_a_hostile_picture_ends_in_a_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    picture = PictureFile(written(tmp_path, "a.jpg", PICTURES[case]), tmp_path)
    outcome = attempt(picture.open)
    assert outcome.error is None or outcome.error.endswith("Error")
    if case not in ("notes without end", "text that unpacks", "profile that unpacks"):  # only their notes are hostile
        assert outcome.error in ("DataError", "NoPictureError", "TooManyPixelsError"), outcome
        assert "a.jpg: " in outcome.message
    assert outcome.message.isprintable()
    assert len(outcome.message) <= LONGEST
    assert attempt(lambda: picture.size()).error in (None, "DataError", "NoPictureError", "TooManyPixelsError")
    assert os.listdir(tmp_path) == ["a.jpg"], "nothing was started that writes files"


def test_postscript_is_not_handed_to_ghostscript_whatever_its_name(tmp_path: Path) -> None:
    picture = PictureFile(written(tmp_path, "a.jpg", EPS), tmp_path)
    with pytest.raises(DataError, match="it is no PNG, JPEG, WEBP, GIF, BMP or TIFF file; convert it"):
        picture.open()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_formats_that_are_read_are_read(form: str, tmp_path: Path) -> None:
    picture = PictureFile(written(tmp_path, "a.any", saved(form)), tmp_path)
    assert (picture.open().size, picture.open().mode, picture.size()) == ((24, 16), "RGB", (24, 16))


@pytest.mark.parametrize("case", WAVS)
def test_a_hostile_sound_ends_in_a_sentence(case: str, tmp_path: Path) -> None:
    sound = SoundFile(written(tmp_path, "a.wav", WAVS[case]), tmp_path)
    check_sentence(attempt(sound.open))


@pytest.mark.parametrize("case", JSONS)
def test_hostile_json_ends_in_a_sentence_wherever_it_is_read(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, "folds.json", JSONS[case])
    check_sentence(attempt(lambda: read_json(path)))
    check_sentence(attempt(lambda: loads(JSONS[case], "record.json")), "FormatError")
    folder = mosei_folder(tmp_path / "set", "csd")
    written(folder, "folds.json", JSONS[case])
    check_sentence(attempt(lambda: mosei(folder)))
    if case not in ("NaN", "Infinity", "UTF-16", "empty"):  # which are missing numbers, several lines, and no line
        lines = written(tmp_path, "a.jsonl", JSONS[case] + b"\n")
        check_sentence(attempt(lambda: list(json_lines(lines, Findings()))))
        left_out = Findings("skip")
        assert list(json_lines(lines, left_out)) == []
        assert len(left_out) == 1


def test_a_key_that_is_there_twice_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "folds.json", JSONS["key twice"])
    with pytest.raises(DataError, match="the key 'train' is there twice"):
        read_json(path)
    with pytest.raises(FormatError, match="the key 'train' is there twice"):
        loads(JSONS["key twice"], "record.json")


def hostile_csd(folder: Path, write: Callable[[h5py.Group], None]) -> None:
    """The features of the first video's pictures replaced by something else."""
    with h5py.File(folder / "CMU_MOSEI_VisualFacet42.csd", "r+") as file:
        data = file[next(iter(file))]["data"]
        for video in data:
            del data[video]["features"]
            write(data[video])


HDF5 = list(hdf5_cases(Path("x")))


@pytest.mark.parametrize("case", HDF5)
def test_a_hostile_csd_file_ends_in_a_sentence(case: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.zeros((3, 3), np.float32)
    folder = mosei_folder(tmp_path, "csd")
    hostile_csd(folder, hdf5_cases(secret)[case])
    check_sentence(attempt(lambda: mosei(folder)))


def special(folder: Path, name: str, kind: str) -> Path:
    """Something that is no file, under a file's name."""
    path = folder / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "circle": path, "nowhere": folder / "nothing"}[kind])
    return path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "circle", "nowhere"])
def test_what_is_no_file_is_never_read(kind: str, tmp_path: Path) -> None:
    """The root is the file system's, so that it is not the symlink that is refused."""
    root = Path("/")
    readers: dict[str, Callable[[Path], Any]] = {
        "a.png": lambda path: PictureFile(path, root).open(),
        "b.png": lambda path: PictureFile(path, root).fingerprint(),
        "c.png": lambda path: PictureFile(path, root).size(),
        "a.wav": lambda path: SoundFile(path, root).open(),
        "b.wav": lambda path: SoundFile(path, root).fingerprint(),
        "a.pkl": load_plain,
        "a.json": read_json,
        "a.jsonl": lambda path: list(json_lines(path, Findings())),
        "a.csv": lambda path: table(path, texts="t", label="y"),
        "a.parquet": lambda path: table(path, texts="t", label="y"),
    }
    for name, read in readers.items():
        path = special(tmp_path, name, kind)
        check_sentence(attempt(lambda read=read, path=path: read(path)))  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_table_that_names_a_pipe_or_a_device_leaves_the_row_out(kind: str, tmp_path: Path) -> None:
    special(tmp_path, "bad.png", kind)
    for n in range(20):
        Image.new("RGB", (4, 4), (n, 0, 0)).save(tmp_path / f"{n}.png")
    names = [f"{n}.png" for n in range(20)] + ["bad.png"]
    path = as_csv(tmp_path, [{"p": name, "y": n % 2} for n, name in enumerate(names)])
    findings = Findings("skip")
    assert table(path, images="p", label="y", findings=findings).facts["rows"] == 20
    assert [finding.line for finding in findings] == [22]


def test_files_that_are_too_large_are_refused_before_they_are_read(tmp_path: Path) -> None:
    for name, size in (("a.png", MAX_PICTURE_BYTES), ("a.wav", MAX_WAV_BYTES)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(100 * size)
    picture, sound = PictureFile(tmp_path / "a.png", tmp_path), SoundFile(tmp_path / "a.wav", tmp_path)
    for read in (picture.open, picture.fingerprint, sound.open, sound.seconds, sound.fingerprint):
        outcome = attempt(read, megabytes=100)
        check_sentence(outcome)
        assert "more than the 268,435,456 that are read" in outcome.message


def test_a_line_without_end_is_left_out_and_the_next_one_is_read(tmp_path: Path) -> None:
    with (tmp_path / "t.jsonl").open("wb") as file:
        file.write(b'{"t": "a", "y": 1}\n')
        file.seek(10 * MAX_LINE_BYTES)
        file.write(b'\n{"t": "b", "y": 2}\n')
    findings = Findings("skip")
    assert [line for line, _ in json_lines(tmp_path / "t.jsonl", findings)] == [1, 3]
    assert [str(finding) for finding in findings] == [
        f"{tmp_path}/t.jsonl, line 2: a line of more than {MAX_LINE_BYTES:,} bytes, which is not read"
    ]
    outcome = attempt(lambda: list(json_lines(tmp_path / "t.jsonl", Findings())), megabytes=200)
    check_sentence(outcome)
    (tmp_path / "t.csv").write_bytes(b"t,y\nb,2\n" + b"a" * (MAX_LINE_BYTES + 10) + b",1\na,1\n")
    findings = Findings("skip")
    with pytest.raises(DataError):  # two rows are too few to split, but they were read
        table(tmp_path / "t.csv", texts="t", label="y", findings=findings)
    assert [(finding.kind, finding.line) for finding in findings] == [("long line", 3)]


def test_a_million_columns_and_names_without_end_are_no_hindrance(tmp_path: Path) -> None:
    names = ",".join(f"c{n}" for n in range(300_000))
    wide = written(tmp_path, "wide.csv", f"t,y,{names}\n".encode())
    outcome = attempt(lambda: table(wide, texts="tt", label="y"), seconds=4)
    check_sentence(outcome)
    long = written(tmp_path, "long.csv", b"t,y," + b"x_" + b"9" * 5000 + b",x_10,x_9\na,1,2,3,4\n")
    check_sentence(attempt(lambda: table(long, vectors="x_*", texts="t", label="y", findings=Findings("skip"))))
    check_sentence(attempt(lambda: table(long, texts="t" * 50_000, label="y")))


def test_large_pictures_are_decoded_in_bounded_memory(tmp_path: Path) -> None:
    """The largest PNG that is read at all."""
    picture = PictureFile(written(tmp_path, "a.png", png(8000, 9999, bytes(8000 * 9999 * 3 + 9999))), tmp_path)
    outcome = attempt(picture.open, megabytes=900, seconds=10)
    assert (outcome.error, outcome.message) == (None, "")


@pytest.mark.parametrize("text", ["\x1b[2J\x1b]0;title\x07", "a\nb\rc\td", "\u202egnp.exe", "\x9b31m", "\ud800", "\0"])
def test_foreign_text_is_shown_without_what_moves_a_cursor(text: str) -> None:
    assert shown(text).isprintable()
    assert shown(shown(text)) == shown(text)
    assert str(DataError(text * 1000, text)).replace("\n  ", "").isprintable()
    assert len(str(DataError(text * 1000))) <= LONGEST
    assert str(FormatError(text * 1000)).isprintable()


def test_the_middle_of_a_long_message_is_lost_and_not_its_ends() -> None:
    said = str(DataError(f"data.csv: {'x' * 5000}; save it as UTF-8"))
    assert said.startswith("data.csv: xxx")
    assert said.endswith("; save it as UTF-8")


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"y": [0, 1] * 20, **columns}), folder / "t.parquet")
    return folder / "t.parquet"


def test_parquet_that_claims_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path, t=["a" * 100] * 40, v=pa.array([[1.0] * 1000] * 40))
    with monkeypatch.context() as limits:
        limits.setattr(table_files, "MAX_ROWS", 39)
        with pytest.raises(DataError, match=r"t\.parquet: it says 40 rows; at most 39 are read, split it"):
            table(path, texts="t", label="y")
    monkeypatch.setattr(table_files, "MAX_GROUP_BYTES", 100_000)
    table(path, texts="t", label="y")
    with pytest.raises(DataError, match=r"row group 0 says 160,000 bytes of 'v.list.element'; at most 100,000"):
        table(path, texts="t", vectors="v", label="y")


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([{"a": {"b": [1]}}] * 40),
        pa.array([b"\xff\xd8"] * 40),
        pa.array([[("a", 1)]] * 40, pa.map_(pa.string(), pa.int64())),
        pa.array([[[{"a": 1}]]] * 40),
    ],
    ids=["structures", "bytes", "maps", "structures in lists"],
)
def test_parquet_of_nested_types_is_a_sentence(cells: Any, tmp_path: Path) -> None:
    path = parquet(tmp_path, t=cells)
    for columns in ({"texts": "t"}, {"vectors": "t"}, {"images": "t"}):
        with pytest.raises(DataError, match=r"column 't' is of type .*; only numbers, texts and lists of them"):
            table(path, label="y", **columns)


def test_parquet_that_is_encrypted_or_broken_is_a_sentence(tmp_path: Path) -> None:
    whole = parquet(tmp_path, t=["word"] * 40).read_bytes()
    places, letters = pa.py_buffer(np.arange(41, dtype=np.int32)), pa.py_buffer(b"\xff" * 40)  # no UTF-8
    invalid = pa.Array.from_buffers(pa.string(), 40, [None, places, letters])
    broken = parquet(tmp_path, t=invalid).read_bytes()
    for content in (
        b"PARE" + whole[4:-4] + b"PARE",
        whole[:200],
        whole[:-120] + b"\xff" * 112 + whole[-8:],
        b"",
        broken,
    ):
        path = written(tmp_path, "t.parquet", content)
        check_sentence(attempt(lambda path=path: table(path, texts="t", label="y")))  # type: ignore[misc]
