"""The page of benchmarks says of the feature store what its record says, also where a target is missed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rendering() -> ModuleType:
    spec = importlib.util.spec_from_file_location("store_benchmark_render", ROOT / "benchmarks" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def made_up(*, rate: float, share: float) -> dict[str, Any]:
    cases = [f"{which}, {how}" for how in ("alone", "in batches") for which in ("first", "later")]
    step = {
        "step_cpu_seconds": 2.0,
        "share_median": share,
        "share_lower_quartile": share,
        "share_upper_quartile": share,
    }
    return {
        "versions": {"meq": "1", "torch": "2", "python": "3"},
        "threads": 1,
        "rounds": 3,
        "store": {"items": 20, "shards": 2, "megabytes": 5.0},
        "tokens": {"image": 50, "text": 32, "width": 768},
        "reading": {case: {"cpu_per_second": rate} for case in cases},
        "encoding": {"through": "transformers", "pictures": 200, "cpu_per_second": 10.0},
        "waiting": {"dim": 256, "depth": 10, "batch": 32, "steps": 12, "equilibrium": step, "concat": step},
    }


def test_targets_that_are_met_are_said_to_be_met(rendering: ModuleType) -> None:
    page = rendering.feature_store(made_up(rate=5000, share=0.01))
    assert "is met: 500 times" in page
    assert "is met: 1.00 %" in page
    assert "not met" not in page
    assert "| first, in batches | 5,000 | 500 |" in page


def test_targets_that_are_missed_are_said_to_be_missed(rendering: ModuleType) -> None:
    page = rendering.feature_store(made_up(rate=499, share=0.05))
    assert "is **not met**: 49.9 times" in page
    assert "is **not met**: 5.0 %" in page
