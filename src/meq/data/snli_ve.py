"""SNLI-VE: does the picture entail the sentence?

Input is the picture and `sentence2`. `sentence1`, the caption that the picture stands in for, is never read. Pairs
without a gold label and pairs on Visual Genome captions (`vg_` in the pair's id, no such picture in Flickr30K) are left
out and counted, as the makers of the set do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from meq.data.content import Tree, need_one_of, split_files
from meq.data.contract import IMAGE, TEXT, DataSet, PictureText, Rows, filled, picture_text_example
from meq.data.files import BadRowError, described, read_rows, text_of
from meq.data.findings import Findings
from meq.data.metrics import ACCURACY
from meq.options import checked_options

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
    names = {split: (f"snli_ve_{split}.jsonl", f"data/snli_ve_{split}.jsonl") for split in SPLITS}
    files = split_files(root, names, findings, what="SNLI-VE")
    pictures = Tree(need_one_of(root, PICTURES, what="the folder of pictures"), root)
    left_out: Counter[str] = Counter()
    parse, make = partial(_row, pictures, left_out), partial(picture_text_example, pictures)
    required = ("gold_label", "pairID", "sentence2")
    splits = {
        split: Rows(read_rows(file, findings, parse=parse, required=required), make) for split, file in files.items()
    }
    return DataSet(
        name="snli-ve",
        splits=filled(splits, findings, root=root),
        modalities={"image": IMAGE, "text": TEXT},
        labels=LABELS,
        head="classes",
        metric=ACCURACY,
        facts={"left_out": dict(left_out), "official_sizes": OFFICIAL_SIZES, "dev": PAPER_DEV},
    )


def _row(pictures: Tree, left_out: Counter[str], line: int, record: Mapping[str, Any]) -> PictureText | None:
    pair = text_of(record, "pairID")
    if "vg_" in pair:
        left_out["pairs on Visual Genome"] += 1
        return None
    if record["gold_label"] == "-":
        left_out["pairs without a gold label"] += 1
        return None
    key = next((key for key in ("Flickr30K_ID", "Flikr30kID") if key in record), None)
    if key is None:
        raise BadRowError(
            "missing key", "the record has no 'Flickr30K_ID', and no 'Flikr30kID' as in the first release"
        )
    picture = text_of(record, key).removesuffix(".jpg") + ".jpg"
    return PictureText(
        id=pair,
        picture=sys.intern(pictures.find(picture)),
        text=text_of(record, "sentence2"),
        label=_label(record["gold_label"]),
        line=line,
    )


def _label(value: object) -> int:
    if value not in LABELS:
        raise BadRowError(
            "wrong label", f"the gold label is {described(value)}; it must be one of {', '.join(LABELS)}, or -"
        )
    return LABELS.index(str(value))
