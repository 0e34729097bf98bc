"""A run on drawn scenes, trained for a moment, that the tests of explanations, figures and commands share."""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path

from rich.console import Console

import meq
from meq.data import DataSet
from meq.data.scenes import scenes
from meq.encoders import default_encoders, encode
from meq.runs.explain import Explainer
from meq.runs.explanation import Explanation
from meq.runs.load import TrainedRun, load_run
from meq.training import TrainConfig, fit, seed_everything

STEPS = 2
"""The read depth K of that run."""


@functools.cache
def small_scenes() -> DataSet:
    return scenes(train=18, dev=18, test=18)


@functools.cache
def run_folder() -> Path:
    """The run's folder, removed when the tests are over."""
    place = tempfile.TemporaryDirectory(prefix="meq-explained-")
    atexit.register(place.cleanup)
    data = encode(small_scenes(), default_encoders(small_scenes()))
    seed_everything(0)
    model = meq.MutualEquilibrium(data.widths, 3, dim=8, heads=2, steps=STEPS, hidden=8, head_width=8)
    folder = Path(place.name) / "run"
    config = TrainConfig(epochs=1, batch_size=9, learning_rate=1e-2, monitor_samples=4)
    fit(model, data, meq.Objective(), folder, config, console=Console(quiet=True))
    return folder


@functools.cache
def trained_run() -> TrainedRun:
    return load_run(run_folder())


@functools.cache
def explainer() -> Explainer:
    return Explainer(trained_run())


@functools.cache
def explanations() -> tuple[Explanation, ...]:
    return tuple(explainer()(small_scenes().splits["test"][:2]))
