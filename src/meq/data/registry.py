"""The data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data.cod10k import cod10k
from meq.data.contract import DataSet
from meq.data.easy_vqa import easy_vqa
from meq.data.findings import DataError, Findings
from meq.data.hateful_memes import hateful_memes
from meq.data.mosei import mosei
from meq.data.scenes import scenes
from meq.data.snli_ve import snli_ve
from meq.data.statements import statements
from meq.data.vcr import vcr
from meq.data.vqa_v2 import vqa_v2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set one can ask for by name."""

    read: Callable[..., DataSet]
    """read(root, findings=..., **options), or read(**options) for a set that needs no folder."""
    summary: str
    metric: str
    embedded: bool = False
    """Comes with the package, or with one from PyPI: there is no folder to point at."""

    @property
    def options(self) -> list[str]:
        return [name for name in inspect.signature(self.read).parameters if name not in ("root", "findings")]


DATA_SETS: Mapping[str, Entry] = {
    "scenes": Entry(
        read=scenes,
        summary="pictures of shapes, partly covered, and statements: true, false or open",
        metric="accuracy",
        embedded=True,
    ),
    "statements": Entry(
        read=statements, summary="grids of shapes and statements, already features", metric="accuracy", embedded=True
    ),
    "snli-ve": Entry(read=snli_ve, summary="SNLI-VE: does the picture entail the sentence?", metric="accuracy"),
    "hateful-memes": Entry(read=hateful_memes, summary="Hateful Memes: picture and text together", metric="auroc"),
    "vqa-v2": Entry(read=vqa_v2, summary="VQA v2: questions about pictures", metric="soft accuracy"),
    "vcr": Entry(read=vcr, summary="VCR: which of four answers, or of four rationales?", metric="accuracy"),
    "mosei": Entry(read=mosei, summary="CMU-MOSEI: sentiment from video, audio and words", metric="Acc-7"),
    "cod10k": Entry(read=cod10k, summary="COD10K: is this animal hidden in the picture?", metric="accuracy"),
    "easy-vqa": Entry(
        read=easy_vqa, summary="questions about a coloured shape (pip)", metric="accuracy", embedded=True
    ),
}


def open_data(
    name: str, root: Path | str | None = None, *, findings: Findings | None = None, **options: Any
) -> DataSet:
    """The data set of that name, read from its folder; nothing is encoded and no picture is opened yet.

    `findings` decides what a bad row does: raise, which is the default, or be skipped and counted.
    """
    if name not in DATA_SETS:
        raise DataError(f"there is no data set {name!r}: {nearest(name, DATA_SETS)}")
    entry = DATA_SETS[name]
    for option in options:
        if option not in entry.options:
            raise DataError(f"the data set {name!r} has no option {option!r}: {nearest(option, entry.options)}")
    if entry.embedded:
        if root is not None:
            raise DataError(f"{name!r} is generated or installed, it has no folder; got {root}")
        return entry.read(**options)
    if root is None:
        raise DataError(f"{name!r} lies in a folder of yours: give its path (see: meq data list)")
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; {name!r} is read from the folder that holds its files")
    return entry.read(root, findings=findings if findings is not None else Findings(), **options)
