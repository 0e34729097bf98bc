"""docs/benchmarks.md is what the committed records say, and a target that is missed is said to be missed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def rendering() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_render", ROOT / "benchmarks" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def made_up(rendering: ModuleType, **changed: dict[str, float]) -> dict[str, Any]:
    """A record in which our cases are ahead of everything, except for what is changed."""
    rows = rendering.FORWARD + rendering.TRAINING
    ours, theirs = [row.case for row in rows], [rival for row in rows for rival in (*row.rivals, *row.lighter)]
    cases = {
        case: {"base": "plain/fwd", "ratio_median": r, "ratio_q25": r - 0.1, "ratio_q75": r + 0.1, "peak_live_MB": m}
        for names, r, m in ((ours, 1.0, 5.0), (theirs, 2.0, 50.0), (["plain/fwd"], 1.0, 5.0))
        for case in names
    }
    for case, values in changed.items():
        cases[case].update(values)
    sizes = {"d": "8", "nx": "2", "ny": "3", "batch": "4", "K": "5", "KB": "6"}
    about = {"meq": "1", "torch": "2", "torchdeq": "3", "python": "4", "cpu": "a made-up processor"}
    return {"cfg": sizes, "about": about, "rounds": 7, "cases": cases}


def page_of(rendering: ModuleType, folder: Path, record: dict[str, Any]) -> str:
    (folder / "coupled_block.json").write_text(json.dumps(record), encoding="utf-8")
    return str(rendering.render(folder))


def test_the_page_is_what_the_committed_records_say(rendering: ModuleType) -> None:
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == rendering.render()


def test_the_committed_record_names_what_was_measured_and_no_place() -> None:
    text = (ROOT / "benchmarks" / "results" / "coupled_block.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert set(record["about"]) == {"meq", "torch", "torchdeq", "python", "cpu"}
    assert record["rounds"] >= 25
    assert record["threads"] == 1
    assert not any(part in text for part in ("/home", "/work", "/tmp", "://"))


def test_targets_that_are_met_are_said_to_be_met(rendering: ModuleType, tmp_path: Path) -> None:
    page = page_of(rendering, tmp_path, made_up(rendering))
    assert "Every target is met." in page
    assert "missed" not in page
    assert "a made-up processor" in page


@pytest.mark.parametrize(
    ("case", "values", "words"),
    [
        ("meq/fwd anderson", {"ratio_median": 1.25}, "**missed**: ratio 1.250 is above 1.20"),
        ("meq/implicit", {"peak_live_MB": 12.5}, "**missed**: 12.5 MB is above 12 MB"),
        ("torchdeq/fwd broyden", {"ratio_median": 0.9}, "**missed**: slower than torchdeq/fwd broyden"),
        ("torchdeq/ift anderson", {"peak_live_MB": 4.0}, "**missed**: more memory than torchdeq/ift anderson"),
    ],
)
def test_a_target_that_is_missed_is_said_to_be_missed(
    rendering: ModuleType, tmp_path: Path, case: str, values: dict[str, float], words: str
) -> None:
    page = page_of(rendering, tmp_path, made_up(rendering, **{case: values}))
    assert words in page
    assert "**Not met**" in page
    assert "Every target is met." not in page


def test_cases_of_torchdeq_that_do_less_work_are_shown_but_not_judged_against(
    rendering: ModuleType, tmp_path: Path
) -> None:
    faster = {"torchdeq/fwd simple_fixed_point_iter": {"ratio_median": 0.5}}
    page = page_of(rendering, tmp_path, made_up(rendering, **faster))
    assert "| TorchDEQ, fwd simple_fixed_point_iter † | 0.500" in page
    assert "Every target is met." in page


def test_a_section_without_a_record_is_left_out(rendering: ModuleType, tmp_path: Path) -> None:
    assert rendering.render(tmp_path) == rendering.INTRODUCTION
