"""Folds: every row once, no group torn apart, every class shared out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meq.data.findings import DataError
from meq.data.folds import fold_of_rows


def test_every_fold_has_its_share_of_every_class() -> None:
    classes = ["rare"] * 10 + ["common"] * 90
    folds = fold_of_rows([str(at) for at in range(100)], classes, 5, seed=3)
    assert Counter(zip(folds, classes, strict=True)) == {
        **{(fold, "rare"): 2 for fold in range(5)},
        **{(fold, "common"): 18 for fold in range(5)},
    }


@given(
    groups=st.lists(st.integers(0, 9), min_size=10, max_size=60),
    folds=st.integers(2, 4),
    seed=st.integers(0, 5),
)
def test_a_group_is_never_torn_apart_and_no_fold_is_empty(groups: list[int], folds: int, seed: int) -> None:
    names = [str(group) for group in groups]
    if len(set(names)) < folds:
        with pytest.raises(DataError, match="cannot be laid into"):
            fold_of_rows(names, None, folds, seed=seed)
        return
    found = fold_of_rows(names, [group % 2 for group in groups], folds, seed=seed)
    assert len(set(zip(names, found, strict=True))) == len(set(names))
    assert set(found) == set(range(folds))


def test_the_seed_decides_and_the_order_of_rows_does_not() -> None:
    names = [str(at) for at in range(40)]
    found = dict(zip(names, fold_of_rows(names, None, 4, seed=1), strict=True))
    again = dict(zip(names[::-1], fold_of_rows(names[::-1], None, 4, seed=1), strict=True))
    assert found == again
    assert found != dict(zip(names, fold_of_rows(names, None, 4, seed=2), strict=True))
