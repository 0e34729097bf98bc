"""Results show themselves: as text, in a notebook and as a DataFrame."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import pandas
import pytest

from meq.showing import ROWS_DRAWN, Shown, Tabular


@dataclass(frozen=True)
class Page(Shown):
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Scores(Tabular):
    cells: tuple[dict[str, Any], ...]
    names: tuple[str, ...] | None = None

    def rows(self) -> tuple[dict[str, Any], ...]:
        return self.cells

    def row_names(self) -> tuple[str, ...] | None:
        return self.names

    def remarks(self) -> list[str]:
        return ["a < b"]


def test_a_page_is_drawn_as_its_text_and_runs_nothing() -> None:
    assert Page("<script>alert(1)</script>")._repr_html_() == "<pre>&lt;script&gt;alert(1)&lt;/script&gt;</pre>"


def test_a_table_is_a_frame_with_the_names_of_its_rows() -> None:
    found = Scores(({"split": "dev", "accuracy": 0.5}, {"split": "test"}), names=("a", "b")).to_frame()
    assert list(found.columns) == ["split", "accuracy"]
    assert list(found.index) == ["a", "b"]
    assert found.loc["a", "accuracy"] == 0.5
    assert pandas.isna(found.loc["b", "accuracy"])


def test_a_notebook_draws_the_first_rows_escaped_and_counts_the_others() -> None:
    rows = tuple({"id": f"<b>{i}</b>", "mean": math.nan if i else 0.1234567} for i in range(ROWS_DRAWN + 3))
    page = Scores(rows)._repr_html_()
    assert page.startswith("<table><thead><tr><th>id</th><th>mean</th></tr></thead><tbody>")
    assert "<td>&lt;b&gt;0&lt;/b&gt;</td><td>0.123457</td>" in page
    assert "<td>&lt;b&gt;1&lt;/b&gt;</td><td></td>" in page
    assert page.count("<tr>") == ROWS_DRAWN + 1
    assert page.endswith("<pre>and 3 more rows\na &lt; b</pre>")


def test_without_pandas_the_sentence_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meq.errors.find_spec", lambda name: None if name == "pandas" else sys.modules[name])
    with pytest.raises(ImportError, match=r"a DataFrame needs pandas: pip install 'meq\[frames\]'"):
        Scores(({"a": 1},)).to_frame()
