"""The committed results: they verify, the pages follow from them, and the embedded set needs both modalities."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

from meq.studies import read_study, records_of, verify
from meq.studies.whole_paper import EMBEDDED, read_paper, verify_any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
STUDIES = sorted(path.parent for path in RESULTS.glob("*/study.json"))


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", RESULTS / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look a class up by the name of its module
    spec.loader.exec_module(module)
    return module


def test_the_studies_that_the_page_speaks_of_are_there(page: ModuleType) -> None:
    assert {folder.name for folder in STUDIES} == {*page.SECTIONS, page.TRIAL}


def test_the_whole_paper_in_its_quick_form_verifies_and_every_row_was_trained(page: ModuleType) -> None:
    folder = RESULTS / page.PAPER
    found = verify_any(folder)
    assert found.ok, found.faults
    assert found.tables > 100
    paper = read_paper(folder)
    assert paper.quick
    assert {part.data for part in paper.parts} == set(EMBEDDED)
    assert not any(part.smoke for part in paper.parts)
    for part in paper.parts:
        study = read_study(folder / part.folder)
        records = records_of(folder / part.folder, study)
        assert len(study.seeds) == 3
        assert len(records) == len(study.arms) * 3
        assert all(record.scored and record.steps > 100 for record in records.values())


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_committed_results_verify(folder: Path) -> None:
    found = verify(folder)
    assert found.ok, found.faults
    assert all(name.endswith(".safetensors") for name in found.unverified), "only weights are left out"
    assert found.metrics > 0
    assert found.tables > 0


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_committed_results_are_complete_and_have_three_seeds_or_more(folder: Path, page: ModuleType) -> None:
    study = read_study(folder)
    assert len(study.seeds) >= 3 or folder.name == page.TRIAL, "a trial of learning rates has one, and no comparison"
    assert len(records_of(folder, study)) == len(study.arms) * len(study.seeds)


def test_the_results_page_follows_from_the_records(page: ModuleType) -> None:
    assert page.DOCS.read_text() == page.page(), "make it again: python results/page.py"


def test_the_readme_s_results_follow_from_the_records(page: ModuleType) -> None:
    assert page.README.read_text() == page.with_results(page.README.read_text()), "python results/page.py"


def test_one_modality_of_scenes_alone_is_within_three_points_of_chance() -> None:
    folder = RESULTS / "modality-scenes-quick"
    study = read_study(folder)
    records = records_of(folder, study)
    alone = [arm.name for arm in study.arms if arm.blank]
    assert {"text-only", "image-only"} <= set(alone)
    for arm in alone:
        scores = [records[arm, seed].metrics["test"]["accuracy"] for seed in study.seeds]
        assert abs(statistics.fmean(scores) - 1 / 3) < 0.03, (arm, scores)
