"""Tables in memory are written once, and errors name their rows as their owners do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from meq.data.findings import DataError, Finding, Findings
from meq.data.frames import TABLE, frame_of
from meq.data.table_files import open_table


def rows_of(data: Any, folder: Path) -> list[list[Any]]:
    frame = frame_of(data)
    assert frame is not None
    file = open_table(frame.write(folder).path)
    return [cells for _, cells in file.rows(file.columns(), Findings())]


def test_a_data_frame_a_list_and_a_dataset_become_the_same_table(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"words": "a", "n": 1.5, "v": [1.0, 2.0]}, {"words": None, "n": None, "v": [3.0, 4.0]}]
    dataset = datasets.Dataset.from_list(rows)
    given = [pandas.DataFrame(rows, index=["x", "y"]), rows, dataset, dataset.with_format("numpy")]
    tables = [rows_of(each, tmp_path / str(number)) for number, each in enumerate(given)]
    for cells in tables:
        assert [row[:2] for row in cells] == [["a", 1.5], [None, None]]
        assert [row[2].tolist() for row in cells] == [[1.0, 2.0], [3.0, 4.0]]


def test_what_pandas_calls_nothing_is_an_empty_cell_and_other_kinds_are_texts(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "a": [pandas.NA, "x"],
            "b": [pandas.NaT, pandas.Timestamp("2024-01-02")],
            "c": [1, "one"],
            "d": [math.inf, 1.0],
            7: np.arange(2, dtype=np.int8),
            "e": [Path("p.png"), None],
        }
    )
    assert rows_of(frame, tmp_path) == [
        [None, None, "1", math.inf, 0, "p.png"],
        ["x", "2024-01-02 00:00:00", "one", 1.0, 1, None],
    ]


def test_classes_of_a_dataset_are_told_by_their_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    labels = datasets.Features({"y": datasets.ClassLabel(names=["no", "yes"])})
    assert rows_of(datasets.Dataset.from_dict({"y": [1, 0]}, features=labels), tmp_path) == [["yes"], ["no"]]


def test_pictures_in_cells_are_written_beside_the_table(tmp_path: Path) -> None:
    frame = frame_of([{"p": Image.new("RGB", (4, 4), (200, 0, 0)), "t": "a"}, {"p": None, "t": "b"}])
    assert frame is not None
    written = frame.write(tmp_path)
    assert written.root == tmp_path
    assert rows_of([{"p": "pictures/p-000000.png", "t": "a"}], tmp_path / "same") == [["pictures/p-000000.png", "a"]]
    with Image.open(tmp_path / "pictures" / "p-000000.png") as picture:
        assert picture.getpixel((1, 1)) == (200, 0, 0)
    mixed = frame_of([{"p": Image.new("RGB", (4, 4))}, {"p": "a.png"}])
    assert mixed is not None
    with pytest.raises(DataError, match="the list, row 1: column 'p' holds a str among pictures"):
        mixed.write(tmp_path / "mixed")


def test_errors_about_the_file_are_told_about_the_rows_of_the_frame(tmp_path: Path) -> None:
    frame = frame_of(pandas.DataFrame({"a": [1, 2]}, index=["first", "second"]))
    assert frame is not None
    file = frame.write(tmp_path)
    with pytest.raises(DataError, match=r"^the DataFrame, row 'second': column 'a' is odd$"), file.named_rows():
        raise DataError(f"{tmp_path / TABLE}, line 2: column 'a' is odd")
    found = file.named(Finding(kind="odd", message="is odd", file=str(file.path), line=1))
    assert str(found) == "the DataFrame, row 'first': is odd"


def test_a_column_of_lists_and_single_values_is_an_error_with_its_row(tmp_path: Path) -> None:
    frame = frame_of([{"v": 1.0}, {"v": [1.0, 2.0]}])
    assert frame is not None
    with pytest.raises(DataError, match="the list, row 1: column 'v' holds a list among single values"):
        frame.write(tmp_path)
    assert not (tmp_path / TABLE).exists()


def test_what_holds_no_table_is_told_from_what_is_none() -> None:
    datasets = pytest.importorskip("datasets")
    assert frame_of("photos.csv") is None
    assert frame_of([1, 2]) is None
    assert frame_of([]) is None
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        frame_of(pandas.DataFrame({"a": []}))
    with pytest.raises(DataError, match="several columns called 'a'"):
        frame_of(pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    both = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]})})
    with pytest.raises(DataError, match=r"several splits \(train\): give one of them"):
        frame_of(both)
