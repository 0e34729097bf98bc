"""`meq train --folds`: every fold of a table is trained as the command says, and the answers are put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meq.cli.errors import resumable
from meq.cli.output import same_command, say
from meq.data.request import DataRequest
from meq.records import check_folder

if TYPE_CHECKING:
    from meq.runs.folds import CrossValidation


@dataclass(frozen=True, kw_only=True)
class FoldOptions:
    """What the command says of its folds."""

    folds: int
    seed: int
    skip_bad: bool
    resume: bool
    store: Path | None


def train_folds(
    request: DataRequest, out: Path | None, train_one: Callable[..., object], how: FoldOptions
) -> CrossValidation:
    """Train every fold; `train_one` trains on a request in a folder, with `store` and `resume` besides."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("`folds` are trained one after the other in one process: start it without torchrun")
    if how.resume:
        raise ValueError("leave out --resume: with `folds` the same command goes on by itself")
    from meq.runs.folds import check_folds, cross_validate
    from meq.runs.train_on import RUNS
    from meq.training.prepare import FEATURES

    check_folds(request, how.folds)
    folder = out or RUNS / f"{Path(request.data).stem}-{how.folds}-folds"
    check_folder(folder, "--out")
    store = how.store or folder / FEATURES

    def train(asked: DataRequest, place: Path, begun: bool) -> None:
        train_one(asked, place, store=store, resume=begun)

    with resumable(f"go on with: {same_command('the same command')}"):
        found = cross_validate(request, folder, train, folds=how.folds, seed=how.seed, skip_bad=how.skip_bad, say=say)
    say(f"out-of-fold answers: {folder / 'out_of_fold.csv'}; a run per fold: {folder / 'fold-1'}, ...")
    return found
