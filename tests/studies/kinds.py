"""One small data set of every kind that a study can be asked for: tokens, vectors, choices, tables of any width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import folders, more_folders

from meq.data.request import DataRequest
from meq.studies import Study
from meq.studies.build import Places, PreparedData, prepare_data

COUNT = 8
"""Examples of a split."""
FOLDERS: Mapping[str, Callable[[Path], Path]] = {
    "snli-ve": folders.snli_ve_folder,
    "hateful-memes": folders.hateful_memes_folder,
    "vcr": folders.vcr_folder,
    "vqa-v2": folders.vqa_v2_folder,
    "mosei": more_folders.mosei_folder,
    "cod10k": more_folders.cod10k_folder,
}
TABLES = {"table of two": 2, "table of three": 3, "table of four": 4}
GENERATED = {
    "scenes": {"train": 9, "dev": 9, "test": 9},
    "duels": {"train": 9, "dev": 9, "test": 9, "deep_test": 9},
}
KINDS = (*GENERATED, "statements", *FOLDERS, *TABLES)
OPTIONS = {**GENERATED, "cod10k": {"dev": 0.4}}
"""What the smallest form of a set needs."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A data set on disk, and how a study is asked for it."""

    name: str
    asked: str | DataRequest
    places: Places

    def prepare(self, study: Study) -> PreparedData:
        """The study's data as features, by encoders without weights."""
        return prepare_data(replace(study.data, encoders={}, limit=COUNT), self.places)


def make_kind(name: str, root: Path) -> Kind:
    """Written below `root`."""
    if name in TABLES:
        asked = _table(root / f"{TABLES[name]}.parquet", TABLES[name])
        return Kind(name=name, asked=asked, places=Places(data=Path(asked.data)))
    place = FOLDERS[name](root / name) if name in FOLDERS else None
    read = more_folders.cod10k_folder(root / "read") if name == "snli-ve" else None
    return Kind(
        name=name,
        asked=DataRequest(data=name, options=OPTIONS.get(name, {})),
        places=Places(data=place, read=read),
    )


def _table(path: Path, columns: int) -> DataRequest:
    """Vectors, of which the first one decides; one in ten rows lacks the last one."""
    generator = np.random.default_rng(0)
    made = {f"part{at}": generator.normal(size=(60, 4 + at)).tolist() for at in range(columns)}
    labels = [str(row[0] > 0) for row in made["part0"]]
    made[f"part{columns - 1}"] = [None if row % 10 == 9 else x for row, x in enumerate(made[f"part{columns - 1}"])]
    pq.write_table(pa.table({**made, "label": labels}), path)
    return DataRequest(data=str(path), vectors=tuple(made), label="label")
