"""SNLI-VE: does the picture entail the sentence?

Input is the picture and `sentence2`. `sentence1`, the caption that the picture stands in for, is never read. Pairs
without a gold label and pairs on Visual Genome captions (`vg_` in the pair's id, no such picture in Flickr30K) are left
out and counted, as the makers of the set do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from meq.core.options import checked_options
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows
from meq.data.findings import DataError, Findings
from meq.data.jsonl import BadRowError, described, filled, read_rows, text_of
from meq.data.metrics import ACCURACY
from meq.data.paths import Tree, first_of, need_one_of

LABELS = ("entailment", "neutral", "contradiction")
SPLITS = ("train", "dev", "test")
OFFICIAL_SIZES = {"train": 529_527, "dev": 17_858, "test": 17_901}
PAPER_DEV = "the paper scores 9,602 dev pairs and does not say which; dev here is the whole official file"
FOLDERS = ("", "data/", "Flickr30K/", "data/Flickr30K/")
PICTURES = tuple(folder + name for folder in FOLDERS for name in ("flickr30k_images", "flickr30k-images"))


@checked_options
def snli_ve(root: Path | str, *, findings: Findings | None = None) -> DataSet:
    """Read `snli_ve_{train,dev,test}.jsonl`, in the folder or in its `data`, and `flickr30k_images`.

    Both releases are read: ids under `Flickr30K_ID`, or under `Flikr30kID` with ".jpg".
    """
    root, findings = Path(root), Findings() if findings is None else findings
    files = {split: first_of(root, _names(split)) for split in SPLITS}
    if not any(files.values()):
        looked = ", ".join(name for split in SPLITS for name in _names(split))
        raise DataError(f"{root}: no split of SNLI-VE; looked for {looked}")
    reader = _Reader(Tree(need_one_of(root, PICTURES, what="the folder of pictures"), root))
    splits = {}
    for split, file in files.items():
        if file is None:
            findings.absent.append(f"{split}: no {_names(split)[0]}")
            continue
        required = ("gold_label", "pairID", "sentence2")
        splits[split] = Rows(read_rows(file, findings, parse=reader.parse, required=required), reader.example)
    return DataSet(
        name="snli-ve",
        splits=filled(splits, findings, root=root),
        modalities={"image": IMAGE, "text": TEXT},
        labels=LABELS,
        head="classes",
        metric=ACCURACY,
        facts={"left_out": dict(reader.left_out), "official_sizes": OFFICIAL_SIZES, "dev": PAPER_DEV},
    )


def _names(split: str) -> tuple[str, str]:
    return f"snli_ve_{split}.jsonl", f"data/snli_ve_{split}.jsonl"


class _Row(NamedTuple):
    id: str
    picture: str
    text: str
    label: int


@dataclass
class _Reader:
    pictures: Tree
    left_out: Counter[str] = field(default_factory=Counter)

    def parse(self, _: int, record: Mapping[str, Any]) -> _Row | None:
        pair = text_of(record, "pairID")
        if "vg_" in pair:
            self.left_out["pairs on Visual Genome"] += 1
            return None
        if record["gold_label"] == "-":
            self.left_out["pairs without a gold label"] += 1
            return None
        return _Row(
            id=pair,
            picture=sys.intern(self.pictures.check_picture(_picture(record))),
            text=text_of(record, "sentence2"),
            label=_label(record["gold_label"]),
        )

    def example(self, row: _Row) -> Example:
        return Example(
            id=row.id,
            content={"image": self.pictures.picture(row.picture), "text": row.text},
            target=torch.tensor(row.label),
            facts={"picture": row.picture},
        )


def _picture(record: Mapping[str, Any]) -> str:
    key = next((key for key in ("Flickr30K_ID", "Flikr30kID") if key in record), None)
    if key is None:
        raise BadRowError(
            "missing key", "the record has no 'Flickr30K_ID', and no 'Flikr30kID' as in the first release"
        )
    return text_of(record, key).removesuffix(".jpg") + ".jpg"


def _label(value: object) -> int:
    if value not in LABELS:
        raise BadRowError(
            "wrong label", f"the gold label is {described(value)}; it must be one of {', '.join(LABELS)}, or -"
        )
    return LABELS.index(str(value))
