from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data.table_cases import as_csv, as_jsonl, as_parquet, contents, simple, skipped

from meq.data.findings import DataError, Findings
from meq.data.table import table
from meq.models import MutualEquilibrium


def test_empty_cells_are_missing_modalities_and_are_counted(tmp_path: Path) -> None:
    records = simple(t=["a", "", "  ", "d", "e", "f"], v=["1 2", "3 4", "5 6", "", "NaN", "null"])
    data = table(as_csv(tmp_path, records), texts="t", vectors="v", label="y", split="split")
    assert contents(data, "t") == ["a", None, None, "d", "e", "f"]
    assert [x is None for x in contents(data, "v")] == [False, False, False, True, True, True]
    assert data.facts["missing cells"] == {"t": 2, "v": 3}


def test_null_nan_absent_keys_and_empty_lists_are_missing_modalities(tmp_path: Path) -> None:
    records = simple(v=[[1.0], None, float("nan"), [], [[]], [2.0]])
    del records[0]["v"]
    data = table(as_jsonl(tmp_path, records), texts="t", vectors="v", label="y", split="split")
    assert [x is None for x in contents(data, "v")] == [True] * 5 + [False]


@pytest.mark.parametrize("cell", ["[1, 2.5, -3]", "1 2.5 -3", "1,2.5,-3", "1; 2.5; -3", "[ 1.   2.5\n -3. ]"])
def test_numbers_may_be_written_in_several_ways(tmp_path: Path, cell: str) -> None:
    data = table(as_csv(tmp_path, simple(v=[cell] * 6)), vectors="v", label="y", split="split")
    assert contents(data, "v")[0].tolist() == [1, 2.5, -3]
    assert data.widths == {"v": 3}


def test_lists_of_lists_are_tokens_and_single_numbers_vectors_of_one(tmp_path: Path) -> None:
    records = simple(v=[[[1, 2]] * (n + 1) for n in range(6)], age=[3, 4.5, 5, 6, 7, 8])
    data = table(
        as_parquet(tmp_path, [r | {"age": float(r["age"])} for r in records]),
        vectors=["v", "age"],
        label="y",
        split="split",
    )
    assert [tuple(x.shape) for x in contents(data, "v")] == [(n + 1, 2) for n in range(6)]
    assert data.widths == {"v": 2, "age": 1}


def test_columns_that_match_a_pattern_are_one_vector(tmp_path: Path) -> None:
    records = simple(audio_10=[3] * 6, audio_2=[2] * 5 + [""], audio_1=["1.5"] * 5 + [""])
    records[5]["audio_10"] = ""
    data = table(as_csv(tmp_path, records), texts="t", vectors="audio_*", label="y", split="split")
    assert contents(data, "audio")[0].tolist() == [1.5, 2, 3]
    assert contents(data, "audio")[5] is None
    assert data.facts["columns"]["audio"] == ["audio_1", "audio_2", "audio_10"]


@pytest.mark.parametrize(
    ("cell", "kind", "words"),
    [
        ("[1, NaN]", "not finite", "column 'v' holds nan at place 2 of its 2 numbers"),
        ("1 -inf", "not finite", "column 'v' holds -inf at place 2"),
        ("1e300 1", "not finite", "column 'v' holds inf at place 1"),
        ("[1, null]", "not finite", "column 'v' holds nan at place 2"),
        ("1 2 3", "wrong width", "column 'v' holds 3 numbers, where most rows hold 2"),
        ("[[1, 2], [3]]", "wrong width", "lists of different lengths"),
        ("1 two", "wrong numbers", "no number .'1 two'."),
        ("[1 2 ... 3]", "wrong numbers", "no number"),
        ("[[1 2] [3 4]]", "wrong numbers", "a list that is no JSON"),
        ("[[[1, 2]]]", "wrong numbers", "3 levels of lists"),
        ('{"a": 1}', "wrong numbers", "no number"),
    ],
)
def test_numbers_that_cannot_be_used_are_named_with_line_and_column(
    tmp_path: Path, cell: str, kind: str, words: str
) -> None:
    path = as_csv(tmp_path, simple(v=["1 2"] * 6) + simple(v=["3 4", cell, *["5 6"] * 4]))
    found, data = skipped(path, vectors="v", label="y", split="split")
    assert found == [(kind, 9)]
    assert data.facts["rows"] == 11
    with pytest.raises(DataError, match=rf"t\.csv, line 9: .*{words}"):
        table(path, vectors="v", label="y", split="split")


def test_objects_and_nulls_in_json_numbers_are_findings(tmp_path: Path) -> None:
    path = as_jsonl(
        tmp_path, simple(v=[[1, 2]] * 6) + simple(v=[{"a": 1}, [1, None], ["x", 2], [1, 2], [1, 2], [1, 2]])
    )
    found, _ = skipped(path, vectors="v", label="y", split="split")
    assert found == [("wrong numbers", 7), ("not finite", 8), ("wrong numbers", 9)]


def test_a_joined_vector_with_a_hole_names_the_column(tmp_path: Path) -> None:
    good = simple(x_1=[1] * 6, x_2=[2] * 6)
    path = as_csv(tmp_path, good + simple(x_1=[1, 1, "a", "1 2", 1, 1], x_2=["", "inf", 2, 2, 2, 2]))
    findings = Findings(on_bad="skip")
    table(path, texts="t", vectors="x_*", label="y", split="split", findings=findings)
    assert [(f.kind, f.line, f.message.split("'")[1]) for f in findings] == [
        ("not finite", 8, "x_2"),
        ("not finite", 9, "x_2"),
        ("wrong numbers", 10, "x_1"),
        ("wrong numbers", 11, "x_1"),
    ]


def test_what_is_done_to_an_example_stays_with_the_example(tmp_path: Path) -> None:
    data = table(as_jsonl(tmp_path, simple(v=[[1, 2]] * 6)), vectors="v", label="y", split="split")
    content = data.splits["train"][0].content["v"]
    assert isinstance(content, torch.Tensor)
    content += 1
    assert contents(data, "v")[0].tolist() == [1, 2]


def test_half_a_character_in_json_is_a_finding(tmp_path: Path) -> None:
    path = as_jsonl(tmp_path, simple() + simple(t=["\ud800", *"bcdef"]))
    found, data = skipped(path, texts="t", label="y", split="split")
    assert [line for _, line in found] == [7]
    assert len(data.fingerprint()) == 64


def test_an_object_in_a_text_column_is_a_finding(tmp_path: Path) -> None:
    found, _ = skipped(
        as_jsonl(tmp_path, simple() + simple(t=[{"a": 1}, ["b"], 3, True, "e", "f"])),
        texts="t",
        label="y",
        split="split",
    )
    assert found == [("wrong text", 7), ("wrong text", 8)]


def test_names_that_no_model_could_use_are_changed_and_the_change_is_recorded(tmp_path: Path) -> None:
    records = simple(**{"title.en": ["x"] * 6, "keys": ["y"] * 6})
    data = table(as_csv(tmp_path, records), texts=["title.en", "keys", "t"], label="y", split="split")
    assert list(data.modalities) == ["title_en", "keys_", "t"]
    assert data.facts["renamed"] == {"title.en": "title_en", "keys": "keys_"}
    MutualEquilibrium(dict.fromkeys(data.modalities, 3), 2, 8, heads=2)
