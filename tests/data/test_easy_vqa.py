"""easy-VQA, as the package on PyPI has it."""

import sys

import pytest

from meq.data import DataError, DataSet
from meq.data.content import PictureFile
from meq.data.easy_vqa import easy_vqa

pytest.importorskip("easy_vqa", reason="easy-vqa is not installed")


@pytest.fixture(scope="module")
def data() -> DataSet:
    return easy_vqa()


def pictures(data: DataSet, split: str) -> set[str]:
    return {str(row[3]) for row in data.splits[split].rows}  # type: ignore[attr-defined]


def test_the_official_sizes(data: DataSet) -> None:
    assert len(data.splits["train"]) + len(data.splits["dev"]) == 38_575
    assert len(data.splits["test"]) == 9_673
    assert len(data.labels) == 13
    assert len(pictures(data, "train") | pictures(data, "dev")) == 4_000
    assert len(pictures(data, "test")) == 1_000


def test_no_picture_is_in_two_splits(data: DataSet) -> None:
    assert len(pictures(data, "dev")) == 400
    assert not pictures(data, "train") & pictures(data, "dev")
    assert not (pictures(data, "train") | pictures(data, "dev")) & pictures(data, "test")


def test_an_example_is_a_picture_a_question_and_an_answer(data: DataSet) -> None:
    example = data.splits["train"][0]
    assert isinstance(example.content["image"], PictureFile)
    assert example.content["image"].open().size == (64, 64)
    assert str(example.content["text"]).endswith("?")
    assert example.target is not None
    assert 0 <= int(example.target) < 13


def test_the_kind_of_question_agrees_with_the_answer(data: DataSet) -> None:
    for example in data.splits["test"][:200]:
        assert example.target is not None
        kind, answer = example.facts["asks_for"], data.labels[int(example.target)]
        assert (kind == "yes or no") == (answer in ("yes", "no"))
        assert (kind == "shape") == (answer in ("circle", "rectangle", "triangle"))


def test_the_seed_decides_what_is_held_out(data: DataSet) -> None:
    assert pictures(easy_vqa(seed=1), "dev") != pictures(data, "dev")
    assert "dev" not in easy_vqa(dev=0).splits


def test_a_wrong_share_is_an_error() -> None:
    with pytest.raises(DataError, match=r"got 1\.5"):
        easy_vqa(dev=1.5)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "easy_vqa", None)
    with pytest.raises(DataError, match=r"pip install 'meq\[offline\]'"):
        easy_vqa()
