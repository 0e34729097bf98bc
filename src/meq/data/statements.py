"""A small generated set: a grid of coloured shapes and a statement about it, true or false.

Nothing to download and nothing to encode: image tokens are one-hot descriptions of the cells, text tokens one-hot
words. "there is a red thing" (existence) needs one comparison, "there is a red circle" (binding) needs colour and shape
in the same cell, which features pooled apart cannot tell. The label is fixed before
the statement is drawn, so that the statement alone tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.data.contract import DataSet, Example, features
from meq.data.metrics import ACCURACY
from meq.options import checked_options

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("circle", "square", "triangle", "star")
CELLS = 9
OBJECTS = 4
WORDS = ("there", "is", "a", "thing", *COLOURS, *SHAPES)
IMAGE_WIDTH = len(COLOURS) + len(SHAPES) + CELLS
TEXT_LENGTH = 5


@checked_options
def statements(*, train: int = 4000, dev: int = 1000, test: int = 1000, seed: int = 0) -> DataSet:
    """Generate the set; the same arguments always give the same examples."""
    splits = {
        name: [_example(f"{name}-{row}", seed * 4 + part, row) for row in range(count)]
        for part, (name, count) in enumerate((("train", train), ("dev", dev), ("test", test)))
    }
    return DataSet(
        name="statements",
        splits=splits,
        modalities={"image": features(IMAGE_WIDTH), "text": features(len(WORDS) + TEXT_LENGTH)},
        labels=("false", "true"),
        head="classes",
        metric=ACCURACY,
        facts={"train": train, "dev": dev, "test": test, "seed": seed},
    )


def _example(name: str, stream: int, row: int) -> Example:
    import torch

    generator = torch.Generator().manual_seed(stream * 1_000_003 + row)
    truth, binding = row % 2 == 0, (row // 2) % 2 == 0
    colour, shape = _draw(len(COLOURS), generator), _draw(len(SHAPES), generator)
    objects = _objects(colour, shape, truth=truth, binding=binding, generator=generator)
    words = ["there", "is", "a", COLOURS[colour], SHAPES[shape] if binding else "thing"]
    return Example(
        id=name,
        content={"image": _picture(objects, generator), "text": _sentence(words)},
        target=torch.tensor(int(truth)),
    )


def _objects(
    colour: int, shape: int, *, truth: bool, binding: bool, generator: torch.Generator
) -> list[tuple[int, int]]:
    """Objects that make the statement true or false. A false binding shows its colour and its shape, on two objects."""
    objects = []
    if binding:
        objects = (
            [(colour, shape)] if truth else [(colour, _other(shape, generator)), (_other(colour, generator), shape)]
        )
    elif truth:
        objects = [(colour, shape)]
    while len(objects) < OBJECTS:
        candidate = (_draw(len(COLOURS), generator), _draw(len(SHAPES), generator))
        wrong = candidate == (colour, shape) if binding else candidate[0] == colour
        if truth or not wrong:
            objects.append(candidate)
    return objects


def _picture(objects: list[tuple[int, int]], generator: torch.Generator) -> Tensor:
    """One token per cell: colour, shape and place; empty cells have a place only."""
    import torch

    tokens = torch.zeros(CELLS, IMAGE_WIDTH)
    tokens[:, -CELLS:] = torch.eye(CELLS)
    for cell, (colour, shape) in zip(torch.randperm(CELLS, generator=generator).tolist(), objects, strict=False):
        tokens[cell, colour] = tokens[cell, len(COLOURS) + shape] = 1
    return tokens


def _sentence(words: list[str]) -> Tensor:
    import torch

    tokens = torch.zeros(len(words), len(WORDS) + TEXT_LENGTH)
    for place, word in enumerate(words):
        tokens[place, WORDS.index(word)] = tokens[place, len(WORDS) + place] = 1
    return tokens


def _draw(count: int, generator: torch.Generator) -> int:
    import torch

    return int(torch.randint(count, (), generator=generator))


def _other(index: int, generator: torch.Generator) -> int:
    """Another colour or shape; both have as many values."""
    return (index + 1 + _draw(len(COLOURS) - 1, generator)) % len(COLOURS)
