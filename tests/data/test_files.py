from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from meq.data.contract import filled
from meq.data.files import BadRowError, json_lines, read_json, read_rows, text_of
from meq.data.findings import DataError, Findings


class Row(NamedTuple):
    id: str


def written(path: Path, content: bytes) -> Path:
    file = path / "rows.jsonl"
    file.write_bytes(content)
    return file


def test_lines_are_counted_from_one_and_blank_ones_are_no_fault(tmp_path: Path) -> None:
    file = written(tmp_path, b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2}\n  \n')
    assert list(json_lines(file, Findings())) == [(1, {"a": 1}), (3, {"a": 2})]


def test_a_last_line_without_an_end_is_read(tmp_path: Path) -> None:
    assert list(json_lines(written(tmp_path, b'{"a": 1}\n{"a": 2}'), Findings()))[-1] == (2, {"a": 2})


def test_separators_inside_a_text_do_not_split_a_line(tmp_path: Path) -> None:
    file = written(tmp_path, '{"a": "one\u2028two\x85"}\n{"a": "three"}\n'.encode())
    assert [line for line, _ in json_lines(file, Findings())] == [1, 2]


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        (b'{"a": 1', "wrong JSON", "not JSON"),
        (b"\xff\xfe", "wrong JSON", "not UTF-8 at byte 0"),
        (b"[1, 2]", "wrong JSON", "a list"),
        (b'"text"', "wrong JSON", "a text"),
        (b"[" * 100_000, "wrong JSON", "nested deeper than 64 levels"),
        (b"1" * 5000, "wrong JSON", "a number of thousands of digits"),
        (b'{"a": 1, "a": 2}', "wrong JSON", "the key 'a' is there twice"),
        (b'{"b": 1}', "missing key", "'a'"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, bad: bytes, kind: str, says: str) -> None:
    file = written(tmp_path, b'{"a": 1}\n' + bad + b'\n{"a": 3}\n')
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2: .*{says}"):
        list(json_lines(file, Findings(), required=("a",)))
    findings = Findings("skip")
    assert [line for line, _ in json_lines(file, findings, required=("a",))] == [1, 3]
    assert findings.counts == {kind: 1}
    assert [finding.line for finding in findings] == [2]


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read"):
        list(json_lines(tmp_path / "gone.jsonl", Findings()))
    with pytest.raises(DataError, match=r"gone\.json: cannot be read"):
        read_json(tmp_path / "gone.json")


def test_rows_name_the_line_of_the_first_use_of_an_id(tmp_path: Path) -> None:
    file = written(tmp_path, b'{"id": "x"}\n{"id": "y"}\n{"id": "x"}\n')
    with pytest.raises(DataError, match=r"line 3: the id 'x' was used before, in line 1"):
        read_rows(file, Findings(), parse=lambda _, record: Row(record["id"]))
    findings = Findings("skip")
    assert read_rows(file, findings, parse=lambda _, record: Row(record["id"])) == [Row("x"), Row("y")]
    assert findings.counts == {"duplicate id": 1}


def test_rows_can_be_left_out_on_purpose_and_be_limited_to_the_first(tmp_path: Path) -> None:
    file = written(tmp_path, b'{"id": "a"}\n{"id": "b"}\n{"id": "c"}\n')

    def parse(_: int, record: Any) -> Row | None:
        return None if record["id"] == "a" else Row(record["id"])

    assert read_rows(file, Findings(), parse=parse) == [Row("b"), Row("c")]
    assert read_rows(file, Findings(), parse=parse, first=2) == [Row("b")]


@pytest.mark.parametrize(
    ("value", "kind"), [(" \t", "empty text"), (None, "wrong type"), (["a"], "wrong type"), ("\ud83d", "wrong type")]
)
def test_a_text_is_there_and_can_be_written(value: object, kind: str) -> None:
    with pytest.raises(BadRowError) as caught:
        text_of({"caption": value}, "caption")
    assert caught.value.kind == kind
    assert "caption" in str(caught.value)


def test_a_text_keeps_its_odd_characters() -> None:
    assert text_of({"caption": " naïve 🦜 @ "}, "caption") == " naïve 🦜 @ "


@pytest.mark.parametrize(
    ("content", "says"), [(b'{"a":\n 1,}', r"line 2, column \d+: not JSON"), (b"\xff", "not UTF-8")]
)
def test_a_document_that_is_not_json_says_where(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_json(written(tmp_path, content))


def test_splits_without_rows_are_absent_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    findings = Findings("skip")
    findings.report("wrong label", "no such label", file="rows.jsonl")
    with pytest.raises(DataError, match=r"no row can be used \(wrong label: 1\)"):
        filled({"train": []}, findings, root=tmp_path)
    assert findings.absent == ["train: its file holds no row that can be used"]
