from __future__ import annotations

from pathlib import Path

import pytest
from data.folders import draw

from meq.data.content import Tree, need_one_of
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
    ],
)
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    tree = Tree(tmp_path)
    for _ in range(2):  # the second time it is known already
        with pytest.raises(BadRowError) as caught:
            tree.find(name)
        assert caught.value.kind == "path outside"


@pytest.mark.parametrize("name", ["a\0b", "https://example.org/x.png", "data:image/png;base64,aaaa"])
def test_what_is_no_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRowError) as caught:
        Tree(tmp_path).find(name)
    assert caught.value.kind == "wrong path"


@pytest.mark.parametrize("name", ["a b/ünï@1..2.png", "..hidden/x.png", "x...png", "a:b.png"])
def test_odd_names_that_stay_inside_are_accepted(tmp_path: Path, name: str) -> None:
    draw(tmp_path / name)
    tree = Tree(tmp_path)
    assert tree.find(name) == tree.find(f"./{name}") == tree.find(str(tmp_path / name)) == name
    assert tree.picture(name).open().size == (24, 16)


def test_a_picture_that_is_not_there_is_missing(tmp_path: Path) -> None:
    draw(tmp_path / "img" / "1.png")
    tree = Tree(tmp_path)
    assert tree.find("img/1.png") == "img/1.png"
    for name in ("img/2.png", "other/1.png", "img/", ""):
        with pytest.raises(BadRowError, match=r"there is no picture .* below"):
            tree.find(name)


def test_a_symlink_that_leaves_the_root_is_not_followed(tmp_path: Path) -> None:
    draw(tmp_path / "outside" / "1.png")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "img").symlink_to(tmp_path / "outside")
    tree = Tree(tmp_path / "root")
    with pytest.raises(BadRowError, match=r"'img' is a symlink that leads outside of .*root, and is not followed"):
        tree.find("img/1.png")
    with pytest.raises(DataError, match="leads outside"):
        tree.picture("img/1.png").open()
    with pytest.raises(DataError, match=r"the folder .*img is a symlink that leads outside of .*root, and"):
        Tree(tmp_path / "root" / "img", tmp_path / "root").names()
    assert Tree(tmp_path / "root" / "img", tmp_path).names() == ["1.png"], "below the root, a symlink is followed"


def test_what_is_needed_and_not_found_is_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the pictures not found; looked for a, b/c"):
        need_one_of(tmp_path, ("a", "b/c"), what="the pictures")
