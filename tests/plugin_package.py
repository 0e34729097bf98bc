"""A package such as a user writes: one of everything that can be added, each a few lines and one line that names it.

It is imported by `meq --plugin`, and stands here as the example for the recipes in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import meq
from meq.core import register_solver
from meq.data import TEXT, DataSet, Example, features, register_data_set, register_metric
from meq.encoders import Encoder, Tokens, register_encoder
from meq.objectives import Penalty, PenaltyValues, register_penalty
from meq.objectives.probe import Evaluation
from meq.studies import ArmConfig, DataConfig, Study
from meq.studies.recipes import register_study
from meq.studies.settings import Setting
from meq.training.arms import register_arm
from meq.training.config import TrainConfig
from meq.viz.figures import register_run_figure
from meq.viz.run_figures import ReportedRun
from meq.viz.style import Drawing


@register_metric("my balanced accuracy")
def balanced_accuracy(logits: Tensor, target: Tensor) -> float:
    right = logits.argmax(1) == target
    return sum(float(right[target == label].double().mean()) for label in target.unique()) / len(target.unique())


@register_data_set("my-parity", summary="words and numbers", metric="my balanced accuracy", embedded=True)
def parity(*, count: int = 24) -> DataSet:
    """A word that is as long as the number of ones in a vector, or one letter longer."""

    def example(split: str, row: int) -> Example:
        ones = row % 4
        word = "a" * (1 + ones + row // 4 % 2)
        content: dict[str, Any] = {"word": word, "bits": torch.tensor([float(ones > place) for place in range(4)])}
        return Example(id=f"{split}-{row}", content=content, target=torch.tensor(row // 4 % 2))

    return DataSet(
        name="my-parity",
        splits={split: [example(split, row) for row in range(count)] for split in ("train", "dev", "test")},
        modalities={"word": TEXT, "bits": features(4)},
        labels=("same", "longer"),
        head="classes",
        metric=balanced_accuracy,
    )


@register_encoder("my-letters")
class Letters(Encoder):
    """One token per letter, one-hot."""

    kind = "text"
    revision = "1"
    name = "my-letters-1"
    width = 26

    def __init__(self, *, most: int = 8) -> None:
        self.most = most
        self.weight_hash = sha256(f"letters {most}".encode()).hexdigest()

    def __call__(self, contents: Sequence[Any]) -> list[Tokens]:
        return [self._tokens(str(content)[: self.most]) for content in contents]

    def _tokens(self, text: str) -> Tokens:
        codes = torch.tensor([ord(letter) - ord("a") for letter in text])
        spans = torch.tensor([(place, place + 1) for place in range(len(text))])
        return Tokens(features=torch.nn.functional.one_hot(codes, self.width).float(), spans=spans)


@register_solver
@dataclass(frozen=True)
class Halving(meq.Solver):
    """z <- z + rate (F(z) - z)."""

    rate: float = 0.5

    def advance(self, state: Any, move: Any, memory: Any, masks: Any) -> Any:
        return {name: z + self.rate * move[name] for name, z in state.items()}, None


@register_penalty("my-small-state")
@dataclass(frozen=True, kw_only=True)
class SmallState(Penalty):
    """The mean square of the state that was read."""

    weight: float = 0.01

    def measure(self, evaluation: Evaluation) -> PenaltyValues:
        squares = [z.flatten(1).square().mean(1) for z in evaluation.state.values()]
        return PenaltyValues(torch.stack(squares).mean(0))


@register_arm("my-fusion", gate=False)
class MyFusion(meq.MutualEquilibrium):
    """The equilibrium without its gate, by a name of its own."""


@register_study("my-study", on=["my-parity"])
def my_study(setting: Setting) -> Study:
    """Does the fusion of mine beat a concatenation?"""
    small = {"dim": 8, "heads": 2}
    mine = ArmConfig(
        name="mine",
        model="my-fusion",
        options={**small, "steps": 2},
        penalties={"my-small-state": {"weight": 0.1}},
        solver="halving",
    )
    return Study(
        name="my-study",
        question="Does it?",
        data=DataConfig(name="my-parity", encoders={"word": "my-letters"}),
        arms=(mine, ArmConfig(name="concat", model="concat", options=small)),
        seeds=setting.seeds,
        reference="mine",
        train=TrainConfig(epochs=1, batch_size=8),
    )


@register_run_figure("my-epochs", place="training")
def epochs(run: ReportedRun) -> list[Drawing]:
    """One bar per epoch."""
    figure = Figure()
    figure.subplots().bar(range(len(run.files.record.curves)), 1)
    return [Drawing(figure=figure, alt="a bar per epoch", caption="How long it was trained.")]
