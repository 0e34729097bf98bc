from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from data.table_cases import as_csv, as_jsonl, simple, skipped

from meq.data.findings import DataError, Findings
from meq.data.table import table


@pytest.mark.parametrize(
    ("cells", "order"),
    [
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["b", "a", "10"], ["10", "a", "b"]),
        ([True, False, True], ["false", "true"]),
        ([2.0, 1, 10], ["1", "2", "10"]),
        ([0.5, -0.25, 0], ["-0.25", "0", "0.5"]),
    ],
)
def test_labels_are_ordered_by_value_if_they_are_numbers_else_by_the_alphabet(
    tmp_path: Path, cells: list[Any], order: list[str]
) -> None:
    data = table(as_jsonl(tmp_path, simple(y=cells * 2)), texts="t", label="y", split="split")
    assert list(data.labels) == order


def test_given_labels_keep_their_order_and_others_are_findings(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple() + simple(y=["yes", "maybe", "yess", "no", "no", "no"]))
    found, data = skipped(path, texts="t", label="y", split="split", labels=["yes", "no", "never"])
    assert found == [("wrong label", 9), ("wrong label", 10)]
    assert list(data.labels) == ["yes", "no", "never"]
    assert [int(e.target) for e in data.splits["dev"] if e.target is not None] == [1, 0, 1]
    with pytest.raises(DataError, match="'yess' is none of the labels: did you mean 'yes'"):
        table(as_csv(tmp_path, simple(y=["yess"] * 6)), texts="t", label="y", labels=["yes", "no"])


@pytest.mark.parametrize("labels", [["a"], ["a", "a"], []])
def test_given_labels_must_be_at_least_two_different_ones(tmp_path: Path, labels: list[str]) -> None:
    with pytest.raises(DataError, match="at least two different names"):
        table(as_csv(tmp_path, simple()), texts="t", label="y", labels=labels)


def test_a_single_class_is_an_error_in_all_rows_and_in_train(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a single label, 'no': 6"):
        table(as_csv(tmp_path, simple(y=["no"] * 6)), texts="t", label="y", split="split")
    with pytest.raises(DataError, match="all 2 rows of train have the same label"):
        table(as_csv(tmp_path, simple(y=["no"] * 5 + ["yes"])), texts="t", label="y", split="split")


def test_a_label_that_train_never_shows_is_reported_but_no_fault(tmp_path: Path) -> None:
    findings = Findings()
    data = table(
        as_csv(tmp_path, simple(y=["a", "b", "c", "a", "c", "c"])),
        texts="t",
        label="y",
        split="split",
        findings=findings,
    )
    assert (
        data.facts["never in train"] == findings.absent == ["the label 'c' never occurs in train ('dev': 1, 'test': 2)"]
    )
    assert data.facts["label counts"]["test"] == {"a": 0, "b": 0, "c": 2}


def test_numbers_in_place_of_classes_suggest_a_score(tmp_path: Path) -> None:
    records = [{"t": "x", "y": n / 7, "z": f"text {n}"} for n in range(40)]
    with pytest.raises(DataError, match=r"40 different values in 40 rows.*task='score'"):
        table(as_jsonl(tmp_path, records), texts="t", label="y")
    with pytest.raises(DataError, match="another column"):
        table(as_jsonl(tmp_path, records), texts="t", label="z")


def test_a_score_is_a_finite_number(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple(y=[0, 1.5, -2, 3, 4, 5]) + simple(y=["high", "inf", "1e39", "nan", "", "6"]))
    found, data = skipped(path, texts="t", label="y", split="split", task="score")
    kinds = ["wrong label", "not finite", "not finite", "missing label", "missing label"]
    assert found == [(kind, line) for line, kind in enumerate(kinds, 8)]
    target = data.splits["train"][1].target
    assert target is not None
    assert (target.dtype, target.shape, target.item()) == (torch.float32, (), 1.5)
    assert (data.head, data.metric.name, list(data.labels)) == ("score", "r2", ["y"])
    assert data.facts["label counts"]["train"] == {"mean": 0.75, "std": 0.75, "min": 0.0, "max": 1.5}


def test_a_score_has_no_labels_and_must_vary(tmp_path: Path) -> None:
    path = as_csv(tmp_path, simple(y=[1] * 6))
    with pytest.raises(DataError, match="has no labels"):
        table(path, texts="t", label="y", task="score", labels=["a", "b"])
    with pytest.raises(DataError, match=r"holds 1\.0 in every row"):
        table(path, texts="t", label="y", task="score", split="split")


def test_several_labels_come_as_lists_or_with_a_separator(tmp_path: Path) -> None:
    lists = [["b", "a"], [], ["c"], ["a", "a"], ["b"], ["c", "b"]]
    options: dict[str, Any] = {"texts": "t", "label": "y", "split": "split", "task": "labels"}
    one = table(as_jsonl(tmp_path, simple(y=lists)), **options)
    assert [e.target.tolist() for e in one.splits["train"] if e.target is not None] == [[1, 1, 0], [0, 0, 0]]
    two = table(as_csv(tmp_path, simple(y=["b; a", "a", "c", "a;a", "b", "c;b"])), **options, separator=";")
    assert list(one.labels) == list(two.labels) == ["a", "b", "c"]
    assert two.splits["train"][0].target is not None
    assert two.facts["label counts"]["train"] == {"a": 2, "b": 1, "c": 0}
    with pytest.raises(DataError, match="separator"):
        table(tmp_path / "t.csv", **options, separator="")
    found, _ = skipped(as_csv(tmp_path, simple() + simple(y=["", "a", "b", "a", "b", "a"])), **options)
    assert found == [("missing label", 8)]
