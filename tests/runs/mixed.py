"""A small run on pictures, captions and numbers, drawn on the spot, with the built-in encoders."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from studies.photo_table import BUILT_IN, COLOURS, write_rows

from meq.data.request import DataRequest
from meq.runs import TrainedRun, train_on
from meq.training import TrainConfig

SMALL = {"dim": 8, "heads": 2, "steps": 2}
ONCE = TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)


def png(colour: tuple[int, int, int] = (220, 30, 30), size: tuple[int, int] = (24, 24)) -> bytes:
    file = io.BytesIO()
    picture = Image.new("RGB", size, (230, 230, 230))
    picture.paste(colour, (4, 4, 18, 20))
    picture.save(file, "PNG")
    return file.getvalue()


def mixed_run(folder: Path) -> TrainedRun:
    """In the folder: the run `run`, its table photos.csv of photo, caption, sizes and y, and its pictures."""
    rows = []
    for k in range(36):
        colour, said = list(COLOURS)[k % 3], list(COLOURS)[(k // 6) % 3]
        (folder / f"{colour}.png").write_bytes(png(COLOURS[colour]))
        part = ("train", "train", "dev", "test")[k % 4]
        rows.append([f"{colour}.png", f"it is {said}", f"{k % 5} {k % 3}", "yes" if colour == said else "no", part])
    table = write_rows(folder / "photos.csv", ["photo", "caption", "sizes", "y", "part"], rows)
    request = DataRequest(
        data=str(table), images=("photo",), texts=("caption",), vectors=("sizes",), label="y", split="part"
    )
    return train_on(request, folder / "run", encoders=BUILT_IN, shape=SMALL, config=ONCE)
