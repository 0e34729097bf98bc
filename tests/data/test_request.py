"""Options of data sets, judged before a file is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from meq.data.findings import DataError
from meq.data.request import COLUMNS, DATA_SETS, DataRequest, check_option_values, described, fits
from meq.data.table_columns import COLUMN_KINDS


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, int),
        (1, float),
        (0.5, float),
        (True, bool),
        ("a", str),
        ("a", Path | str | None),
        (None, str | None),
        ("raw", Literal["features", "raw"]),
        (["a", "b"], Sequence[str]),
        ({"train": 1, "dev": 0.5}, Mapping[str, float]),
        (object(), Any),
    ],
)
def test_values_of_the_right_kind_pass(value: Any, kind: Any) -> None:
    assert fits(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        ("1", float, "a number"),
        (1, bool, "true or false"),
        (7, str | None, "a text, or null"),
        ("row", Literal["features", "raw"], "'features' or 'raw'"),
        ("a", Sequence[str], "a list of texts"),
        ([1], Sequence[str], "a list of texts"),
        ([0.5], Mapping[str, float], "names with numbers"),
        ({"train": "most"}, Mapping[str, float], "names with numbers"),
    ],
)
def test_values_of_another_kind_are_told_what_is_wanted(value: Any, kind: Any, words: str) -> None:
    assert not fits(value, kind)
    assert words in described(kind)


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_defaults_of_every_data_set_are_of_the_kind_that_they_say(name: str) -> None:
    import inspect

    read = DATA_SETS[name].read
    defaults = {
        option: each.default
        for option, each in inspect.signature(read).parameters.items()
        if option not in ("root", "findings") and each.default is not inspect.Parameter.empty
    }
    check_option_values(defaults, read, name, without=("root", "findings"))
    with pytest.raises(DataError, match="has no option 'nothing_of_that_name'"):
        check_option_values({"nothing_of_that_name": 1}, read, name)


def test_a_request_is_refused_before_its_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("t,y\na,b\n")
    asked = {"data": str(tmp_path / "rows.csv"), "texts": ("t",), "label": "y"}
    for options, words in (({"seed": "x"}, "must be a whole number"), ({"sed": 1}, "did you mean 'seed'")):
        with pytest.raises(DataError, match=words):
            DataRequest(**asked, options=options).check()
    with pytest.raises(DataError, match=r"there is no such file: did you mean '.*rows\.csv'"):
        DataRequest(**{**asked, "data": str(tmp_path / "row.csv")}).check()
    with pytest.raises(DataError, match="nowhere is not a folder"):
        DataRequest(**asked, root=Path("nowhere")).check()
    DataRequest(**asked).check()


def test_the_columns_of_a_request_are_the_kinds_that_a_table_has() -> None:
    assert tuple(COLUMN_KINDS) == COLUMNS
