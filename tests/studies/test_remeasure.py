from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from studies.shrinking import shrunk

from meq.studies import make_study, records_of, run_study, verify
from meq.studies.measures import measured_of
from meq.studies.remeasure import differences, remeasure
from meq.studies.study import run_place
from meq.studies.tables import answers_of, table_files
from meq.studies.verify import files_below, read_manifest, sealed, write_manifest

STUDY = shrunk(make_study("residual-penalty", "scenes", quick=True))
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("remeasured") / "study"
    run_study(STUDY, place, console=QUIET)
    return place


def seal_again(folder: Path) -> None:
    """As somebody would who edits a measure and covers the traces: tables and hashes follow from what is there."""
    made = table_files(STUDY, records_of(folder, STUDY), measured_of(folder, STUDY), answers=answers_of(folder))
    for name, content in made.items():
        (folder / "tables" / name).write_bytes(content)
    listed = [name for name in files_below(folder) if name != "manifest.json"]
    write_manifest(folder, sealed(read_manifest(folder), folder, listed))


def test_measures_taken_again_agree_and_one_that_was_edited_and_sealed_again_is_found(
    folder: Path, tmp_path: Path
) -> None:
    found = remeasure(folder)
    assert (found.faults, found.measures) == ([], 4)

    edited = shutil.copytree(folder, tmp_path / "edited")
    file = f"{run_place('residual', 0)}/measures/fixed-point.json"
    content = json.loads((edited / file).read_text())
    content["found"]["residual"]["image"][0] *= 1.5
    (edited / file).write_text(json.dumps(content))
    seal_again(edited)
    assert verify(edited).ok, "hashes and tables do not tell"
    [fault] = remeasure(edited).faults
    assert fault.file == file
    assert "measured again, residual.image[0] is" in fault.message


def test_runs_without_weights_are_said_not_to_be_measured_again(folder: Path, tmp_path: Path) -> None:
    light = shutil.copytree(folder, tmp_path / "light", ignore=shutil.ignore_patterns("model.safetensors"))
    found = remeasure(light)
    assert (found.measures, found.faults) == (0, [])
    assert found.notes == [f"{arm}, seed 0: no weights, so that nothing was measured again" for arm in
                           ("residual", "no-residual")]  # fmt: skip


def test_what_differs_is_named_by_its_place() -> None:
    one = {"a": [1.0, float("nan")], "b": {"c": "x"}, "d": 3}
    assert list(differences(one, {"a": [1.0 + 1e-5, float("nan")], "b": {"c": "x"}, "d": 3})) == []
    assert list(differences(one, {"a": [1.0], "b": {"c": "y"}, "e": 3})) == [
        "a is [1.0] and the record has [1.0, nan]",
        "b.c is 'y' and the record has 'x'",
        "d is not there any more",
        "e is new",
    ]


def test_small_numbers_and_rows_of_numbers_that_are_texts_are_compared_as_numbers() -> None:
    assert list(differences({"far": 8e-6}, {"far": 9e-4})) == ["far is 0.0009 and the record has 8e-06"]
    assert list(differences({"p": "0.123 0.5"}, {"p": "0.124 0.5"})) == []
    assert list(differences({"p": "0.123 0.5"}, {"p": "0.123 0.7"})) == ["p, number 1, is 0.7 and the record has 0.5"]
    assert list(differences({"p": "a b"}, {"p": "a c"})) == ["p is 'a c' and the record has 'a b'"]
