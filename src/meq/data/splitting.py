"""Which split a row belongs to: by the name it carries, or by seeded fractions that keep groups together."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meq.data.findings import DataError
from meq.options import nearest

FRACTIONS: Mapping[str, float] = MappingProxyType({"train": 0.8, "dev": 0.1, "test": 0.1})

_HOW = "fractions are the shares of train, dev and test, such as 0.6,0.2,0.2"

SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("train", "training"), "train"),
        **dict.fromkeys(("dev", "devel", "development", "val", "valid", "validation"), "dev"),
        **dict.fromkeys(("test", "testing"), "test"),
        **dict.fromkeys(("calibration", "calib"), "calibration"),
    }
)
"""What people call their splits, and what we call them."""


CALIBRATION = "calibration"
"""The split that chooses nothing in training, and that probabilities are fitted on afterwards."""
LEAST_ROWS, MOST_ROWS = 100, 2000
"""Rows that say something about probabilities, and as many as are taken from dev for it."""
LEAST_GROUPS = 20
"""Rows of one group are no strangers to each other: of fewer groups, many rows say little."""

Fractions = Mapping[str, float] | Sequence[float] | str
"""The share of each split by its name, or the shares of train, dev and test in this order."""


def named_fractions(fractions: Fractions) -> Mapping[str, float]:
    """The share of each split by name, however it was said: a dictionary, a list of numbers, or a text of them."""
    if isinstance(fractions, str):
        shares = []
        for part in fractions.split(","):
            try:
                shares.append(float(part))
            except ValueError as error:
                raise DataError(f"{_HOW}, got {part.strip()!r}") from error
        fractions = shares
    if not isinstance(fractions, Mapping):
        if not isinstance(fractions, list | tuple) or not 2 <= len(fractions) <= len(FRACTIONS):
            raise DataError(f"{_HOW}, got {fractions!r}")
        fractions = dict(zip(FRACTIONS, fractions, strict=False))
    check_fractions(fractions)
    return fractions


def split_called(name: str) -> str | None:
    """Our name of a split, whatever its case or spelling; None if it is no name of a split."""
    return SYNONYMS.get(name.strip().lower())


def split_by_fractions(groups: Sequence[str], fractions: Mapping[str, float], *, seed: int = 0) -> list[str]:
    """The split of every row, given the group of every row; a group is never torn apart.

    The groups are sorted, shuffled by the seed, and laid end to end; each goes to the split in whose share of the rows
    its middle lies. Nothing else matters: not the order of the rows, not the platform. Shares are met up to the size
    of a group, and a split that would stay empty is an error.
    """
    check_fractions(fractions)
    sizes = Counter(groups)
    # of `random`, only random() promises the same numbers in every version of Python; shuffle() does not
    generator = random.Random(seed)
    draws = {group: generator.random() for group in sorted(sizes)}
    ends = dict(zip(fractions, itertools.accumulate(fractions.values()), strict=True))
    last = list(fractions)[-1]
    places: dict[str, str] = {}
    done = 0
    for group in sorted(draws, key=lambda group: (draws[group], group)):
        middle = (done + sizes[group] / 2) / len(groups)
        places[group] = next((name for name, end in ends.items() if middle < end), last)
        done += sizes[group]
    empty = [name for name in fractions if name not in set(places.values())]
    if empty:
        largest = max(sizes.values(), default=0)
        raise DataError(
            f"nothing is left for {', '.join(map(repr, empty))}: {sum(sizes.values())} rows in {len(sizes)} groups, "
            f"the largest of {largest} rows, cannot be split as {dict(fractions)}; use larger fractions, fewer splits "
            "or another column to group by"
        )
    return [places[group] for group in groups]


def kept_apart(groups: Sequence[str], share: float, *, seed: int = 0) -> list[bool]:
    """Which rows of dev are kept apart for calibration, given the group of every row; groups stay together.

    The share of the rows, at most `MOST_ROWS`; none where either part would have fewer than `LEAST_ROWS`.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise DataError(f"calibration is the share of dev that is kept apart, from 0 to below 1; got {share!r}")
    none, share = [False] * len(groups), min(share, MOST_ROWS / max(1, len(groups)))
    if not share or len(groups) < 2 * LEAST_ROWS or len(set(groups)) < 2 * LEAST_GROUPS:
        return none
    try:  # another seed than that of the split itself, so that one draw does not decide both
        parts = split_by_fractions(groups, {"train": 1 - share, CALIBRATION: share}, seed=seed + 1)
    except DataError:  # one group is nearly all of dev
        return none
    apart = [part == CALIBRATION for part in parts]
    return apart if LEAST_ROWS <= sum(apart) <= len(groups) - LEAST_ROWS else none


def check_fractions(fractions: Mapping[str, float]) -> None:
    for name, share in fractions.items():
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise DataError(f"{_HOW}, got {share!r} for {name!r}")
        if not 0 < share <= 1:
            raise DataError(
                f"the fraction of {name!r} must lie in (0, 1], got {share}; leave out a split you do not want"
            )
    if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6):
        raise DataError(f"the fractions must add up to 1, got {dict(fractions)}")
    if "train" not in fractions:
        raise DataError(f"one of the fractions must be called 'train': {nearest('train', fractions)}")


def check_held_out(name: str, dev: float) -> None:
    """An error unless `dev` is a share of a data set's training pictures that can be held out."""
    if not 0 <= dev < 1:
        raise DataError(f"{name}: dev is the share of training pictures to hold out, from 0 to below 1; got {dev}")


def torn_apart(groups: Sequence[str | None], splits: Sequence[str]) -> list[str]:
    """The groups that lie in more than one split, sorted; a row without a group is passed over."""
    first: dict[str, str] = {}
    torn = set()
    for group, split in zip(groups, splits, strict=True):
        if group is not None and first.setdefault(group, split) != split:
            torn.add(group)
    return sorted(torn)
