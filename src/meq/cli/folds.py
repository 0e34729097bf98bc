"""`meq train --folds`: every fold of a table is trained as the command says, and the answers are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meq.cli.errors import resumable
from meq.cli.output import same_command, say
from meq.data.request import DataRequest

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


def folds_trained(
    request: DataRequest, out: Path | None, train_one: Callable[..., object], how: FoldOptions
) -> CrossValidation:
    """Train every fold; `train_one` trains on a request in a folder, with `store` and `resume` besides."""
    from meq.runs.folds import check_folds, place_of_folds, train_folds

    place = place_of_folds(request.data, out, how.folds, resume=how.resume)
    check_folds(request, how.folds)
    asked = {"folds": how.folds, "seed": how.seed, "skip_bad": how.skip_bad, "store": how.store}
    with resumable(f"go on with: {same_command('the same command')}"):
        return train_folds(request, place, train_one, **asked, say=say)  # type: ignore[arg-type]
