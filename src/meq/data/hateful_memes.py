"""Hateful Memes: is a picture, together with the text on it, hateful?

Five splits since the second release (train, dev_seen, dev_unseen, test_seen, test_unseen), three in the first (train,
dev, test). `dev` here is dev_seen, as in the paper, and `test` is test_seen. dev_seen and dev_unseen share most of
their memes, so an id is a duplicate within one split only. A test file without labels is never called `test`, which
training would score: it keeps its own name, or is `test_unlabelled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from meq.data.content import Tree, first_of, split_files
from meq.data.contract import IMAGE, TEXT, DataSet, PictureText, Rows, filled, picture_text_example
from meq.data.files import BadRowError, described, read_rows, text_of, whole_number, with_labels
from meq.data.findings import Findings
from meq.data.metrics import ACCURACY, AUROC
from meq.options import checked_options

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
    names = {split: [f"{name}.jsonl" for name in several] for split, several in FILES.items()}
    every = [name for several in names.values() for name in several]
    # pictures' paths start where the JSON lines are
    folder = next((each for each in (root, root / "data") if first_of(each, every) is not None), root)
    files = split_files(folder, names, findings, what="Hateful Memes, here or in data/")
    pictures = Tree(folder, root)
    splits, sources = {}, {}
    for split, file in files.items():
        rows = read_rows(file, findings, parse=partial(_row, pictures), required=("id", "img", "text"))
        if not split.startswith("test") or any(row.label is not None for row in rows):
            name, rows = split, with_labels(rows, file, findings)
        else:
            name = "test_unlabelled" if file.stem == "test" else file.stem
        splits[name] = Rows(rows, partial(picture_text_example, pictures))
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


def _row(pictures: Tree, line: int, record: Mapping[str, Any]) -> PictureText:
    return PictureText(
        id=_id(record["id"]),
        picture=pictures.find(text_of(record, "img")),
        text=text_of(record, "text"),
        label=None if record.get("label") is None else _label(record["label"]),
        line=line,
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
