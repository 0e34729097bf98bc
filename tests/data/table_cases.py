"""Small tables that the tests of `meq.data.table` write and read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from meq.data.contract import DataSet
from meq.data.findings import Findings
from meq.data.table import table

SPLITS = ("train", "train", "dev", "dev", "test", "test")


def as_csv(folder: Path, records: list[dict[str, Any]], name: str = "t.csv") -> Path:
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return folder / name


def as_jsonl(folder: Path, records: list[dict[str, Any]]) -> Path:
    (folder / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return folder / "t.jsonl"


def as_parquet(folder: Path, records: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(records), folder / "t.parquet")
    return folder / "t.parquet"


def simple(**columns: list[Any]) -> list[dict[str, Any]]:
    """Six rows, two for each split, with a text, a label, and whatever columns are given."""
    base = {"t": [f"word {n}" for n in range(6)], "y": ["no", "yes"] * 3, "split": list(SPLITS)} | columns
    return [{name: cells[n] for name, cells in base.items()} for n in range(6)]


def contents(data: DataSet, name: str) -> list[Any]:
    """The modality of every row, in the order of the lines; None where it is missing."""
    examples = [example for split in data.splits.values() for example in split]
    return [example.content.get(name) for example in sorted(examples, key=lambda example: example.facts["line"])]


def skipped(path: Path, **options: Any) -> tuple[list[tuple[str, int | None]], DataSet]:
    """Kind and line of everything that was left out, and what was not."""
    findings = Findings(on_bad="skip")
    data = table(path, findings=findings, **options)
    return [(finding.kind, finding.line) for finding in findings], data


def photos(folder: Path, count: int = 40, rows: int = 200) -> Path:
    """Captions of photos, several for each."""
    (folder / "img").mkdir()
    for n in range(count):
        Image.new("RGB", (4, 3), (n, 0, 0)).save(folder / "img" / f"{n}.png")
    records = [{"photo": f"img/{n % count}.png", "caption": f"photo {n}", "y": "ab"[n % 2]} for n in range(rows)]
    return as_csv(folder, records)


def pictured(folder: Path, *names: str) -> Path:
    """A table whose first six rows are good and whose others name these pictures."""
    (folder / "root" / "sub").mkdir(parents=True)
    (folder / "secret").mkdir()
    for place in (folder / "root" / "good.png", folder / "secret" / "out.png", folder / "root" / "sub" / "in ü#1.png"):
        Image.new("RGB", (2, 2)).save(place)
    records = [{"p": name, "y": n % 2, "split": SPLITS[n % 6]} for n, name in enumerate(["good.png"] * 6 + list(names))]
    return as_csv(folder / "root", records)
