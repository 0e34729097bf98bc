"""A run small enough to be killed twenty times: ragged texts, missing modalities, dropout, every penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import meq
from meq.data import DataSet, Example, features
from meq.data.metrics import ACCURACY
from meq.models.base import FusionModel
from meq.objectives import JacobianRange, Objective, ResidualCorrection
from meq.training import TrainConfig, fit, seed_everything
from meq.training.record import RunRecord

WIDTHS = {"image": 5, "text": 4}
PENALTIES = (JacobianRange(weight=0.5), ResidualCorrection(weight=0.3))


def small_data(train: int = 48, dtype: torch.dtype = torch.float32, *, complete: bool = False) -> DataSet:
    generator = torch.Generator().manual_seed(7)
    splits = {
        name: [_example(f"{name}-{row}", 0 if complete else row, generator, dtype) for row in range(count)]
        for name, count in (("train", train), ("dev", 17), ("test", 9))
    }
    return DataSet(
        name="small",
        splits=splits,
        modalities={name: features(width) for name, width in WIDTHS.items()},
        labels=("no", "yes"),
        head="classes",
        metric=ACCURACY,
        facts={},
    )


def _example(name: str, row: int, generator: torch.Generator, dtype: torch.dtype) -> Example:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    image, text = draw(3, 5), draw(2 + row % 3, 4)
    target = torch.tensor(int(image.mean() > text.mean()))
    content = {"image": image, "text": text}
    if row % 7 == 3:
        del content["text"]
    return Example(id=name, content=content, target=target)


def small_model(dtype: torch.dtype = torch.float32, **options: Any) -> FusionModel:
    given = {"dim": 8, "heads": 2, "steps": 3, "head_width": 8, "dropout": 0.2, "modality_dropout": 0.1, **options}
    return meq.MutualEquilibrium(WIDTHS, 2, **given).to(dtype)


def small_config(**options: Any) -> TrainConfig:
    given = {
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 1e-2,
        "checkpoint_every": 2,
        "monitor_samples": 6,
        **options,
    }
    return TrainConfig(**given)


def train_small(
    folder: Path, *, resume: bool = False, dtype: torch.dtype = torch.float32, tol: float = 1e-3, **options: Any
) -> RunRecord:
    """One whole run, the same every time."""
    seed_everything(3)
    model = small_model(dtype, damping="learned", tol=tol)
    objective = Objective(task="classes", penalties=PENALTIES)
    quiet = Console(quiet=True)
    return fit(model, small_data(dtype=dtype), objective, folder, small_config(**options), resume=resume, console=quiet)


class Interrupting(Objective):
    """Breaks a run off after some batches."""

    left = 4

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        object.__setattr__(self, "left", self.left - 1)
        if self.left == 0:
            raise KeyboardInterrupt
        return super().__call__(*arguments, **options)
