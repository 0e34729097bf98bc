"""Which fold a row belongs to: groups are never torn apart, and every fold has its share of every class."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence

from meq.data.findings import DataError


def fold_of_rows(groups: Sequence[str], classes: Sequence[Hashable] | None, folds: int, *, seed: int = 0) -> list[int]:
    """The fold of every row, from 0 on, given its group and, where there are any, its class.

    Groups are shuffled by the seed and taken from the largest on; each goes to the fold in which its classes are the
    rarest so far, the smaller fold of equals. The order of the rows does not matter.
    """
    members: dict[str, Counter[Hashable]] = {}
    kinds: Sequence[Hashable] = [0] * len(groups) if classes is None else classes
    for group, kind in zip(groups, kinds, strict=True):
        members.setdefault(group, Counter())[kind] += 1
    if len(members) < folds:
        raise DataError(
            f"{len(groups)} rows in {len(members)} groups cannot be laid into {folds} folds: groups stay whole. "
            "Ask for fewer folds, or group by another column"
        )
    # of `random`, only random() promises the same numbers in every version of Python; shuffle() does not
    generator = random.Random(seed)
    draws = {group: generator.random() for group in sorted(members)}
    order = sorted(members, key=lambda group: (-members[group].total(), draws[group], group))
    totals, sizes = Counter(kinds), [0] * folds
    held: list[Counter[Hashable]] = [Counter() for _ in range(folds)]
    places: dict[str, int] = {}
    for group in order:
        counts = members[group]
        crowds = [_crowd(counts, held[fold], totals) for fold in range(folds)]
        places[group] = at = min(range(folds), key=lambda fold: (sizes[fold] > 0, crowds[fold], sizes[fold], fold))
        held[at] += counts
        sizes[at] += counts.total()
    return [places[group] for group in groups]


def _crowd(counts: Counter[Hashable], held: Counter[Hashable], totals: Counter[Hashable]) -> float:
    """How much fuller a fold gets by a group, class by class: sum ((h + c)^2 - h^2) / total."""
    return sum((2 * held[kind] * count + count**2) / totals[kind] for kind, count in counts.items())
