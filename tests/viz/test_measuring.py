"""The process that measures: it may fail or die, and the page says so and goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from explained_run import explainer, run_folder, small_scenes

from meq.data.contract import Batch
from meq.viz.app import measuring as measuring_module
from meq.viz.app.measuring import MeasuringError, MeasuringProcess


@pytest.fixture
def measuring() -> Iterator[MeasuringProcess]:
    made = MeasuringProcess(run_folder())
    yield made
    made.close()


def a_batch() -> Batch:
    return explainer().batch(small_scenes().splits["test"][:1])


def test_a_process_that_dies_is_a_sentence_and_the_next_measurement_starts_another(
    measuring: MeasuringProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(measuring_module, "COMMAND", "raise SystemExit(3)")
        with pytest.raises(MeasuringError, match="it took too long, or memory was short"):
            measuring.measure("spectrum", a_batch(), "a caption")
    assert "the largest modulus is" in measuring.measure("spectrum", a_batch(), "a caption")


def test_a_bug_in_a_measurement_is_told_to_the_log_and_not_to_the_page(
    measuring: MeasuringProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(MeasuringError, match="this is a bug in meq") as told:
        measuring.measure("no such panel", a_batch(), "a caption")
    assert "KeyError" not in str(told.value)
    assert "KeyError: 'no such panel'" in caplog.text


def test_nothing_is_measured_after_the_end() -> None:
    made = MeasuringProcess(run_folder())
    made.close()
    with pytest.raises(MeasuringError, match="being closed"):
        made.measure("spectrum", a_batch(), "a caption")
