"""One example from what a person gives for it: a picture's file and a caption, two texts, a sound.

What is a table, a picture or a sound is decided by the suffix; everything else is a text. Contents go to the run's
modalities of their kind, in the order of training; a modality that gets none is missing, as an empty cell is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from meq.data.content import Content, Picture, PictureFile, SoundFile
from meq.data.contract import Example
from meq.data.findings import DataError
from meq.data.request import nearest_beside
from meq.studies.study import StudyError

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "audio": (".wav",),
}
"""By kind of content: how the names of its files end."""
NOUNS = {"image": "picture", "audio": "sound", "text": "text", "features": "numbers", "regions": "regions of pictures"}
LONGEST_PATH, CLOSE = 200, 0.6
"""What is longer is a text; and how much alike two names of files must be to be taken for each other."""
GIVEN = ("image", "audio", "text")
"""Kinds of content that can be given one by one."""


ONE_ROW = "write a table of one row, with the columns of training"
NOT_EXPLAINED = (
    "meq importance RUN and meq evaluate RUN say what its answers rest on, meq diagnose RUN what it does step by step"
)


def example_of(
    kinds: Mapping[str, str], contents: Sequence[str | Path | Picture], *, otherwise: str = ONE_ROW
) -> Example:
    """The example that these contents make for a run whose modalities are of these kinds.

    `otherwise` is what to do where the run reads something that cannot be given one by one.
    """
    others = [name for name, kind in kinds.items() if kind not in GIVEN]
    if others:
        what = NOUNS.get(kinds[others[0]], kinds[others[0]])
        raise StudyError(f"this run reads {what} ({', '.join(map(repr, others))}), which only a table can give: "
                         f"{otherwise}")  # fmt: skip
    if not contents:
        raise StudyError(f"there is nothing to answer: give {_wanted(kinds)}, or a table")
    left = {kind: [name for name, each in kinds.items() if each == kind] for kind in GIVEN}
    placed: dict[str, Content] = {}
    for each in contents:
        kind = kind_of(each)
        if kind == "text":
            _check_is_text(str(each))
        if not left[kind]:
            raise StudyError(f"{str(each)[:80]!r} is one {NOUNS[kind]} too many: this run reads {_wanted(kinds)}")
        placed[left[kind].pop(0)] = _content(each, kind)
    first = contents[0]
    name = Path(first).name if kind_of(first) != "text" and isinstance(first, str | Path) else str(first)
    return Example(id=name, content=placed, target=None)


def kind_of(content: str | Path | Picture) -> str:
    """image, audio or text."""
    if isinstance(content, Picture):
        return "image"
    suffix = Path(content).suffix.lower()
    return next((kind for kind, known in SUFFIXES.items() if suffix in known), "text")


def _check_is_text(words: str) -> None:
    """An error for what is meant to be a file of a name that is nearly there: "0.pgn" beside 0.png."""
    path = Path(words)
    if " " in words or not path.suffix or len(words) > LONGEST_PATH or not path.parent.is_dir() or path.is_file():
        return
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1, cutoff=CLOSE)
    kind = kind_of(close[0]) if close else "text"
    if kind != "text":
        raise DataError(f"{path}: the {NOUNS[kind]} is missing: did you mean {str(path.with_name(close[0]))!r}?")


def _content(given: str | Path | Picture, kind: str) -> Content:
    if isinstance(given, Picture):
        return given
    if kind == "text":
        return str(given)
    path = Path(given).expanduser()
    if not path.is_file():
        raise DataError(f"{path}: the {NOUNS[kind]} is missing{nearest_beside(path)}")
    path = path.resolve()  # the folder that a file lies in is its root
    return PictureFile(path, path.parent) if kind == "image" else SoundFile(path, path.parent)


def _wanted(kinds: Mapping[str, str]) -> str:
    return " and ".join(f"a {NOUNS[kind]} for {name!r}" for name, kind in kinds.items())
