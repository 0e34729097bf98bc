from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.small import TINY
from rich.console import Console

from meq.experiments import StudyError, run_study
from meq.experiments.executors.scheduling import RETRIES, Backlog, sharing
from meq.experiments.measures import read_measured
from meq.experiments.study import ArmConfig, run_place

FREE = ArmConfig(name="free", model="meq", options={"dim": 8, "heads": 2, "head_width": 8, "steps": 2})
HELD = replace(FREE, name="held", penalties={"cross-floor": {"weight": 0.1}}, floor_from="free")
STUDY = replace(
    TINY,
    name="held-up",
    arms=(HELD, FREE),
    seeds=(0, 1),
    reference="free",
    measures={"coupling": {}},
    train=replace(TINY.train, epochs=1, monitor_samples=2),
)
"""The arm that needs another is named before it."""


def test_a_run_begins_after_the_one_it_needs() -> None:
    backlog = Backlog(STUDY, list(STUDY.runs()))
    assert [backlog.take(), backlog.take(), backlog.take()] == [("free", 0), ("free", 1), None], "both held ones wait"
    backlog.over(("free", 1))
    assert backlog.take() == ("held", 1)
    backlog.over(("held", 1))
    backlog.over(("free", 0))
    assert backlog.take() == ("held", 0)
    assert backlog
    backlog.over(("held", 0))
    assert not backlog


def test_a_lost_run_comes_first_again_and_is_given_up_in_the_end() -> None:
    backlog = Backlog(STUDY, [("free", 0), ("free", 1), ("held", 0)])
    for _ in range(RETRIES):
        assert backlog.take() == ("free", 0)
        assert backlog.lost(("free", 0))
    assert backlog.take() == ("free", 0)
    assert not backlog.lost(("free", 0))
    assert backlog.take() == ("free", 1)
    assert backlog.take() == ("held", 0), "what waited for it is tried, and says what it lacks"


def test_arms_that_wait_for_each_other_are_an_error() -> None:
    arms = (replace(HELD, floor_from="other"), replace(HELD, name="other", floor_from="held"))
    backlog = Backlog(replace(STUDY, arms=arms, reference="held"), [("held", 0), ("other", 0)])
    with pytest.raises(StudyError, match="the arms held, other wait for each other"):
        backlog.take()


def test_a_serial_study_makes_first_what_others_need(tmp_path: Path) -> None:
    study, said = replace(STUDY, seeds=(0,)), io.StringIO()
    records = run_study(study, tmp_path / "study", console=Console(file=said, width=200))
    assert {record.status for record in records} == {"finished"}
    begun = [line for line in said.getvalue().splitlines() if line.startswith("run ")]
    assert begun == ["run 2 of 2: free, seed 0", "run 1 of 2: held, seed 0"]
    measured = read_measured(tmp_path / "study" / run_place("held", 0), "coupling")
    assert measured is not None


def test_what_processes_share_lies_beside_the_study_and_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".study.sharing").mkdir()
    (tmp_path / ".study.sharing" / "of a killed process").touch()
    with sharing(tmp_path / "study") as place:
        assert place.parent == tmp_path
        assert list(place.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
