"""A small table of pictures and captions, drawn on the spot: is the caption's colour that of the picture?"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from meq.data.request import DataRequest

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (30, 60, 220)}
BUILT_IN = {"image": "patches", "text": "words"}
COLUMNS = ["--image", "photo", "--text", "caption", "--label", "y", "--split", "part"]
SMALL = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "12"]
WITHOUT_WEIGHTS = ["--image-encoder", "patches", "--text-encoder", "words"]


def write_table(folder: Path, *, rows: int = 36, pictures: int = 6, name: str = "photos.csv") -> Path:
    """As many pictures and rows as asked for, a third of them true."""
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    names = list(COLOURS)
    for k in range(pictures):
        picture = Image.new("RGB", (24, 24), (230, 230, 230))
        picture.paste(COLOURS[names[k % 3]], (4 + k % 6, 4, 18 + k % 5, 20))
        picture.save(folder / "photos" / f"{k}.png")
    parts = ("train", "train", "dev", "test")
    told = [(k % pictures, names[(k // 6) % 3], parts[k % 4]) for k in range(rows)]
    cells = [[f"photos/{k}.png", f"it is {c}", "yes" if names[k % 3] == c else "no", part] for k, c, part in told]
    return write_rows(folder / name, ["photo", "caption", "y", "part"], cells)


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def request_for(path: Path) -> DataRequest:
    return DataRequest(data=str(path), images=("photo",), texts=("caption",), label="y", split="part")
