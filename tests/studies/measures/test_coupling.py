"""Gates, blocks of the Jacobian and residuals at the kept weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
from studies.measures.subjects import CONCAT, COUPLED, NARROW, study, untrained

from meq.studies.build import PreparedData
from meq.studies.measures import make_measure
from meq.studies.measures.contract import as_found
from meq.studies.measures.coupling import Coupling
from meq.studies.study import StudyError


def test_all_parts_are_found_and_the_ratio_is_that_of_the_blocks(scenes: PreparedData) -> None:
    taken = Coupling(samples=1).take(untrained(scenes))
    assert taken is not None
    assert taken.blocks.keys() == {"image<-image", "image<-text", "text<-image", "text<-text"}
    assert all(0 < gate < 1 for gate in taken.gate.values())
    for name, other in (("image", "text"), ("text", "image")):
        ratio = taken.blocks[f"{name}<-{other}"] / taken.blocks[f"{name}<-{name}"]
        assert taken.cross_self[name] == pytest.approx(ratio, rel=1e-4)
    assert taken.whole["steps"] == NARROW["steps"]


def test_the_number_of_samples_is_that_of_those_there_are(scenes: PreparedData) -> None:
    few, all_of_dev = Coupling(samples=3).take(untrained(scenes)), Coupling(samples=100).take(untrained(scenes))
    assert few is not None
    assert all_of_dev is not None
    assert (few.samples, few.split) == (3, "dev")
    assert all_of_dev.samples == 18


def test_without_a_cross_path_the_cross_blocks_are_zero(scenes: PreparedData) -> None:
    taken = Coupling(samples=2).take(untrained(scenes, replace(COUPLED, options={**NARROW, "cross": False})))
    assert taken is not None
    assert taken.blocks["image<-text"] == 0
    assert taken.cross_self["image"] == 0


def test_models_without_steps_and_without_gates_leave_cells_empty(scenes: PreparedData) -> None:
    assert Coupling().take(untrained(scenes, CONCAT)) is None
    assert Coupling().tables(study(CONCAT), {}) == {}
    ungated = replace(COUPLED, name="no-gate", options={**NARROW, "gate": False})
    one, other = (Coupling(samples=2).take(untrained(scenes, arm)) for arm in (COUPLED, ungated))
    table = Coupling().tables(study(COUPLED, ungated), {("meq", 0): one, ("no-gate", 0): other})["coupling"]
    gate = [column.key for column in table.columns].index("gate image")
    assert isinstance(table.rows[0][gate], float)
    assert table.rows[1][gate] is None
    assert "2 samples of dev" in table.notes[0]


def test_a_sum_of_features_has_no_ratio_and_its_file_no_such_key(scenes: PreparedData) -> None:
    summed = replace(COUPLED, name="feature-sum", model="feature-sum")
    taken = Coupling(samples=2).take(untrained(scenes, summed))
    assert taken is not None
    assert taken.cross_self == {}
    assert "cross_self" not in as_found(taken)
    assert Coupling().typed({("feature-sum", 0): as_found(taken)}) == {("feature-sum", 0): taken}


def test_the_table_shows_mean_and_spread_over_seeds(scenes: PreparedData) -> None:
    taken = [Coupling(samples=2).take(untrained(scenes, seed=seed)) for seed in (0, 1)]
    table = Coupling().tables(study(COUPLED), {("meq", seed): each for seed, each in enumerate(taken)})["coupling"]
    place = [column.key for column in table.columns].index("whole jacobian_norm")
    norms = [each.whole["jacobian_norm"] for each in taken]
    assert table.rows[0][place] == pytest.approx(sum(norms) / 2)
    assert table.rows[0][place + 1] == pytest.approx(abs(norms[0] - norms[1]) / 2**0.5)


def test_a_split_that_is_not_there_is_said_before_training(scenes: PreparedData) -> None:
    with pytest.raises(StudyError, match="no split 'val'"):
        make_measure("coupling", {"split": "val"}).check(study(COUPLED), scenes)
