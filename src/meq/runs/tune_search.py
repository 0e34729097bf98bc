"""What a search for settings is, what came out of it, and the command that trains with what was found."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from meq.records import SCHEMA, dumps
from meq.runs.search_space import LogUniform, OneOf, Range, drawn_settings, usual_settings
from meq.showing import Tabular
from meq.tables import Cell, Table, as_text
from meq.training.arms import SHAPE
from meq.training.config import SMALL, TrainConfig
from meq.training.prepare import keeping_apart
from meq.training.record import RunRequest


@dataclass(frozen=True, kw_only=True)
class Search:
    """All that decides what every trial is; kept in the folder, so that any process can make any trial."""

    schema: int = SCHEMA
    request: RunRequest
    arm: str
    seed: int
    space: Mapping[str, Mapping[str, Any]]
    shape: Mapping[str, Any]
    """Options of the model that no trial changes."""
    config: TrainConfig
    fixed: tuple[str, ...]
    """Options of training that stay as they are, whatever the size of the train split."""
    standardise: bool

    def ranges(self) -> dict[str, Range]:
        return {
            name: LogUniform(**each) if "low" in each else OneOf(tuple(each["values"]))
            for name, each in self.space.items()
        }

    def settings(self, trial: int) -> dict[str, Any]:
        first = usual_settings(self.config, self.shape)
        return drawn_settings(self.ranges(), trial, seed=self.seed, first=first)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial, as its record tells it."""

    trial: int
    status: str
    score: float | None
    """On dev, of the epoch that was kept."""
    epoch: int | None
    seconds: float
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tuning(Tabular):
    """The trials, the best of them and what it does on test; prints itself."""

    schema: int = SCHEMA
    data: str
    folder: str
    metric: str
    trials: tuple[Trial, ...]
    best: int
    run: str
    """The folder of the best one, trained once more."""
    scores: Mapping[str, float]
    """Of the best one, by split."""
    command: str
    """Trains with its settings."""

    def rows(self) -> list[dict[str, Any]]:
        return [_row(each) for each in self.trials]

    def table(self) -> Table:
        """The trials, the best on dev first."""
        rows: list[dict[str, Cell]] = [{**_row(each), **_as_drawn(each)} for each in sorted(self.trials, key=rank)]
        return Table.of(
            f"{self.data}: {len(self.trials)} trials ({self.metric})",
            rows,
            titles={"score": f"{self.metric} on dev"},
            digits={"seconds": 1},
            notes=[self.sentence()],
        )

    def sentence(self) -> str:
        """Which is best, by what, and what it does on test."""
        test = f"; on test, which no trial saw, {self.scores['test']:.4f}" if "test" in self.scores else ""
        best = next(each for each in self.trials if each.trial == self.best)
        return (
            f"Best on dev: trial {self.best} with {best.score:.4f}, the largest of {len(self.trials)} and so flattered "
            f"by the choice{test}. It is trained in {self.run}, and again by:"
        )

    def remarks(self) -> list[str]:
        return [self.sentence(), self.command]

    def __str__(self) -> str:
        return f"{as_text(self.table())}{self.command}\n"


def rank(each: Trial) -> tuple[float, int]:
    """The best first, the earlier of equals; what has no score, or none that is a number, last."""
    unknown = each.score is None or math.isnan(each.score)
    return (math.inf if unknown or each.score is None else -each.score, each.trial)


def _row(each: Trial) -> dict[str, Any]:
    known = {"trial": each.trial, "score": each.score, "epoch": each.epoch, "seconds": each.seconds}
    return {**known, "status": each.status, **each.settings}


def _as_drawn(each: Trial) -> dict[str, Cell]:
    """Settings with the digits that they were drawn with: a learning rate has more than four."""
    return {name: f"{value:g}" if isinstance(value, float) else value for name, value in each.settings.items()}


# -- the command -------------------------------------------------------------------------------------------------------


def train_command(search: Search, settings: Mapping[str, Any]) -> str:
    """The command that trains with these settings."""
    request = search.request
    typed = ["meq", "train", request.data, *([] if request.root is None else [str(request.root)])]
    for kind in ("image", "text", "audio", "vector"):
        typed += [part for name in getattr(request, f"{kind}s") for part in (f"--{kind}", name)]
    for name in ("label", "split", "group", "task"):
        typed += [] if getattr(request, name) is None else [f"--{name}", getattr(request, name)]
    typed += [part for kind, name in request.encoders.items() for part in (f"--{_flag(kind)}-encoder", name)]
    options = keeping_apart(replace(request, options={}), None).options  # what `meq train` says itself is not typed
    asked = {name: value for name, value in request.options.items() if (name, value) not in options.items()}
    typed += [part for name, value in asked.items() for part in ("--set", f"{name}={_json(value)}")]
    typed += [] if search.arm == "meq" else ["--arm", search.arm]
    changed = {
        each.name: getattr(search.config, each.name) for each in fields(TrainConfig) if each.name not in settings
    }
    given = {
        name: value
        for name, value in changed.items()
        if (value != getattr(SMALL, name) or name in search.fixed) and name != "trackers"
    }
    given |= {name: value for name, value in search.shape.items() if name in SHAPE and value != SHAPE[name]}
    typed += [part for name, value in {**given, **settings}.items() for part in _typed(name, value)]
    more = {name: value for name, value in search.shape.items() if name not in SHAPE}
    typed += [part for name, value in more.items() for part in ("--set", f"model.{name}={_json(value)}")]
    typed += ["--skip-bad"] if request.skip_bad else []
    return shlex.join([*typed, *([] if search.standardise else ["--no-standardise"])])


def _typed(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _flag(kind: str) -> str:
    return "region" if kind == "regions" else kind


def _json(value: Any) -> str:
    return dumps(value).strip()
