from __future__ import annotations

from pathlib import Path

import pytest
from data.folders import draw

from meq.data.content import Tree, check_inside, need_one_of
from meq.data.files import BadRowError
from meq.data.findings import DataError


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x.png",
        "img/../../x.png",
        "img\\..\\..\\x.png",
        "\\\\host\\x.png",
        "C:\\x.png",
        "c:/x",
        "a\0b",
    ],
)
def test_paths_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(BadRowError) as caught:
        check_inside(name)
    assert caught.value.kind == "path outside"


@pytest.mark.parametrize("name", ["a b/ünï@1..2.png", "..hidden/x.png", "x...png", "a:b.png"])
def test_odd_names_that_stay_inside_are_accepted(tmp_path: Path, name: str) -> None:
    draw(tmp_path / name)
    tree = Tree(tmp_path, tmp_path)
    assert tree.check_picture(name) == name
    assert tree.picture(name).open().size == (24, 16)


def test_a_picture_that_is_not_there_is_missing(tmp_path: Path) -> None:
    draw(tmp_path / "img" / "1.png")
    tree = Tree(tmp_path, tmp_path)
    assert "img/1.png" in tree
    for name in ("img/2.png", "other/1.png", "img/", ""):
        assert name not in tree
        with pytest.raises(BadRowError, match="is not in"):
            tree.check_picture(name)


def test_a_symlink_that_leaves_the_root_is_not_followed(tmp_path: Path) -> None:
    draw(tmp_path / "outside" / "1.png")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "img").symlink_to(tmp_path / "outside")
    picture = Tree(tmp_path / "root", tmp_path / "root").picture("img/1.png")
    with pytest.raises(DataError, match="leads outside"):
        picture.open()


def test_what_is_needed_and_not_found_is_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the pictures not found; looked for a, b/c"):
        need_one_of(tmp_path, ("a", "b/c"), what="the pictures")
