"""A small set of pictures and texts that pairs share, and an encoder that says what it was asked to encode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from meq.data.content import Content, PictureFile
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows
from meq.data.metrics import ACCURACY
from meq.encoders.builtin import Patches, Words
from meq.encoders.contract import Encoder, Tokens

COLOURS = ("red", "green", "blue", "yellow", "no")


class CountingWords(Words):
    """`Words`, with a memory of every text that it encoded, and as slow as one likes."""

    def __init__(self, *, max_words: int = 64, seconds: float = 0.0) -> None:
        super().__init__(max_words=max_words)
        self.encoded: list[Content] = []
        self.seconds = seconds

    def __call__(self, contents: Sequence[Content]) -> list[Tokens]:
        self.encoded += contents
        time.sleep(self.seconds * len(contents))
        return super().__call__(contents)


def write_pictures(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def small_set(folder: Path, *, pictures: int = 6, pairs: int = 24) -> DataSet:
    """Pairs that share pictures four by four, and texts with the pairs of other pictures."""
    if not folder.exists():
        write_pictures(folder, pictures)

    def make(number: int) -> Example:
        text = f"there is {COLOURS[number % len(COLOURS)]} in it"
        return Example(
            id=f"pair-{number}",
            content={"image": PictureFile(folder / f"{number % pictures}.png", folder), "text": text},
            target=torch.tensor(number % 2),
        )

    cut = 3 * pairs // 4
    return DataSet(
        name="pairs",
        splits={"train": Rows(range(cut), make), "dev": Rows(range(cut, pairs), make)},
        modalities={"image": IMAGE, "text": TEXT},
        labels=("no", "yes"),
        head="classes",
        metric=ACCURACY,
    )


def text_set(count: int) -> DataSet:
    """Different texts of different lengths."""

    def make(number: int) -> Example:
        text = " ".join(f"word{number}x{place}" for place in range(1 + number % 7))
        return Example(id=f"text-{number}", content={"text": text}, target=torch.tensor(number % 2))

    return DataSet(
        name="texts",
        splits={"train": Rows(range(count), make)},
        modalities={"text": TEXT},
        labels=("no", "yes"),
        head="classes",
        metric=ACCURACY,
    )


def small_encoders() -> dict[str, Encoder]:
    return {"image": Patches(grid=2), "text": CountingWords()}
