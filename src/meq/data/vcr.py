"""VCR: a question about people and things in a film still, and four answers, or four rationales, to choose from.

Answers name people and things by their box. A person becomes a name that tells no gender, the same in the text and on
the region; a thing its class. Texts hold the question with one choice each. Two tasks:

- `q2a`: which answer is right, given the question.
- `qa2r`: which rationale is right, given the question and its right answer.

Q->AR, both right, is `meq.data.metrics.joint_accuracy` of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from meq.core.options import checked_options, nearest
from meq.data.content import Content, Regions
from meq.data.contract import REGIONS, TEXT, DataSet, Example, Rows, Split
from meq.data.findings import DataError, Findings
from meq.data.jsonl import BadRowError, described, filled, read_rows, text_of, whole_number
from meq.data.metrics import ACCURACY
from meq.data.paths import Tree, check_inside, need_one_of
from meq.data.vcr_scene import Scenes, names_of, sentence

LABELS = ("1", "2", "3", "4")
TASKS: Mapping[str, tuple[str, str]] = {
    "q2a": ("answer_choices", "answer_label"),
    "qa2r": ("rationale_choices", "rationale_label"),
}
FILES = {"train": "train", "dev": "val", "test": "test"}
PAPER_FIRST = 5000


@checked_options
def vcr(root: Path | str, *, task: str = "q2a", first: int | None = None, findings: Findings | None = None) -> DataSet:
    """Read `{train,val,test}.jsonl` and `vcr1images/`; `dev` is val, or its `first` records (5,000 in the paper).

    A test file without labels is never called `test`, which training would score, but `test_unlabelled`.
    """
    if task not in TASKS:
        raise DataError(f"vcr: there is no task {task!r}: {nearest(task, TASKS)}")
    if first is not None and first < 1:
        raise DataError(f"vcr: first must be at least 1, got {first}")
    root, findings = Path(root), Findings() if findings is None else findings
    files = {split: root / f"{name}.jsonl" for split, name in FILES.items()}
    if not any(file.exists() for file in files.values()):
        raise DataError(f"{root}: no split of VCR; looked for {', '.join(file.name for file in files.values())}")
    images = need_one_of(root, ("vcr1images",), what="the folder of pictures and boxes")
    reader = _Reader(task, Tree(images, root), Scenes(images, root, findings))
    splits: dict[str, Split] = {}
    for split, file in files.items():
        if not file.exists():
            findings.absent.append(f"{split}: no {file.name}")
        else:
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
    required = ("annot_id", "img_fn", "metadata_fn", "objects", "question", *reader.required(labelled=name != "test"))
    rows = read_rows(file, findings, parse=reader.parse, required=required, first=first)
    if name == "test" and all(row.label is None for row in rows):
        if reader.task == "qa2r":
            findings.absent.append(f"test: qa2r needs the right answers, and {file.name} has none")
            return {}
        return {"test_unlabelled": Rows(rows, reader.example)}
    for row in rows:
        if row.label is None:
            findings.report("missing key", f"the record has no {TASKS[reader.task][1]!r}", file=file, line=row.line)
    return {name: Rows([row for row in rows if row.label is not None], reader.example)}


@dataclass
class _Reader:
    task: str
    pictures: Tree
    scenes: Scenes

    def required(self, *, labelled: bool) -> tuple[str, ...]:
        tasks = ("q2a",) if self.task == "q2a" else ("q2a", "qa2r")
        choices, labels = zip(*(TASKS[task] for task in tasks), strict=True)
        return (*choices, *labels) if labelled else choices

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
            picture=self.pictures.check_picture(text_of(record, "img_fn")),
            metadata=self._metadata(record),
            objects=names,
            lead=lead,
            choices=_choices(record, choices, names),
            label=_label(record, label) if label in record else None,
            line=line,
        )

    def _metadata(self, record: Mapping[str, Any]) -> str:
        name = check_inside(text_of(record, "metadata_fn"))
        if name not in self.pictures:
            raise BadRowError("missing metadata", f"the boxes {name!r} are not in {self.pictures.folder}")
        return name

    def example(self, row: _Row) -> Example:
        content: dict[str, Content] = {"text": tuple(f"{row.lead} {choice}" for choice in row.choices)}
        regions = self.scenes.regions(row.metadata, row.objects)
        if regions is not None:
            boxes, names = regions
            content["image"] = Regions(picture=self.pictures.picture(row.picture), boxes=boxes, names=names)
        return Example(
            id=row.id,
            content=content,
            target=None if row.label is None else torch.tensor(row.label),
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
