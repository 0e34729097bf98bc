"""Records with scores of one's choosing, made from a released one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from meq.studies import ArmConfig, DataConfig, RunRecord, Study, read_record
from meq.training.record import RunError

RELEASED = Path(__file__).parents[1] / "records" / "0.1.0"
SAMPLE = read_record(RELEASED / "runs" / "meq" / "seed-0")


def study(*arms: str, seeds: tuple[int, ...] = (0, 1, 2), paper: str | None = None) -> Study:
    return Study(
        name="sample",
        question="Which is better?",
        data=DataConfig(name="statements"),
        arms=tuple(ArmConfig(name=arm, model="concat") for arm in arms),
        seeds=seeds,
        reference=arms[0],
        paper=paper,
    )


def record(arm: str, seed: int, score: float | None, *, metric: str = "accuracy", parameters: int = 7) -> RunRecord:
    """A finished run with that score on dev, or a failed one."""
    config = {**SAMPLE.config, "seed": seed}
    same = replace(
        SAMPLE, study="sample", arm=arm, config=config, parameters=parameters, predictions={}, checkpoint=None
    )
    if score is None:
        error = RunError(kind="TrainingError", message="the loss is not\nfinite", batch_ids=("a",))
        return replace(same, status="failed", metrics={}, error=error)
    return replace(same, metrics={"dev": {metric: score, "loss": 1.0}})


def records(scores: Mapping[str, Mapping[int, float | None]], metric: str = "accuracy") -> dict:
    return {
        (arm, seed): record(arm, seed, score, metric=metric)
        for arm, seeds in scores.items()
        for seed, score in seeds.items()
    }
