"""A study and a measure of one's own: a function or a class, and one entry of a registry each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from meq.studies import Study, make_study, make_tables, records_of, run_study, verify
from meq.studies.measures import MEASURES, measured_of
from meq.studies.measures.contract import Measure, Results, TrainedModel
from meq.studies.recipes import STUDIES, describe, register_study
from meq.studies.settings import Setting, baseline, equilibrium, study_of
from meq.tables import Table


@dataclass(frozen=True, kw_only=True)
class WeightResult:
    largest: float


@dataclass(frozen=True, kw_only=True)
class LargestWeight(Measure[WeightResult]):
    """The largest weight of the model."""

    name: ClassVar[str] = "largest-weight"
    result: ClassVar[type] = WeightResult

    def take(self, trained: TrainedModel) -> WeightResult:
        return WeightResult(largest=max(float(x.detach().abs().max()) for x in trained.model.parameters()))

    def tables(self, study: Study, results: Results[WeightResult]) -> dict[str, Table]:
        rows = [{"arm": arm, "seed": str(seed), "largest": found.largest} for (arm, seed), found in results.items()]
        return {"largest-weight": Table.of(f"{study.name}: weights", rows)} if rows else {}


def weights(setting: Setting) -> Study:
    """How large do weights become?"""
    arms = [baseline(setting, "concat"), equilibrium(setting)]
    return study_of(setting, "How large do weights become?", arms, measures={"largest-weight": {}})


def test_a_study_and_a_measure_are_added_by_one_entry_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (MEASURES, STUDIES):  # what is registered here is forgotten after it
        monkeypatch.setattr(registry, "_written", dict(registry._written))
    MEASURES.register("largest-weight")(LargestWeight)
    register_study("weights", on=("statements",))(weights)
    assert describe("weights") == "How large do weights become?"
    study = make_study("weights", quick=True, seeds=[0])
    small = {"train": 32, "dev": 12, "test": 12}
    study = replace(study, data=replace(study.data, options=small), train=replace(study.train, epochs=1, batch_size=16))
    run_study(study, tmp_path / "study", console=Console(quiet=True))
    measured = measured_of(tmp_path / "study", study)
    assert all(found["largest"] > 0 for found in measured["largest-weight"].values())
    made = make_tables(study, records_of(tmp_path / "study", study), measured)["largest-weight"]
    assert [row[:2] for row in made.rows] == [("concat", "0"), ("meq", "0")]
    assert verify(tmp_path / "study").ok
