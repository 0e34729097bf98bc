"""Who is best, who is called worse, and the cheapest that is enough: from scores by seed and draws of the examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meq.data.resampling import Numbers
from meq.studies.compare import (
    CALLED,
    DRAWS,
    FEWEST,
    INCOMPLETE,
    NOT_CALLED,
    TOO_FEW,
    bounds,
    mean,
    paired_difference,
    spread,
)
from meq.tables import Cell, Table

BEST, WORSE = "best", "called worse"
RANKS: Mapping[str, int] = {"constant": 0, "one modality": 1, "linear": 2, "trees": 3, "trained": 4}
"""Kinds of entrants, the cheapest first; among those of one kind the faster one is cheaper."""
CHANCE = "constant"
MEANING = (
    "Score: mean over seeds; spread: its sample standard deviation; 95 %: the middle of the mean over "
    f"{DRAWS:,} draws of the examples with replacement. Difference: to the best, paired by seed and example. Called "
    "worse: the difference exceeds twice the sample standard deviation of its paired seeds, and its interval over "
    "examples lies below 0. What is not trained by gradients does not depend on the seed."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Entrant:
    """One of the things compared, with all that was measured."""

    name: str
    kind: str
    """One of `RANKS`."""
    parameters: int | None
    seconds: float | None
    """Of one training, or of the fit."""
    by_seed: Mapping[int, float]
    draws: Mapping[int, Numbers]
    """By seed: the score for every draw of the examples."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the leaderboard."""

    arm: str
    kind: str
    score: float | None
    low: float | None
    high: float | None
    spread: float | None
    difference: float | None
    """To the best one; None for itself."""
    difference_low: float | None
    difference_high: float | None
    verdict: str
    parameters: int | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The lines, the best first, and the cheapest entrant that is not called worse than the best."""

    metric: str
    split: str
    seeds: int
    examples: int
    lines: tuple[Line, ...]
    enough: str | None
    """None if there is no score at all."""
    sentence: str


def make_leaderboard(
    entrants: Sequence[Entrant], *, seeds: Sequence[int], metric: str, split: str, examples: int
) -> Leaderboard:
    """Compare; who lacks a seed has a line, and is neither the best nor enough."""
    whole = [each for each in entrants if set(each.by_seed) == set(seeds)]
    best = max(whole, key=_worth, default=None)
    lines = [_line(each, best, seeds) for each in entrants]
    lines.sort(key=lambda line: (line.arm != getattr(best, "name", None), _descending(line.score)))
    by_name = {line.arm: line for line in lines}
    able = [each for each in whole if not _is_worse(by_name[each.name], len(seeds))]
    enough = min(able, key=lambda each: (RANKS[each.kind], each.seconds or 0.0), default=None)
    sentence = "Nothing has been scored." if best is None or enough is None else ""
    if best is not None and enough is not None:
        sentence = _sentence(by_name[enough.name], by_name[best.name], metric, split, len(seeds))
    return Leaderboard(
        metric=metric,
        split=split,
        seeds=len(seeds),
        examples=examples,
        lines=tuple(lines),
        enough=None if enough is None else enough.name,
        sentence=sentence,
    )


def leaderboard_table(found: Leaderboard, title: str, notes: Sequence[str] = ()) -> Table:
    """The lines as a table, the sentence among its notes."""
    rows: list[dict[str, Cell]] = [vars(line) for line in found.lines]
    seeds = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    return Table.of(
        f"{title} ({found.metric} on {found.split}, {found.examples:,} examples, {seeds})",
        rows,
        keys=(
            *("arm", "score", "low", "high", "spread", "difference", "difference_low", "difference_high", "verdict"),
            *("parameters", "seconds"),
        ),
        titles={
            **{"score": found.metric, "low": "95 % from", "high": "to", "difference": "to the best"},
            **{"difference_low": "95 % from", "difference_high": "to", "verdict": "called"},
        },
        digits={"seconds": 1},
        signed=("difference", "difference_low", "difference_high"),
        notes=(MEANING, *notes, found.sentence),
    )


def _worth(each: Entrant) -> float:
    score = mean(each.by_seed.values())
    return -np.inf if score is None or np.isnan(score) else score


def _descending(score: float | None) -> float:
    return np.inf if score is None or np.isnan(score) else -score


def _line(mine: Entrant, best: Entrant | None, seeds: Sequence[int]) -> Line:
    low, high = bounds(np.mean(list(mine.draws.values()), axis=0)) if mine.draws else (None, None)
    difference = its_low = its_high = None
    verdict = INCOMPLETE
    if best is not None and mine.name == best.name:
        verdict = BEST
    elif best is not None and mine.by_seed:
        difference, _, verdict = paired_difference(seeds, mine.by_seed, best.by_seed)
        both = [mine.draws[seed] - best.draws[seed] for seed in mine.draws if seed in best.draws]
        its_low, its_high = bounds(np.mean(both, axis=0)) if both else (None, None)
        below = its_high is not None and its_high < 0
        if verdict == CALLED:
            verdict = WORSE if below else NOT_CALLED
    return Line(
        arm=mine.name,
        kind=mine.kind,
        score=mean(mine.by_seed.values()),
        low=low,
        high=high,
        spread=spread(mine.by_seed.values()) if mine.kind == "trained" else None,
        difference=difference,
        difference_low=its_low,
        difference_high=its_high,
        verdict=verdict,
        parameters=mine.parameters,
        seconds=mine.seconds,
    )


def _is_worse(line: Line, seeds: int) -> bool:
    """Called worse; of too few seeds the examples alone have a say."""
    if seeds < FEWEST:
        return line.difference_high is not None and line.difference_high < 0
    return line.verdict == WORSE


def _sentence(enough: Line, best: Line, metric: str, split: str, seeds: int) -> str:
    """Which one is enough, and why."""
    few = "" if seeds >= FEWEST else f" ({TOO_FEW} to call a difference, so by the examples alone; --seeds {FEWEST})"
    score = f"{metric} {enough.score:.3f} on {split}"
    name = enough.arm[0].upper() + enough.arm[1:]
    if enough.kind == CHANCE:
        return f"Nothing learned here is called better than one constant answer ({enough.arm}, {score}){few}."
    if enough.arm == best.arm:
        return (
            f"{name} is enough, and nothing less is ({score}): it is the best, and all that is cheaper is worse{few}."
        )
    return f"{name} is enough ({score}): {best.arm}, the best with {best.score:.3f}, is not called better{few}."
