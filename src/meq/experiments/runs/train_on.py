"""From a table, or a data set by name, to a trained run: what `meq train` does, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from meq.core.options import checked_options
from meq.data.request import DataRequest
from meq.experiments.runs.load import TrainedRun, load_run
from meq.training.checks import check_splits
from meq.training.config import TrainConfig
from meq.training.recipes import SHAPE, check_recipe, fitted_to, prepare, train_arm

CONFIG = TrainConfig(epochs=15, batch_size=64, learning_rate=1e-3)
"""How small models are trained unless told otherwise."""
ONE_BY_ONE = replace(CONFIG, batch_size=1)
"""The smallest batch that `fitted_to` may come to: what it does not fit, nothing does."""


@checked_options
def train_on(
    request: DataRequest,
    folder: Path | str,
    *,
    encoders: Mapping[str, str | None] | None = None,
    arm: str = "meq",
    shape: Mapping[str, Any] | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
) -> TrainedRun:
    """Read, encode and train; the run, ready to answer, and kept in its folder.

    `encoders` maps kinds of content ("image", "text", "audio") to names or folders of encoders. `shape` are options of
    the model: dim, heads, steps, dropout. After an interruption the same call with `resume=True` goes on.
    """
    sized = {**SHAPE, **(shape or {})}
    check_recipe(arm, sized)
    data, provenance = prepare(request, encoders or {}, check=partial(check_splits, config=config or ONE_BY_ONE))
    train_arm(data, arm, Path(folder), config or fitted_to(CONFIG, data), sized, resume=resume, provenance=provenance)
    return load_run(folder)
