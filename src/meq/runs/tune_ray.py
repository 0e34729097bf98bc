"""Trials on Ray Tune (extra `cluster`): the same trials as on one machine, several at a time.

What travels is a path and a number: each trial reads the search from its folder and writes its run there, so that a
trial that was lost goes on from its checkpoint when the same command is given again.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from meq.errors import require
from meq.records import read_sealed
from meq.runs.tune import SEARCH, prepared_for, run_trial
from meq.runs.tune_search import Search
from meq.studies.cluster import connected
from meq.studies.local import cores


def trials_on_ray(
    folder: Path,
    trials: Sequence[int],
    *,
    workers: int | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> None:
    """Make these trials, as many at a time as there are workers, until the time is up."""
    if not trials:
        return
    require("ray", "--on ray")
    most = min(workers or cores(), len(trials))
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C ends the command, not only the trials
    with connected(None, most):
        from ray import tune

        say(f"Ray Tune: {len(trials)} trials, {most} at a time")
        with tempfile.TemporaryDirectory(prefix="meq-tune-") as kept:  # Ray's own files: ours are in the folder
            tuner = tune.Tuner(
                tune.with_resources(one_trial, {"cpu": 1}),
                param_space={
                    "trial": tune.grid_search(list(trials)),
                    "folder": str(folder.resolve()),
                    "working_folder": str(Path.cwd()),
                },
                tune_config=tune.TuneConfig(max_concurrent_trials=most, time_budget_s=seconds),
                run_config=tune.RunConfig(storage_path=kept, name="trials", verbose=0),
            )
            with redirect_stdout(io.StringIO()):  # its tables speak of files that are gone at the end
                errors = list(tuner.fit().errors)
    if errors:
        raise RuntimeError(f"{len(errors)} of {len(trials)} trials broke off: {errors[0]}")


def one_trial(given: Mapping[str, Any]) -> None:
    """A trial in a process of Ray's."""
    import torch

    torch.set_num_threads(1)
    os.chdir(given["working_folder"])  # paths of the data may start from there
    folder = Path(given["folder"])
    search = read_sealed(Search, folder / SEARCH)
    data, provenance = prepared_for(search)
    run_trial(search, folder, given["trial"], data, provenance)
