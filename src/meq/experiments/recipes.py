"""The studies by name: each a function whose docstring gives the command, the duration and what to expect."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from meq.core.options import nearest
from meq.experiments.study import ArmConfig, DataConfig, Study, StudyError
from meq.training.config import TrainConfig

Recipe = Callable[[], Study]
STUDIES: dict[str, Recipe] = {}
PENALTIES = {"jacobian-range": {"weight": 0.5}, "residual-correction": {"weight": 0.3}}


def recipe(function: Recipe) -> Recipe:
    """Register a study under the name it gives itself."""
    name = function().name
    if name in STUDIES:
        raise StudyError(f"there are two studies called {name!r}")
    STUDIES[name] = function
    return function


def make_study(name: str) -> Study:
    if name not in STUDIES:
        raise StudyError(f"there is no study {name!r}: {nearest(name, STUDIES)}")
    return STUDIES[name]()


def describe(name: str) -> str:
    """What the recipe says of itself."""
    return inspect.cleandoc(STUDIES[name].__doc__ or "")


@recipe
def statements_tiny() -> Study:
    """Does the machinery of studies work? Two arms, three seeds, a few updates each.

    Command: meq study run statements-tiny --out studies/tiny
    Duration: less than a minute on one core.
    Expect: nothing of the scores, which are at chance; a table, and a folder that verifies.
    """
    small = {"dim": 16, "heads": 2, "head_width": 16}
    return Study(
        name="statements-tiny",
        question="Does the machinery work?",
        data=DataConfig(name="statements", options={"train": 64, "dev": 24, "test": 16}),
        arms=(
            ArmConfig(name="concat", model="concat", options={"dim": 16, "head_width": 16}),
            ArmConfig(name="meq", model="meq", options={**small, "steps": 3}, penalties=PENALTIES),
        ),
        seeds=(0, 1, 2),
        reference="concat",
        train=TrainConfig(epochs=2, batch_size=16, learning_rate=3e-3, checkpoint_every=2, monitor_samples=4),
    )


@recipe
def statements() -> Study:
    """Do states that read each other bind colour to shape, where pooled features cannot?

    Command: meq study run statements --out studies/statements
    Duration: about twenty minutes on one core.
    Expect: the equilibrium and the attention arms answer nearly everything, concatenation of pooled features little
    better than chance: it cannot tell a red circle beside a blue square from a blue circle beside a red square. Which
    of the others is ahead is not settled by three seeds.
    """
    shape = {"dim": 64, "heads": 4}
    return Study(
        name="statements",
        question="Do coupled states bind colour to shape?",
        data=DataConfig(name="statements"),
        arms=(
            ArmConfig(name="concat", model="concat", options={"dim": 64}),
            ArmConfig(name="self-attention", model="self-attention", options=shape),
            ArmConfig(name="cross-attention", model="cross-attention", options=shape),
            ArmConfig(name="meq", model="meq", options={**shape, "steps": 8}, penalties=PENALTIES),
        ),
        seeds=(0, 1, 2),
        reference="concat",
        train=TrainConfig(epochs=15, batch_size=64, learning_rate=1e-3),
    )
