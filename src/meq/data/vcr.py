"""VCR: a question about people and things in a film still, and four answers, or four rationales, to choose from.

Answers name people and things by their box. A person becomes a name that tells no gender, the same in the text and on
the region; a thing its class. Texts hold the question with one choice each. Two tasks:

- `q2a`: which answer is right, given the question.
- `qa2r`: which rationale is right, given the question and its right answer.

Q->AR, both right, is `meq.data.metrics.joint_accuracy` of the two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meq.data.content import Content, PictureFile, Regions, Tree, need_one_of, split_files
from meq.data.contract import REGIONS, TEXT, DataSet, Example, Rows, Split, filled, plain_example
from meq.data.files import BadRowError, described, read_json, read_rows, text_of, whole_number, with_labels
from meq.data.findings import DataError, Findings, check_choice
from meq.data.metrics import ACCURACY
from meq.options import checked_options

LABELS = ("1", "2", "3", "4")
TASKS: Mapping[str, tuple[str, str]] = {
    "q2a": ("answer_choices", "answer_label"),
    "qa2r": ("rationale_choices", "rationale_label"),
}
FILES = {"train": "train", "dev": "val", "test": "test"}
PAPER_FIRST = 5000
NAMES = (
    *("Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton"),
    *("Kerry", "Jody", "Kendall", "Skyler", "Frankie", "Pat", "Quinn"),
)
"""In use for both men and women: a model is not to be told who is which."""

Box = tuple[float, float, float, float]
_CLINGS = re.compile(r"[,.?!;:)]|'\w|n't$")
"""How a token starts that has no space before it."""


def names_of(objects: object) -> tuple[str, ...]:
    """What each object is called: the first person Casey, the second Riley, ..., a thing by its class."""
    if not isinstance(objects, list) or not all(isinstance(each, str) and each.strip() for each in objects):
        raise BadRowError("wrong type", f"'objects' must be a list of class names, it is {described(objects)}")
    names, people = [], 0
    for each in objects:
        names.append(person(people) if each == "person" else each)
        people += each == "person"
    return tuple(names)


def person(place: int) -> str:
    """The name of the n-th person, from 0; a crowd that outnumbers the names is numbered: Casey 2."""
    turn, name = divmod(place, len(NAMES))
    return NAMES[name] if turn == 0 else f"{NAMES[name]} {turn + 1}"


def sentence(tokens: object, names: Sequence[str], key: str) -> str:
    """The text of a list of tokens, in which a list of indices stands for the objects of those names."""
    if not isinstance(tokens, list):
        raise BadRowError("wrong type", f"{key!r} must be a list of tokens, it is {described(tokens)}")
    text = ""
    for token in tokens:
        word = token if isinstance(token, str) else _called(token, names, key)
        text += word if _CLINGS.match(word) else f" {word}"
    if not text.strip():
        raise BadRowError("empty text", f"{key!r} is empty")
    return text.strip()


def _called(indices: object, names: Sequence[str], key: str) -> str:
    """Casey; Casey and Riley; Casey, Riley and Jessie."""
    if not isinstance(indices, list) or not indices or not all(whole_number(index) for index in indices):
        raise BadRowError(
            "wrong type", f"{key!r}: a token must be a text or a list of object indices: {described(indices)}"
        )
    outside = [index for index in indices if not 0 <= index < len(names)]
    if outside:
        raise BadRowError(
            "wrong object", f"{key!r} names the object {outside[0]}, the picture has {len(names)}, from 0"
        )
    *others, last = (names[index] for index in indices)
    return f"{', '.join(others)} and {last}" if others else last


class Scenes:
    """The metadata files of the pictures, each read when its example is asked for.

    A box that reaches beyond the picture is clipped. One that is empty after that is reported, and so is a file that
    cannot be used: an error, or, where bad rows are skipped, counted once and the box, or all of them, left out.
    """

    def __init__(self, folder: Path, root: Path, findings: Findings) -> None:
        self.folder, self.root, self.findings = folder, root, findings
        self.files = Tree(folder, root, noun="metadata")
        self._reported: set[tuple[str, str]] = set()

    def regions(self, name: str, objects: Sequence[str]) -> tuple[tuple[Box, ...], tuple[str, ...]] | None:
        """Boxes in pixels and what is in each of them; None if the file cannot be used."""
        try:
            boxes = self._boxes(name, len(objects))
        except DataError as error:
            self._report("broken metadata", str(error).removeprefix(f"{self.folder / name}: "), name)
            return None
        kept = []
        for place, (box, called) in enumerate(zip(boxes, objects, strict=True)):
            if box[0] < box[2] and box[1] < box[3]:
                kept.append((box, called))
            else:
                self._report("empty box", f"boxes[{place}], of {called!r}, has no area within the picture", name)
        return tuple(box for box, _ in kept), tuple(called for _, called in kept)

    def _boxes(self, name: str, count: int) -> list[Box]:
        """The boxes of the file, clipped to the picture."""
        file = PictureFile(self.folder / name, self.root).checked_path()  # no symlink may leave the root
        metadata = read_json(file)
        if not isinstance(metadata, dict):
            raise DataError(f"{file}: must be an object with boxes, width and height, it is {described(metadata)}")
        width, height = _finite(metadata.get("width")), _finite(metadata.get("height"))
        if width is None or height is None or min(width, height) <= 0:
            raise DataError(f"{file}: 'width' and 'height' must be positive numbers")
        boxes = metadata.get("boxes")
        if not isinstance(boxes, list) or len(boxes) != count:
            found = f"{len(boxes)}" if isinstance(boxes, list) else described(boxes)
            raise DataError(f"{file}: 'boxes' must be a list of {count}, one per object of the record, it is {found}")
        corners = (_corners(box, place, file) for place, box in enumerate(boxes))
        return [(max(a, 0.0), max(b, 0.0), min(c, width), min(d, height)) for a, b, c, d in corners]

    def _report(self, kind: str, message: str, name: str) -> None:
        if (name, message) not in self._reported:
            self.findings.report(kind, message, file=self.folder / name)
            self._reported.add((name, message))


def _corners(box: Any, place: int, file: Path) -> Box:
    numbers = [_finite(each) for each in box[:4]] if isinstance(box, list) else []
    if len(numbers) != 4 or None in numbers:
        raise DataError(f"{file}: boxes[{place}] must be four finite numbers, and a score if any: {described(box)}")
    left, top, right, bottom = (each for each in numbers if each is not None)
    return left, top, right, bottom


def _finite(value: object) -> float | None:
    """The number, or None for anything that is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e9:
        return None
    return float(value) if math.isfinite(value) else None


@checked_options
def vcr(root: Path | str, *, task: str = "q2a", first: int | None = None, findings: Findings | None = None) -> DataSet:
    """Read `{train,val,test}.jsonl` and `vcr1images/`; `dev` is val, or its `first` records (5,000 in the paper).

    A test file without labels is never called `test`, which training would score, but `test_unlabelled`.
    """
    check_choice("vcr: task", task, TASKS)
    if first is not None and first < 1:
        raise DataError(f"vcr: first must be at least 1, got {first}")
    root, findings = Path(root), Findings() if findings is None else findings
    files = split_files(root, {split: (f"{name}.jsonl",) for split, name in FILES.items()}, findings, what="VCR")
    images = need_one_of(root, ("vcr1images",), what="the folder of pictures and boxes")
    reader = _Reader(task, Tree(images, root), Scenes(images, root, findings))
    splits: dict[str, Split] = {}
    for split, file in files.items():
        splits.update(_split(split, file, findings, reader=reader, first=first if split == "dev" else None))
    return DataSet(
        name="vcr",
        splits=filled(splits, findings, root=root),
        modalities={"image": REGIONS, "text": TEXT},
        labels=LABELS,
        head="choices",
        metric=ACCURACY,
        facts={"task": task, "first": first, "paper_first": PAPER_FIRST},
    )


class _Row(NamedTuple):
    id: str
    picture: str
    metadata: str
    objects: tuple[str, ...]
    lead: str
    choices: tuple[str, ...]
    label: int | None
    line: int


def _split(name: str, file: Path, findings: Findings, *, reader: _Reader, first: int | None) -> dict[str, Split]:
    tasks = ("q2a",) if reader.task == "q2a" else ("q2a", "qa2r")
    choices, labels = zip(*(TASKS[task] for task in tasks), strict=True)
    required = ("annot_id", "img_fn", "metadata_fn", "objects", "question", *choices)
    required += () if name == "test" else labels
    rows = read_rows(file, findings, parse=reader.parse, required=required, first=first)
    if name == "test" and all(row.label is None for row in rows):
        if reader.task == "qa2r":
            findings.absent.append(f"test: qa2r needs the right answers, and {file.name} has none")
            return {}
        return {"test_unlabelled": Rows(rows, reader.example)}
    return {name: Rows(with_labels(rows, file, findings, key=TASKS[reader.task][1]), reader.example)}


@dataclass
class _Reader:
    task: str
    pictures: Tree
    scenes: Scenes

    def parse(self, line: int, record: Mapping[str, Any]) -> _Row:
        choices, label = TASKS[self.task]
        names = names_of(record["objects"])
        lead = sentence(record["question"], names, "question")
        if self.task == "qa2r" and label in record:
            if "answer_label" not in record:
                raise BadRowError("missing key", "the record has no 'answer_label', and rationales are for an answer")
            answers = _choices(record, "answer_choices", names)
            lead = f"{lead} {answers[_label(record, 'answer_label')]}"
        return _Row(
            id=text_of(record, "annot_id"),
            picture=self.pictures.find(text_of(record, "img_fn")),
            metadata=self.scenes.files.find(text_of(record, "metadata_fn")),
            objects=names,
            lead=lead,
            choices=_choices(record, choices, names),
            label=_label(record, label) if label in record else None,
            line=line,
        )

    def example(self, row: _Row) -> Example:
        content: dict[str, Content] = {"text": tuple(f"{row.lead} {choice}" for choice in row.choices)}
        regions = self.scenes.regions(row.metadata, row.objects)
        if regions is not None:
            boxes, names = regions
            content["image"] = Regions(picture=self.pictures.picture(row.picture), boxes=boxes, names=names)
        return plain_example(
            id=row.id,
            content=content,
            target=row.label,
            facts={"picture": row.picture, "question": row.lead, "choices": row.choices},
        )


def _choices(record: Mapping[str, Any], key: str, names: tuple[str, ...]) -> tuple[str, ...]:
    choices = record[key]
    if not isinstance(choices, list) or len(choices) != len(LABELS):
        found = f"{len(choices)}" if isinstance(choices, list) else described(choices)
        raise BadRowError("wrong choices", f"{key!r} must be a list of {len(LABELS)} choices, it is {found}")
    return tuple(sentence(tokens, names, f"{key}[{place}]") for place, tokens in enumerate(choices))


def _label(record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if not whole_number(value) or not 0 <= value < len(LABELS):
        raise BadRowError("wrong label", f"{key!r} is {described(value)}; it must be 0 to {len(LABELS) - 1}")
    return int(value)
