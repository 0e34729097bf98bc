"""A few examples of a data set, in words and as a sheet."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from meq.core.options import nearest
from meq.data.content import Content, Picture, Regions, SoundFile
from meq.data.contract import DataSet, Example
from meq.data.findings import DataError
from meq.foreign import printable
from meq.viz.examples import draw_sheet

SUFFIXES = (".png", ".jpg", ".jpeg")


def choose_examples(data: DataSet, split: str, count: int, *, seed: int = 0) -> list[Example]:
    """The first examples of a split, or, with another seed, drawn ones."""
    if split not in data.splits:
        raise DataError(f"{data.name} has no split {split!r}: {nearest(split, data.splits)}")
    examples = data.splits[split]
    places = list(range(min(count, len(examples))))
    if seed:
        places = sorted(random.Random(seed).sample(range(len(examples)), len(places)))
    return [examples[place] for place in places]


def describe_examples(data: DataSet, examples: Sequence[Example]) -> str:
    """A paragraph per example: id, label, and what each modality holds."""
    told = "\n\n".join(_describe(data, example) for example in examples)
    return "\n".join(map(printable, told.split("\n")))  # texts can hold what would move a terminal's cursor


def check_sheet(path: Path) -> None:
    """An error if no sheet can be drawn there; worth asking before the data is read."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: a sheet is drawn as {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(f"{path}: nothing can be written there; choose another place")


def save_sheet(data: DataSet, examples: Sequence[Example], path: Path) -> None:
    """Draw the examples into a picture file, whole or not at all."""
    check_sheet(path)
    sheet = draw_sheet(examples, data.labels, caption=str(data.facts.get("rule", "")))
    whole = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        sheet.save(whole)
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)


def _describe(data: DataSet, example: Example) -> str:
    lines = [f"{example.id}: {_answer(data, example.target)}"]
    lines += [f"  {name}: {_in_words(example.content.get(name))}" for name in data.modalities]
    shown = {name: value for name, value in example.facts.items() if isinstance(value, str | int | float)}
    if shown:
        lines.append(f"  ({', '.join(f'{name}: {value}' for name, value in shown.items())})")
    return "\n".join(lines)


def _answer(data: DataSet, target: Tensor | None) -> str:
    if target is None:
        return "no label"
    if data.head == "score":
        return f"{float(target):g}"
    if target.ndim == 0:
        return data.labels[int(target)]
    best = [(float(target[k]), data.labels[k]) for k in target.nonzero().flatten().tolist()]
    return ", ".join(f"{label} ({worth:g})" for worth, label in sorted(best, reverse=True)) or "none of the labels"


def _in_words(content: Content | None) -> str:
    if content is None:
        return "missing"
    if isinstance(content, str):
        return content
    if isinstance(content, Picture | SoundFile):
        return str(content)
    if isinstance(content, Regions):
        return f"{content.picture}, {len(content.boxes)} regions: {', '.join(content.names)}"
    if isinstance(content, Tensor):
        return f"{' x '.join(map(str, content.shape))} numbers"
    choices: Sequence[Any] = content
    return "".join(f"\n    {place}. {_in_words(choice)}" for place, choice in enumerate(choices, start=1))
