from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meq.data.findings import DataError, Findings
from meq.data.table_files import is_table, open_table


def written(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(path: Path, *columns: str, on_bad: str = "raise", delimiter: str | None = None) -> list[tuple[int, list[Any]]]:
    return list(open_table(path, delimiter=delimiter).rows(columns, Findings(on_bad=on_bad)))


def found(path: Path, *columns: str) -> tuple[list[int], list[tuple[str, int | None]]]:
    """The lines that were read, and kind and line of what was not."""
    findings = Findings(on_bad="skip")
    lines = [line for line, _ in open_table(path).rows(columns, findings)]
    return lines, [(finding.kind, finding.line) for finding in findings]


def test_cells_come_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,c\n1,2,3\n4,5,6\n")
    assert rows(path, "c", "a") == [(2, ["3", "1"]), (3, ["6", "4"])]


def test_a_line_break_in_quotes_does_not_shift_the_lines_after_it(tmp_path: Path) -> None:
    path = written(tmp_path, 'a,b\n"two\nlines",1\nx,2\n')
    assert rows(path, "a") == [(2, ["two\nlines"]), (4, ["x"])]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_cells(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4\r\n")
    assert rows(path, "a", "b") == [(2, ["1", "2"]), (4, ["3", "4"])]


def test_a_tsv_is_separated_by_tabs_and_a_delimiter_can_be_given(tmp_path: Path) -> None:
    assert rows(written(tmp_path, "a\tb\n1,5\t2\n", "t.tsv"), "a") == [(2, ["1,5"])]
    assert rows(written(tmp_path, "a;b\n1,5;2\n"), "a", delimiter=";") == [(2, ["1,5"])]


def test_a_wrong_delimiter_is_guessed_in_the_error(tmp_path: Path) -> None:
    file = open_table(written(tmp_path, "photo;caption\na.jpg;x\n"))
    with pytest.raises(DataError, match="separated by ';'"):
        file.expand(["photo"])


@pytest.mark.parametrize("delimiter", ["", "::", '"', "\n"])
def test_a_delimiter_is_one_character(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(DataError, match="one character"):
        open_table(written(tmp_path, "a,b\n"), delimiter=delimiter)


def test_a_row_of_another_length_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,2\n1,2,3\n1\n5,6\n")
    with pytest.raises(DataError, match=r"t\.csv, line 3: 3 cells, the header has 2"):
        rows(path, "a")
    assert found(path, "a") == ([2, 5], [("wrong CSV", 3), ("wrong CSV", 4)])


def test_a_quote_that_is_never_closed_is_named_where_it_opens(tmp_path: Path) -> None:
    path = written(tmp_path, 'a,b\n1,2\n"open,3\n4,5\n')
    with pytest.raises(DataError, match=r"line 3: a quote that opens here is never closed"):
        rows(path, "a")


def test_text_after_a_closing_quote_is_wrong(tmp_path: Path) -> None:
    assert found(written(tmp_path, 'a,b\n"x"y,2\n3,4\n'), "a") == ([3], [("wrong CSV", 2)])


def test_a_huge_cell_is_reported_and_the_limit_of_csv_stays_as_it_was(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = written(tmp_path, f"a,b\n{'x' * (limit + 1)},2\n3,4\n")
    with pytest.raises(DataError, match="as JSONL or Parquet"):
        rows(path, "b")
    assert found(path, "b") == ([3], [("wrong CSV", 2)])
    assert csv.field_size_limit() == limit


def test_a_byte_that_is_no_utf8_is_named_with_line_and_place(tmp_path: Path) -> None:
    path = written(tmp_path, b"a,b\n1,2\ncaf\xe9,3\n4,5\n")
    with pytest.raises(DataError, match=r"line 3: not UTF-8 at byte 11 of the file \(0xe9\)"):
        rows(path, "a")
    assert found(path, "a") == ([2, 4], [("wrong encoding", 3)])


def test_the_place_of_a_wrong_byte_counts_the_byte_order_mark(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfa,b\n\xff,3\n"
    with pytest.raises(DataError, match=f"at byte {content.index(0xFF)} "):
        rows(written(tmp_path, content), "a")


def test_a_wrong_byte_inside_a_row_of_several_lines_costs_that_row_only(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b\n"one\n\xff",2\n3,4\n')
    assert found(path, "a") == ([4], [("wrong encoding", 3)])


def test_a_row_that_is_wrong_in_two_ways_costs_no_other_row(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b\n"x"\xff,2\n3,4\n')
    assert found(path, "a") == ([3], [("wrong CSV", 2)])


def test_utf16_and_nul_bytes_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="UTF-16"):
        open_table(written(tmp_path, "a,b\n1,2\n".encode("utf-16"))).columns()
    assert found(written(tmp_path, b"a,b\n1\0,2\n3,4\n"), "a") == ([3], [("wrong encoding", 2)])


@pytest.mark.parametrize("content", ["", "\n", ",,\n1,2,3\n"])
def test_a_csv_without_a_header_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="must name the columns"):
        open_table(written(tmp_path, content)).columns()


def test_a_column_name_that_occurs_twice_is_an_error_and_nameless_columns_are_not(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="several columns called 'a'"):
        open_table(written(tmp_path, "a,b,a\n1,2,3\n")).columns()
    assert rows(written(tmp_path, ",a,\n0,1,\n"), "a") == [(2, ["1"])]


def test_an_unknown_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    for name, content in (("t.csv", "caption,y\na,b\n"), ("t.jsonl", '{"caption": "a", "y": 1}\n')):
        with pytest.raises(DataError, match="no column 'captoin': did you mean 'caption'"):
            open_table(written(tmp_path, content, name)).expand(["captoin"])


def test_a_pattern_stands_for_columns_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    file = open_table(written(tmp_path, "x_10,x_2,y,x_1\n1,2,3,4\n"))
    assert file.expand(["x_*", "y"]) == {"x_*": ["x_1", "x_2", "x_10"], "y": ["y"]}
    with pytest.raises(DataError, match="no column 'z_\\*'"):
        file.expand(["z_*"])


def test_files_are_known_by_their_suffix(tmp_path: Path) -> None:
    assert is_table("A/B.CSV")
    assert is_table("b.ndjson")
    assert not is_table("c.xlsx")
    with pytest.raises(DataError, match=r"\.csv, \.tsv, \.jsonl"):
        open_table(written(tmp_path, "", "t.xlsx"))
    with pytest.raises(DataError, match="no such file"):
        open_table(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="delimiter is for"):
        open_table(written(tmp_path, "{}", "t.jsonl"), delimiter=",")


def test_jsonl_lines_may_lack_keys_and_have_them_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": 1, "b": [1, 2]}\n\n{"b": null}\n{"c": true, "a": "x"}\n', "t.jsonl")
    assert rows(path, "a", "b", "c") == [(1, [1, [1, 2], None]), (3, [None, None, None]), (4, ["x", None, True])]
    assert open_table(path).columns() == ["a", "b", "c"]


def test_wrong_json_is_named_with_its_line(tmp_path: Path) -> None:
    lines = [b'{"a": 1}', b'{"a": ', b"[1]", b'{"a": "\xff"}', b"[" * 100_000, b'{"a": 2}']
    path = written(tmp_path, b"\n".join(lines), "t.jsonl")
    kinds = [("wrong JSON", 2), ("wrong JSON", 3), ("wrong JSON", 4), ("wrong JSON", 5)]
    assert found(path, "a") == ([1, 6], kinds)
    with pytest.raises(DataError, match=r"t\.jsonl, line 2: not JSON"):
        rows(path, "a")


def test_parquet_gives_numbers_texts_and_lists(tmp_path: Path) -> None:
    columns = {
        "n": pa.array([1, None]),
        "t": pa.array(["x", "y"]).dictionary_encode(),
        "v": pa.array([[1.0, 2.0], None], pa.list_(pa.float32())),
        "f": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        "m": pa.array([[[1.0], [2.0]], []], pa.list_(pa.list_(pa.float64()))),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    (first, one), (second, two) = rows(tmp_path / "t.parquet", "t", "n", "v", "f", "m")
    assert (first, second) == (1, 2)
    assert one[:2] == ["x", 1]
    assert two[:3] == ["y", None, None]
    assert isinstance(one[2], np.ndarray)
    assert one[2].tolist() == [1, 2]
    assert two[3].tolist() == [3, 4]
    assert one[4] == [[1], [2]]
    assert two[4] == []


def test_parquet_rows_are_counted_across_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(10_000)}), tmp_path / "t.parquet", row_group_size=3_000)
    read = rows(tmp_path / "t.parquet", "a")
    assert [line for line, _ in read] == list(range(1, 10_001))
    assert read[-1] == (10_000, [9_999])


@pytest.mark.parametrize("kind", [pa.struct([("bytes", pa.binary())]), pa.binary(), pa.map_(pa.string(), pa.int32())])
def test_parquet_structures_and_bytes_are_refused_with_their_type(tmp_path: Path, kind: Any) -> None:
    pq.write_table(pa.table({"a": [1], "image": pa.array([None], kind)}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column 'image' is of type"):
        rows(tmp_path / "t.parquet", "image")
    assert rows(tmp_path / "t.parquet", "a") == [(1, [1])]  # a column that nobody asks for does no harm


def test_a_broken_parquet_file_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a readable Parquet file"):
        open_table(written(tmp_path, "a,b\n1,2\n", "t.parquet")).columns()
    pq.write_table(pa.table({"a": np.random.default_rng(0).normal(size=20_000)}), tmp_path / "u.parquet")
    whole = (tmp_path / "u.parquet").read_bytes()
    (tmp_path / "u.parquet").write_bytes(b"PAR1" + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(DataError, match="broken after row"):
        rows(tmp_path / "u.parquet", "a")


def test_the_three_formats_agree(tmp_path: Path) -> None:
    records = [{"t": f"word {n}", "u": f"ü, {n}"} for n in range(5)]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["t", "u"])
        writer.writeheader()
        writer.writerows(records)
    written(tmp_path, "\n".join(map(json.dumps, records)), "t.jsonl")
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "t.parquet")
    read = [[cells for _, cells in rows(tmp_path / f"t.{kind}", "u", "t")] for kind in ("csv", "jsonl", "parquet")]
    assert read[0] == read[1] == read[2] == [[r["u"], r["t"]] for r in records]


def test_a_file_of_which_no_line_can_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 100_000 + "\n{broken\n")
    with pytest.raises(DataError, match=r"no line of it can be read[\s\S]*line 1") as caught:
        open_table(path).expand(["text"])
    assert "no column" not in str(caught.value)


# -- packed tables -----------------------------------------------------------------------------------------------------


def packed(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv.gz", b"a,b\n1,x\n2,y\n"),
        ("t.tsv.gz", b"a\tb\n1\tx\n2\ty\n"),
        ("t.CSV.GZ", b"\xef\xbb\xbfa,b\n1,x\n2,y\n"),
        ("t.jsonl.gz", b'{"a": "1", "b": "x"}\n{"a": "2", "b": "y"}\n'),
    ],
)
def test_a_packed_table_reads_as_the_table_it_holds(name: str, content: bytes, tmp_path: Path) -> None:
    path = packed(tmp_path / name, content)
    plain = tmp_path / name.lower().removesuffix(".gz")
    plain.write_bytes(content)
    assert is_table(path)
    assert open_table(path).columns() == ["a", "b"]
    assert rows(path, "a", "b") == rows(plain, "a", "b")


def test_a_packed_table_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meq.data.files.FREE_BYTES", 2**16)
    bomb = packed(tmp_path / "t.csv.gz", b"a,b\n" + b"1,x\n" * 2**18)
    assert bomb.stat().st_size * 200 < 2**20
    with pytest.raises(DataError, match=r"t.csv.gz: it unpacks to more than [\d,]+ bytes"):
        rows(bomb, "a")
    lines = packed(tmp_path / "t.jsonl.gz", b'{"a": 1}\n' * 2**17)
    with pytest.raises(DataError, match="it unpacks to more than"):
        rows(lines, "a")


def test_a_packed_table_that_is_damaged_or_not_packed_is_an_error_that_names_it(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(1000)))
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.csv.gz").write_bytes(b"a,b\n1,x\n")
    for name in ("cut.csv.gz", "plain.csv.gz"):
        with pytest.raises(DataError, match=f"{name}: not a whole gzip file, or damaged"):
            rows(tmp_path / name, "a")
    with pytest.raises(DataError, match=r"not '.txt.gz'"):
        open_table(tmp_path / "t.txt.gz")
    assert not is_table("archive.gz")
