from __future__ import annotations

from dataclasses import replace

import pytest
from experiments.small import CONCAT, SMALL, TINY

from meq.experiments import StudyError
from meq.experiments.build import prepare_data
from meq.experiments.executors import capacity
from meq.experiments.executors.capacity import GB, PROCESS, memory_of_a_run, workers_for


def test_a_run_needs_more_for_more_parameters_and_larger_batches() -> None:
    prepared = prepare_data(TINY.data)

    def need(dim: int, batch_size: int) -> int:
        arm = replace(CONCAT, options={"dim": dim, "head_width": 16})
        study = replace(SMALL, arms=(arm,), train=replace(SMALL.train, batch_size=batch_size))
        return memory_of_a_run(study, prepared)

    assert PROCESS < need(16, 16) < need(16, 64) < need(64, 64)


def test_workers_are_as_many_as_cores_and_memory_and_runs_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "cores", lambda: 8)
    monkeypatch.setattr(capacity, "free_memory", lambda: 10 * GB)
    assert workers_for(GB, 100, None) == 8
    assert workers_for(2 * GB, 100, None) == 4, "a tenth is left alone"
    assert workers_for(GB, 3, None) == 3
    assert workers_for(GB, 100, 20) == 20, "whoever asks for more gets more"
    with pytest.raises(StudyError, match="0 workers can do nothing"):
        workers_for(GB, 100, 0)
    with pytest.raises(StudyError, match=r"a run needs about 20\.0 GB and 10\.0 GB are free"):
        workers_for(20 * GB, 100, None)
