"""easy-VQA: questions about a coloured shape, a small public benchmark that comes with pip."""

from __future__ import annotations

from pathlib import Path

from meq.data.content import PictureFile, Tree
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows, plain_example
from meq.data.files import read_json
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY
from meq.data.splitting import check_held_out, split_by_fractions
from meq.errors import needs
from meq.options import checked_options

SHAPES = ("circle", "rectangle", "triangle")
_Row = tuple[str, str, int, PictureFile]
"""Id, question, number of the answer, picture."""


@checked_options
def easy_vqa(*, dev: float = 0.1, seed: int = 0) -> DataSet:
    """The installed package easy-vqa, with its own test split; `dev` is the share of training pictures to hold out.

    All questions about a picture are on the same side.
    """
    check_held_out("easy-vqa", dev)
    try:
        import easy_vqa as package  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(needs("easy_vqa", "the set easy-vqa")) from error
    folder = Path(str(package.__file__)).parent / "data"
    answers = tuple((folder / "answers.txt").read_text(encoding="utf-8").split())
    train, test = (_read(folder, split, answers) for split in ("train", "test"))
    names = sorted({row[3].path.name for row in train})
    splits = split_by_fractions(names, {"train": 1 - dev, "dev": dev}, seed=seed) if dev else ["train"] * len(names)
    held_out = {name for name, split in zip(names, splits, strict=True) if split == "dev"}

    kinds = dict.fromkeys(("yes", "no"), "yes or no") | dict.fromkeys(SHAPES, "shape")

    def make(row: _Row) -> Example:
        name, question, answer, picture = row
        return plain_example(
            id=name,
            content={"image": picture, "text": question},
            target=answer,
            facts={"asks_for": kinds.get(answers[answer], "colour"), "picture": picture.path.name},
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


def _read(folder: Path, split: str, answers: tuple[str, ...]) -> list[_Row]:
    file = folder / split / "questions.json"
    tree = Tree(folder / split / "images", folder)
    pictures = {name: tree.picture(name) for name in tree.names()}
    numbers = {answer: number for number, answer in enumerate(answers)}
    rows = []
    try:
        questions = read_json(file)  # [[question, answer, number of the picture], ...]
    except DataError as error:
        raise DataError(f"{error}; reinstall easy-vqa") from error
    for row, (question, answer, image) in enumerate(questions):
        picture = pictures.get(f"{image}.png")
        if picture is None or answer not in numbers:
            raise DataError(
                f"{file}, question {row}: no picture {image}.png or no answer {answer!r}; reinstall easy-vqa"
            )
        rows.append((f"{split}-{row}", question, numbers[answer], picture))
    return rows
