"""Hateful Memes: is a picture, together with the text on it, hateful?

Five splits since the second release (train, dev_seen, dev_unseen, test_seen, test_unseen), three in the first (train,
dev, test). `dev` here is dev_seen, as in the paper, and `test` is test_seen. dev_seen and dev_unseen share most of
their memes, so an id is a duplicate within one split only. A test file without labels is never called `test`, which
training would score: it keeps its own name, or is `test_unlabelled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from meq.core.options import checked_options
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows
from meq.data.findings import DataError, Findings
from meq.data.jsonl import BadRowError, described, filled, read_rows, text_of, whole_number
from meq.data.metrics import ACCURACY, AUROC
from meq.data.paths import Tree, first_of

LABELS = ("not hateful", "hateful")
FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev_seen", "dev"),
    "dev_unseen": ("dev_unseen",),
    "test": ("test_seen", "test"),
    "test_unseen": ("test_unseen",),
}
"""Which files a split is read from: the first that is there."""


@checked_options
def hateful_memes(root: Path | str, *, findings: Findings | None = None) -> DataSet:
    """Read `{train,dev_seen,...}.jsonl` and `img/` from the folder or from its `data`."""
    root, findings = Path(root), Findings() if findings is None else findings
    folder = _folder(root)
    reader = _Reader(Tree(folder, root))
    splits, sources = {}, {}
    for split, names in FILES.items():
        file = first_of(folder, [f"{name}.jsonl" for name in names])
        if file is None:
            findings.absent.append(f"{split}: no {' or '.join(f'{name}.jsonl' for name in names)}")
            continue
        rows = read_rows(file, findings, parse=reader.parse, required=("id", "img", "text"))
        labelled = not split.startswith("test") or any(row.label is not None for row in rows)
        name = split if labelled else _unlabelled(file.stem)
        splits[name] = Rows(_alike(rows, file, findings) if labelled else rows, reader.example)
        sources[name] = file.name
    return DataSet(
        name="hateful-memes",
        splits=filled(splits, findings, root=root),
        modalities={"image": IMAGE, "text": TEXT},
        labels=LABELS,
        head="classes",
        metric=AUROC,
        also=(ACCURACY,),
        facts={"files": sources},
    )


def _folder(root: Path) -> Path:
    """Where the JSON lines are; the pictures' paths start there."""
    names = [f"{name}.jsonl" for several in FILES.values() for name in several]
    for folder in (root, root / "data"):
        if first_of(folder, names) is not None:
            return folder
    raise DataError(f"{root}: no split of Hateful Memes; looked for {', '.join(names)}, here and in data/")


def _unlabelled(name: str) -> str:
    return "test_unlabelled" if name == "test" else name


class _Row(NamedTuple):
    id: str
    picture: str
    text: str
    label: int | None
    line: int


def _alike(rows: list[_Row], file: Path, findings: Findings) -> list[_Row]:
    """The rows with a label; one without, in a file that has labels, is reported."""
    for row in rows:
        if row.label is None:
            findings.report("missing key", "the record has no 'label'", file=file, line=row.line)
    return [row for row in rows if row.label is not None]


@dataclass
class _Reader:
    pictures: Tree

    def parse(self, line: int, record: Mapping[str, Any]) -> _Row:
        return _Row(
            id=_id(record["id"]),
            picture=self.pictures.check_picture(text_of(record, "img")),
            text=text_of(record, "text"),
            label=None if record.get("label") is None else _label(record["label"]),
            line=line,
        )

    def example(self, row: _Row) -> Example:
        return Example(
            id=row.id,
            content={"image": self.pictures.picture(row.picture), "text": row.text},
            target=None if row.label is None else torch.tensor(row.label),
            facts={"picture": row.picture},
        )


def _id(value: object) -> str:
    """Five digits: some copies hold numbers, which have lost the leading zeros that others keep."""
    if not whole_number(value) and not (isinstance(value, str) and value.strip()):
        raise BadRowError("wrong type", f"'id' must be a number or a text, it is {described(value)}")
    return str(value).zfill(5)


def _label(value: object) -> int:
    if not whole_number(value) or value not in (0, 1):
        raise BadRowError("wrong label", f"the label is {described(value)}; it must be 0 (not hateful) or 1 (hateful)")
    return int(value)
