"""Runs to be measured, of models that have not learned anything: a measure reads off whatever weights there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from studies.samples import SAMPLE

from meq.studies import ArmConfig, DataConfig, Study
from meq.studies.build import PreparedData, build_model
from meq.studies.measures.contract import TrainedModel

NARROW = {"dim": 8, "heads": 2, "steps": 2, "hidden": 16, "head_width": 8}
COUPLED = ArmConfig(name="meq", model="meq", options=NARROW)
CONCAT = ArmConfig(name="concat", model="concat", options={"dim": 8, "head_width": 8})


def study(
    *arms: ArmConfig, data: DataConfig | None = None, measures: Mapping[str, Any] | None = None, seeds: tuple = (0, 1)
) -> Study:
    """The last arm is the reference."""
    return Study(
        name="sample",
        question="What is there?",
        data=data or DataConfig(name="scenes"),
        arms=arms,
        seeds=seeds,
        reference=arms[-1].name,
        measures=measures or {},
    )


def untrained(
    prepared: PreparedData, arm: ArmConfig = COUPLED, *, seed: int = 0, labelled: str = "test"
) -> TrainedModel:
    """A run of an arm on a set, scored on one split, with its initial weights."""
    data = prepared.seen_by(arm)
    model = build_model(study(arm), arm, data, seed).eval()
    record = replace(SAMPLE, arm=arm.name, metrics={labelled: {"accuracy": 0.5, "loss": 1.0}})
    return TrainedModel(model=model, data=data, arm=arm, record=record, prepared=prepared)
