"""One example from what a person gives for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from meq.data.content import PictureFile, SoundFile
from meq.data.findings import DataError
from meq.runs.one_example import example_of, kind_of
from meq.studies.study import StudyError


def test_what_a_content_is_follows_from_its_suffix() -> None:
    assert [kind_of(each) for each in ("a.PNG", Path("b.jpeg"), "c.wav", "a text", "1.5", "")] == [
        *("image", "image", "audio", "text", "text", "text")
    ]


def test_contents_go_to_the_modalities_of_their_kind_in_the_order_of_training(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    kinds = {"claim": "text", "photo": "image", "reason": "text", "noise": "audio"}
    made = example_of(kinds, [tmp_path / "a.png", "first", tmp_path / "b.wav", "second"])
    assert made.id == "a.png"
    assert made.content["claim"] == "first"
    assert made.content["reason"] == "second"
    assert isinstance(made.content["photo"], PictureFile)
    assert isinstance(made.content["noise"], SoundFile)
    assert example_of(kinds, ["only"]).content == {"claim": "only"}, "the others are missing, as empty cells are"


def test_what_cannot_be_placed_is_said(tmp_path: Path) -> None:
    two = {"claim": "text", "reason": "text"}
    with pytest.raises(StudyError, match="'c' is one text too many: this run reads a text for 'claim' and a text for"):
        example_of(two, ["a", "b", "c"])
    with pytest.raises(StudyError, match=r"'x\.png' is one picture too many"):
        example_of(two, ["x.png"])
    with pytest.raises(StudyError, match="there is nothing to answer: give a text for 'claim'"):
        example_of(two, [])
    with pytest.raises(StudyError, match=r"this run reads numbers \('pulse'\), which only a table can give"):
        example_of({"claim": "text", "pulse": "features"}, ["a"])
    with pytest.raises(DataError, match="the picture is missing"):
        example_of({"photo": "image"}, [tmp_path / "gone.png"])
    (tmp_path / "0.png").touch()
    with pytest.raises(DataError, match=r"0\.pgn: the picture is missing: did you mean .*0\.png"):
        example_of({"photo": "image", "text": "text"}, [tmp_path / "0.pgn", "a text"])
