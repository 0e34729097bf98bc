"""A study that tests the machinery of studies."""

from __future__ import annotations

from meq.experiments.study import ArmConfig, DataConfig, Study
from meq.training.config import TrainConfig

PENALTIES = {"jacobian-range": {"weight": 0.5}, "residual-correction": {"weight": 0.3}}


def statements_tiny() -> Study:
    """Does the machinery of studies work? Two arms, three seeds, a few updates each; the scores are at chance."""
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
