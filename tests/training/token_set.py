"""A set whose tokens answer: every word that asks must say the label that stands in the picture, the others nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import meq
from meq.data import DataSet, Example, features
from meq.data.metrics import TOKEN_ACCURACY, WHOLE_ACCURACY
from meq.objectives import Objective
from meq.training import TrainConfig, fit, seed_everything
from meq.training.record import RunRecord

WIDTHS = {"image": 4, "text": 3}
LABELS = ("red", "blue", "nothing")


def token_data(train: int = 96, *, dev: int = 24) -> DataSet:
    """Texts of two to four words, the first of which is not asked in every fourth example; every ninth has no picture.

    Without its picture an example's answers are all "nothing".
    """
    generator = torch.Generator().manual_seed(5)
    splits = {
        name: [_example(f"{name}-{row}", row, generator) for row in range(count)]
        for name, count in (("train", train), ("dev", dev), ("test", 9))
    }
    return DataSet(
        name="words that ask",
        splits=splits,
        modalities={name: features(width) for name, width in WIDTHS.items()},
        labels=LABELS,
        head="tokens",
        metric=TOKEN_ACCURACY,
        also=(WHOLE_ACCURACY,),
        answering=("text",),
    )


def _example(name: str, row: int, generator: torch.Generator) -> Example:
    label = int(torch.randint(2, (), generator=generator))
    image = 0.3 * torch.randn(2, 4, generator=generator)
    image[0, label] += 2.0  # it stands in the first of its two tokens
    asks = torch.rand(2 + row % 3, generator=generator) < 0.6
    text = 0.3 * torch.randn(len(asks), 3, generator=generator)
    text[:, 0] += torch.where(asks, 2.0, -2.0)
    content = {"image": image, "text": text}
    if row % 9 == 4:
        del content["image"]
    answers = torch.where(asks & ("image" in content), label, 2)
    if row % 4 == 1:
        answers[0] = -1
    return Example(id=name, content=content, target=answers)


def token_model(**options: Any) -> meq.MutualEquilibrium:
    given = {"dim": 8, "heads": 2, "steps": 4, "head_width": 16, "head": "tokens", "answering": ("text",), **options}
    return meq.MutualEquilibrium(WIDTHS, len(LABELS), **given)


def train_tokens(folder: Path, *, epochs: int = 12, resume: bool = False, **options: Any) -> RunRecord:
    seed_everything(3)
    given = {"batch_size": 12, "learning_rate": 2e-2, "monitor_samples": 4, **options}
    config = TrainConfig(epochs=epochs, **given)
    objective = Objective(task="tokens")
    return fit(token_model(), token_data(), objective, folder, config, resume=resume, console=Console(quiet=True))
