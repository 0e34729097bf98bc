from __future__ import annotations

from pathlib import Path

import pytest
from data.table_cases import as_jsonl, contents, pictured, simple, skipped

from meq.data.findings import DataError
from meq.data.table import table


def test_pictures_that_cannot_be_used_are_named_with_their_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "out.png"
    names = ["gone.png", "no/such/folder.png", "https://example.org/a.png", str(secret), "../secret/out.png"]
    names += ["sub/../good.png", "C:\\a.png", "link.png", "linked/out.png", "dangling.png", "sub", "x" * 5000]
    path = pictured(tmp_path, *names)
    (path.parent / "link.png").symlink_to(secret)
    (path.parent / "linked").symlink_to(tmp_path / "secret", target_is_directory=True)
    (path.parent / "dangling.png").symlink_to(path.parent / "nothing.png")
    found, data = skipped(path, images="p", label="y", split="split")
    missing, outside = "missing picture", "path outside"
    kinds = [missing, missing, "wrong path", outside, outside, outside, outside, outside, outside, *[missing] * 3]
    assert found == [(kind, line) for line, kind in enumerate(kinds, 8)]
    assert data.facts["rows"] == 6


def test_a_symlink_that_stays_inside_and_a_name_with_odd_characters_are_fine(tmp_path: Path) -> None:
    path = pictured(tmp_path, "sub/in ü#1.png", "link.png")
    (path.parent / "link.png").symlink_to(path.parent / "good.png")
    data = table(path, images="p", label="y", split="split")
    assert [picture.open().size for picture in contents(data, "p")] == [(2, 2)] * 8


def test_a_circle_of_symlinks_leads_nowhere(tmp_path: Path) -> None:
    path = pictured(tmp_path, "round.png", "circle/a.png")
    (path.parent / "round.png").symlink_to(path.parent / "round.png")
    (path.parent / "circle").symlink_to(path.parent / "circle")
    found, _ = skipped(path, images="p", label="y", split="split")
    assert [line for _, line in found] == [8, 9]


def test_an_error_says_where_the_picture_was_looked_for(tmp_path: Path) -> None:
    path = pictured(tmp_path, "gone.png")
    with pytest.raises(DataError, match=r"t\.csv, line 8: column 'p': there is no picture 'gone.png' below .*root"):
        table(path, images="p", label="y", split="split")
    with pytest.raises(DataError, match=r"line 2: .* below .*secret"):
        table(path, images="p", label="y", split="split", root=tmp_path / "secret")
    with pytest.raises(DataError, match="is not a folder"):
        table(path, images="p", label="y", root=tmp_path / "nowhere")


def test_pictures_are_looked_up_below_a_given_root(tmp_path: Path) -> None:
    path = pictured(tmp_path)
    moved = path.rename(tmp_path / "t.csv")
    assert table(moved, images="p", label="y", split="split", root=tmp_path / "root").facts["rows"] == 6


def test_nothing_is_decoded_before_it_is_asked_for(tmp_path: Path) -> None:
    path = pictured(tmp_path, "broken.png")
    (path.parent / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    broken = contents(table(path, images="p", label="y", split="split"), "p")[-1]
    with pytest.raises(DataError, match=r"broken\.png: not a readable picture"):
        broken.open()


def test_a_number_is_no_path_of_a_picture(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: column 't' holds a number, not a picture's path"):
        table(as_jsonl(tmp_path, simple(t=[3] * 6)), images="t", label="y", split="split")
