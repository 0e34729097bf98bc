from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from meq.data.findings import DataError
from meq.data.splitting import FRACTIONS, named_fractions, split_by_fractions, split_called, torn_apart

GROUPS = [f"photo {n % 300}" for n in range(2000)]


def test_no_group_is_torn_apart() -> None:
    assert torn_apart(GROUPS, split_by_fractions(GROUPS, FRACTIONS)) == []


def test_shares_are_met_up_to_the_size_of_a_group() -> None:
    counts = Counter(split_by_fractions(GROUPS, FRACTIONS))
    for name, share in FRACTIONS.items():
        assert abs(counts[name] - share * len(GROUPS)) <= max(Counter(GROUPS).values())


def test_the_order_of_the_rows_does_not_matter() -> None:
    places = dict(zip(GROUPS, split_by_fractions(GROUPS, FRACTIONS, seed=3), strict=True))
    shuffled = random.Random(0).sample(GROUPS, len(GROUPS))
    assert dict(zip(shuffled, split_by_fractions(shuffled, FRACTIONS, seed=3), strict=True)) == places


def test_the_split_is_the_same_everywhere_and_forever() -> None:
    """A stored answer: another platform, Python or hash seed must give the same."""
    groups = [f"g{n}" for n in range(12)]
    places = split_by_fractions(groups, {"train": 0.5, "dev": 0.5})
    dev = [group for group, place in zip(groups, places, strict=True) if place == "dev"]
    assert dev == ["g0", "g1", "g2", "g4", "g7", "g8"]


def test_another_seed_is_another_split() -> None:
    assert split_by_fractions(GROUPS, FRACTIONS, seed=0) != split_by_fractions(GROUPS, FRACTIONS, seed=1)


def test_a_split_that_would_stay_empty_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match=r"nothing is left for .*'test'.*100 rows in 2 groups, the largest of 50"):
        split_by_fractions(["a", "b"] * 50, FRACTIONS)
    with pytest.raises(DataError, match="nothing is left"):
        split_by_fractions([], FRACTIONS)


@pytest.mark.parametrize(
    ("fractions", "words"),
    [
        ({"train": 0.8, "dev": 0.1}, "add up to 1"),
        ({"train": 1.2, "dev": -0.2}, "must lie in"),
        ({"train": 1.0, "test": 0.0}, "leave out a split"),
        ({"train": float("nan"), "dev": 0.5}, "must lie in"),
        ({"trian": 0.9, "dev": 0.1}, "did you mean 'trian'"),
    ],
)
def test_wrong_fractions_are_errors(fractions: dict[str, float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        split_by_fractions(GROUPS, fractions)


def test_fractions_that_add_up_but_for_rounding_are_taken() -> None:
    thirds = {"train": 1 / 3, "dev": 1 / 3, "test": 0.3333333}
    assert set(split_by_fractions(GROUPS, thirds)) == set(thirds)


def test_names_of_splits_have_synonyms_in_any_case() -> None:
    assert [split_called(name) for name in ("Train", " VAL ", "validation", "valid", "dev", "TEST")] == [
        "train", "dev", "dev", "dev", "dev", "test",
    ]  # fmt: skip
    assert split_called("holdout") is None


def test_torn_groups_are_named_and_rows_without_a_group_are_passed_over() -> None:
    assert torn_apart(["a", "b", "a", None, None], ["train", "dev", "dev", "train", "dev"]) == ["a"]


@pytest.mark.parametrize("given", ["0.6,0.2,0.2", [0.6, 0.2, 0.2], {"train": 0.6, "dev": 0.2, "test": 0.2}])
def test_fractions_can_be_numbers_in_the_order_of_the_splits(given: Any) -> None:
    assert named_fractions(given) == {"train": 0.6, "dev": 0.2, "test": 0.2}
    assert named_fractions("0.75, 0.25") == {"train": 0.75, "dev": 0.25}


@pytest.mark.parametrize("given", ["a,b,c", "0.8", 0.8, [], {}, "0.4,0.2,0.2,0.2", {"train": "much", "dev": 0.1}, None])
def test_what_are_no_fractions_is_answered_with_how_they_are_written(given: Any) -> None:
    with pytest.raises(DataError, match="fraction"):
        named_fractions(given)
