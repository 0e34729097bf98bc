from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data.table_cases import as_csv, photos, skipped

from meq.data.findings import DataError, Findings
from meq.data.request import DataRequest, parse_options
from meq.data.table import TableSchema, new_rows, table


def rows(folder: Path, photo: Any, **others: Any) -> Path:
    """Forty rows; what each holds is made from its number."""
    caption = others.get("caption", lambda n: f"photo {n}")
    label = others.get("label", lambda n: "ab"[n % 2])
    return as_csv(folder, [{"photo": photo(n), "caption": caption(n), "y": label(n)} for n in range(40)], "bad.csv")


CASES = {
    "root": (lambda n: f"{n}.png", r"'0.png' lies in .*img: give that as root"),
    "deeper": (lambda n: f"here/img/{n}.png", r"lies in .*: give that as root"),
    "ending": (lambda n: f"img/{n}", r"the names lack their ending: there is a picture 'img/0.png'"),
    "addresses": (lambda n: f"https://example.org/{n}.png", "holds addresses: download the pictures first"),
    "absolute": (lambda n: f"/nowhere/at/all/{n}.png", r"outside of .*: give /nowhere/at/all as root"),
    "windows": (lambda n: f"D:\\photos\\{n}.png", "absolute and lie outside"),
    "up": (lambda n: f"../{n}.png", r"go up with '\.\.'"),
    "swapped": (lambda n: f"a photo of {n} cats.", "read like texts, not like paths: are the columns swapped"),
    "nowhere": (lambda n: f"none/{n}.jpg", r"is .* the folder that the paths in 'photo' start from"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_table_of_bad_rows_says_why_and_what_to_do(case: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    photos(here)
    photo, remedy = CASES[case]
    path = rows(here, photo)
    with pytest.raises(DataError, match=remedy) as caught:
        skipped(path, images="photo", texts="caption", label="y")
    head, *findings, last, _ = str(caught.value).splitlines()
    assert "no row can be used; 40 were left out" in head
    assert [f"line {line}" in finding for line, finding in zip((2, 3, 4), findings, strict=True)] == [True] * 3
    assert last == "  and 37 more"
    assert max(map(len, str(caught.value).splitlines())) <= 600
    with pytest.raises(DataError, match=remedy) as caught:  # also where bad rows are not skipped
        table(path, images="photo", texts="caption", label="y")
    assert "line 2" in str(caught.value)


def test_rows_without_labels_ask_for_the_column_of_labels(tmp_path: Path) -> None:
    photos(tmp_path)
    with pytest.raises(DataError, match="is 'y' the column of labels") as caught:
        skipped(rows(tmp_path, lambda n: f"img/{n}.png", label=lambda n: ""), images="photo", label="y")
    assert "line 2: there is no label in column 'y'" in str(caught.value)


def test_new_rows_that_are_all_bad_say_why_too(tmp_path: Path) -> None:
    photos(tmp_path)
    columns, kinds = {"photo": ["photo"]}, {"photo": "image"}
    known = TableSchema(columns=columns, kinds=kinds, widths={}, head="classes", labels=("a", "b"))
    with pytest.raises(DataError, match="there is no row to read in it; 40 were left out") as caught:
        new_rows(rows(tmp_path, lambda n: f"{n}.png"), known, findings=Findings("skip"))
    assert "line 4" in str(caught.value)
    assert "give that as root" in str(caught.value)


def test_a_folder_too_many_in_the_paths_is_noticed(tmp_path: Path) -> None:
    photos(tmp_path)
    with pytest.raises(DataError, match=r"'0.png' lies in .*img itself: leave the folder out of the paths"):
        table(rows(tmp_path, lambda n: f"old/{n}.png"), images="photo", label="y", root=tmp_path / "img")


def test_advice_on_the_root_is_not_given_where_some_pictures_were_found(tmp_path: Path) -> None:
    photos(tmp_path)
    path = rows(tmp_path, lambda n: f"img/{n}.png" if n < 30 else f"{n}.png")
    with pytest.raises(DataError, match="line 32: ") as caught:
        table(path, images="photo", label="y")
    assert "give that as root" not in str(caught.value)


def test_absolute_paths_below_the_root_are_the_relative_ones(tmp_path: Path) -> None:
    photos(tmp_path)
    relative = table(rows(tmp_path, lambda n: f"img/{n}.png"), images="photo", label="y")
    absolute = table(rows(tmp_path, lambda n: tmp_path / "img" / f"{n}.png"), images="photo", label="y")
    assert absolute.fingerprint() == relative.fingerprint()
    (tmp_path / "link").symlink_to(tmp_path / "img", target_is_directory=True)
    linked = rows(tmp_path, lambda n: tmp_path / "img" / f"{n}.png")
    assert table(linked, images="photo", label="y", root=tmp_path / "link").facts["rows"] == 40
    up = rows(tmp_path, lambda n: f"{tmp_path}/img/../../secret/{n}.png")
    with pytest.raises(DataError, match=r"absolute path that leads outside of .*; set root to a folder that holds it"):
        table(up, images="photo", label="y")


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ("0.6,0.2,0.2", (24, 8, 8)),
        ("[0.6, 0.2, 0.2]", (24, 8, 8)),
        ('{"train": 0.6, "dev": 0.4}', (24, 16, 0)),
        ("0.6, 0.4", (24, 16, 0)),
    ],
)
def test_fractions_are_set_on_the_command_line(said: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    options = parse_options([f"fractions={said}"])
    data = DataRequest(data=str(photos(tmp_path, rows=40)), images=("photo",), label="y", options=options).open()
    assert tuple(len(data.splits.get(name, ())) for name in ("train", "dev", "test")) == sizes


@pytest.mark.parametrize("said", ["0.6", "0.6,x", "1,2,3,4", "0.6,0.6", "true,0.4", "[0.5, null]", "{}", "7", '["a"]'])
def test_fractions_that_are_none_are_a_sentence(said: str, tmp_path: Path) -> None:
    asked = DataRequest(
        data=str(photos(tmp_path, rows=40)), images=("photo",), label="y", options=parse_options([f"fractions={said}"])
    )
    with pytest.raises(DataError, match="fractions"):
        asked.open()


def test_options_of_the_wrong_kind_are_sentences(tmp_path: Path) -> None:
    path = str(photos(tmp_path, rows=40))
    for setting, said in (
        ("seed=x", "the option 'seed' of a table must be a whole number, got 'x'"),
        ("id=7", "no column '7'"),
        ("delimiter=12", "one character"),
    ):
        asked = DataRequest(data=path, images=("photo",), label="y", options=parse_options([setting]))
        with pytest.raises(DataError, match=said):
            asked.open()
    asked = DataRequest(data=path, images=("photo",), label="y", options=parse_options(["labels=b,a"]))
    assert list(asked.open().labels) == ["b", "a"]
