"""A data set and a metric of somebody else's package: registered by a decorator, known wherever names are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from meq.data import DATA_SETS, METRICS, DataError, DataSet, Example, Findings, features, register_data_set
from meq.data.check import check
from meq.data.metrics import UnknownMetricError, metric_named, register_metric
from meq.data.request import DataRequest

PACKAGE = """
from meq.data import DataSet, Example, features, register_data_set, register_metric


@register_metric("share of ones")
def share_of_ones(logits, target):
    return float((logits.argmax(1) == 1).double().mean())


@register_data_set("my-dots", summary="dots left and right", metric="share of ones", embedded=True)
def my_dots(*, count: int = 12, seed: int = 0) -> DataSet:
    import torch

    generator = torch.Generator().manual_seed(seed)
    rows = [
        Example(id=str(row), content={"a": torch.randn(2, generator=generator)}, target=torch.tensor(row % 2))
        for row in range(count)
    ]
    return DataSet(
        name="my-dots", splits={"train": rows, "dev": rows}, modalities={"a": features(2)}, labels=("left", "right"),
        head="classes", metric=share_of_ones,
    )
"""


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = {registry: registry.names() for registry in (DATA_SETS, METRICS)}
    yield
    for registry, names in before.items():
        for name in set(registry.names()) - set(names):
            registry.remove(name)


def read(root: Path, *, findings: Findings | None = None, shift: float = 0.0) -> DataSet:
    numbers = [float(line) for line in (root / "numbers.txt").read_text().split()]
    rows = [
        Example(id=str(row), content={"x": torch.tensor([x + shift])}, target=torch.tensor(row % 2))
        for row, x in enumerate(numbers)
    ]
    return DataSet(
        name="numbers",
        splits={"train": rows},
        modalities={"x": features(1)},
        labels=("even", "odd"),
        head="classes",
        metric=METRICS["accuracy"],
    )


def test_a_registered_data_set_is_opened_checked_and_its_options_are_judged(tmp_path: Path) -> None:
    register_data_set("numbers", summary="numbers in a file", metric="accuracy")(read)
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    assert DATA_SETS["numbers"].options == ["shift"]
    data = DataRequest(data="numbers", root=tmp_path, options={"shift": 0.5}).open()
    assert float(data.splits["train"][0].content["x"]) == 1.5  # type: ignore[arg-type]
    assert check("numbers", tmp_path).ok
    with pytest.raises(DataError, match=r"the data set 'numbers' has no option 'shfit': did you mean 'shift'"):
        DataRequest(data="numbers", root=tmp_path, options={"shfit": 1}).check()
    with pytest.raises(DataError, match="must be a number, got 'far'"):
        DataRequest(data="numbers", root=tmp_path, options={"shift": "far"}).check()
    with pytest.raises(DataError, match="there is no data set 'number': did you mean 'numbers'"):
        DataRequest(data="number").check()


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="there is a data set 'scenes' already"):
        register_data_set("scenes", summary="others", metric="accuracy", embedded=True)(read)
    with pytest.raises(ValueError, match="there is a metric 'accuracy' already"):
        register_metric("accuracy")(lambda logits, target: 0.0)


def test_a_registered_metric_is_found_by_its_name() -> None:
    @register_metric("worst score")
    def worst(logits: Tensor, target: Tensor) -> float:
        return float(logits.min())

    assert metric_named("worst score", {}) is worst
    assert worst(torch.tensor([[1.0, -2.0]]), torch.tensor([0])) == -2.0
    with pytest.raises(UnknownMetricError, match="did you mean 'worst score'"):
        metric_named("worst scores", {})


def test_a_package_of_its_own_adds_both(tmp_path: Path) -> None:
    (tmp_path / "dots.py").write_text(PACKAGE)
    code = """
import sys, json, dots
from meq.data import DATA_SETS, METRICS
listed = ["my-dots" in DATA_SETS, "share of ones" in METRICS, "torch" in sys.modules]
from meq.data.request import DataRequest
from meq.data.check import inspect_data
request = DataRequest(data="my-dots", options={"count": 8})
data = request.open()
print(json.dumps([listed, len(data.splits["train"]), data.metric.name, inspect_data(request).ok]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[True, True, False], 8, "share of ones", True]
