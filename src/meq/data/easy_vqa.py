"""easy-VQA: questions about a coloured shape, a small public benchmark that comes with pip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from meq.core.options import checked_options
from meq.data.content import PictureFile, PictureFolder
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows
from meq.data.findings import DataError
from meq.data.jsonl import read_json
from meq.data.metrics import ACCURACY
from meq.data.splitting import split_by_fractions

SHAPES = ("circle", "rectangle", "triangle")
_Row = tuple[str, str, int, PictureFile]
"""Id, question, number of the answer, picture."""


@checked_options
def easy_vqa(*, dev: float = 0.1, seed: int = 0) -> DataSet:
    """The installed package easy-vqa, with its own test split; `dev` is the share of training pictures to hold out.

    All questions about a picture are on the same side.
    """
    if not 0 <= dev < 1:
        raise DataError(f"easy-vqa: dev is the share of training pictures to hold out, from 0 to below 1; got {dev}")
    folder = _folder()
    answers = tuple((folder / "answers.txt").read_text(encoding="utf-8").split())
    train, test = (_read(folder, split, answers) for split in ("train", "test"))
    held_out = _held_out(train, dev, seed) if dev else frozenset()

    def make(row: _Row) -> Example:
        name, question, answer, picture = row
        return Example(
            id=name,
            content={"image": picture, "text": question},
            target=torch.tensor(answer),
            facts={"asks_for": _kind(answers[answer]), "picture": picture.path.name},
        )

    parts = {
        "train": [row for row in train if row[3].path.name not in held_out],
        "dev": [row for row in train if row[3].path.name in held_out],
        "test": test,
    }
    return DataSet(
        name="easy-vqa",
        splits={name: Rows(rows, make) for name, rows in parts.items() if rows},
        modalities={"image": IMAGE, "text": TEXT},
        labels=answers,
        head="classes",
        metric=ACCURACY,
        facts={"dev": dev, "seed": seed, "split": "official test; dev drawn from train by picture"},
    )


def _folder() -> Path:
    try:
        import easy_vqa as package  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError("the set easy-vqa is a package of that name: pip install 'meq[offline]'") from error
    return Path(str(package.__file__)).parent / "data"


def _read(folder: Path, split: str, answers: tuple[str, ...]) -> list[_Row]:
    file = folder / split / "questions.json"
    listed = PictureFolder(folder / split / "images", folder)
    pictures = {name: listed.picture(name) for name in listed.names}
    numbers = {answer: number for number, answer in enumerate(answers)}
    rows = []
    for row, (question, answer, image) in enumerate(_questions(file)):
        picture = pictures.get(f"{image}.png")
        if picture is None or answer not in numbers:
            raise DataError(
                f"{file}, question {row}: no picture {image}.png or no answer {answer!r}; reinstall easy-vqa"
            )
        rows.append((f"{split}-{row}", question, numbers[answer], picture))
    return rows


def _questions(file: Path) -> Any:
    """[[question, answer, number of the picture], ...]"""
    try:
        return read_json(file)
    except DataError as error:
        raise DataError(f"{error}; reinstall easy-vqa") from error


def _held_out(rows: list[_Row], dev: float, seed: int) -> frozenset[str]:
    """Names of the pictures that dev takes from train."""
    names = sorted({row[3].path.name for row in rows})
    splits = split_by_fractions(names, {"train": 1 - dev, "dev": dev}, seed=seed)
    return frozenset(name for name, split in zip(names, splits, strict=True) if split == "dev")


def _kind(answer: str) -> str:
    return "yes or no" if answer in ("yes", "no") else "shape" if answer in SHAPES else "colour"
