"""A run is sealed as a study is: a byte that changes anywhere in its folder is found, and the file is named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from fuzzing import MINUTES, some
from rich.console import Console

from meq.models.hub import CONFIG
from meq.records import SEAL, FormatError, check_seal, write_seal
from meq.runs import load_run
from meq.runs.run_files import open_run_files
from meq.studies import StudyError, run_study, verify
from meq.studies.study import read_study
from meq.training.bundle import CARD
from meq.training.predictions import PredictionsError

PLACE = "runs/meq/seed-0"
RECORDS = Path(__file__).parents[1] / "records"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run of its own, outside of its study."""
    return Path(shutil.copytree(finished / PLACE, tmp_path / "run"))


def flip(path: Path, at: int, bit: int) -> bytes:
    content = path.read_bytes()
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    path.write_bytes(changed)
    return content


def test_a_finished_run_is_sealed_with_all_its_files(run: Path) -> None:
    loaded = load_run(run)
    assert loaded.sealed
    assert loaded.not_sealed is None
    named = {run / name for name in check_seal(run).files} | {
        run / "model" / n for n in check_seal(run / "model").files
    }
    beside = {run / SEAL, *(path for path in run.rglob("*") if "measures" in path.parts)}
    assert named == {path for path in run.rglob("*") if path.is_file()} - beside


def test_an_option_of_the_model_that_was_changed_by_hand_is_found(run: Path) -> None:
    options = run / "model" / CONFIG
    text = options.read_text()
    assert '"damping": 0.5' in text
    options.write_text(text.replace('"damping": 0.5', '"damping": 2.5'))
    with pytest.raises(FormatError, match=r"model/config\.json changed since the run was sealed"):
        load_run(run)
    with pytest.raises(FormatError, match=r"model/config\.json changed since the run was sealed"):
        open_run_files(run)
    alone = Path(shutil.copytree(run / "model", run.parent / "pushed"))
    with pytest.raises(FormatError, match=r"pushed/config\.json changed since the run was sealed"):
        load_run(alone)


@pytest.mark.fuzz
def test_a_flipped_byte_anywhere_in_a_run_is_found_and_its_file_named(run: Path) -> None:
    """Every byte of the small files under `make fuzz`; the beginning, the end and some in between in the suite."""
    draw = random.Random(None if MINUTES else 16)
    for path in sorted(path for path in run.rglob("*") if path.is_file() and "measures" not in path.parts):
        size = path.stat().st_size
        places = range(size) if size < 5_000 else draw.sample(range(size), 500)
        for at in {0, size - 1, *some(list(places), 12, per_minute=12)}:
            before = flip(path, at, draw.randrange(8))
            with pytest.raises((FormatError, StudyError, PredictionsError)) as caught:
                load_run(run)
            assert path.relative_to(run).as_posix() in str(caught.value), f"byte {at} of {path.name}: {caught.value}"
            path.write_bytes(before)
    load_run(run)


@pytest.mark.parametrize("name", ["record.json", "predictions/dev.parquet", "model/README.md", "model/seal.json"])
def test_a_file_that_is_gone_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    if name == "model/README.md":
        assert load_run(run).sealed, "the card is not needed to answer"
    else:
        with pytest.raises(FormatError, match=f"{name} is missing: .*seal.json names it"):
            load_run(run)


def test_files_that_are_added_later_are_nobodys_business(run: Path) -> None:
    (run / "analysis").mkdir()
    (run / "analysis" / "notes.json").write_text("{}")
    (run / "report.html").write_text("<p>")
    assert load_run(run).sealed


def test_a_run_without_seals_loads_and_says_so(run: Path) -> None:
    for seal in run.rglob(SEAL):
        seal.unlink()
    loaded = load_run(run)
    assert not loaded.sealed
    assert loaded.not_sealed is not None
    assert "is not sealed: only its weights were checked" in loaded.not_sealed


def test_a_run_that_is_under_way_is_not_called_damaged(run: Path) -> None:
    record = run / "record.json"
    record.write_text(record.read_text().replace('"status": "finished"', '"status": "running"'))
    loaded = load_run(run)
    assert not loaded.sealed
    assert "is not finished (its record says: running): these are the best weights so far" in (loaded.not_sealed or "")
    assert open_run_files(run).record.status == "running"


def test_a_seal_that_leads_outside_is_refused(run: Path) -> None:
    write_seal(run, [], to_come={"../secret": b""})
    with pytest.raises(FormatError, match=r"'\.\./secret' leads outside of the folder"):
        load_run(run)


def test_studies_with_and_without_seals_verify(copied: Path) -> None:
    assert verify(copied).ok
    assert f"{PLACE}/{SEAL}" in (copied / "manifest.json").read_text()
    run_study(read_study(copied), copied, console=Console(quiet=True))
    assert verify(copied).ok
    flip(copied / PLACE / SEAL, 100, 0)
    assert [fault.file for fault in verify(copied).faults] == [f"{PLACE}/{SEAL}"]


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_the_study_of_every_release_verifies_without_its_weights(version: str) -> None:
    assert verify(RECORDS / version).ok


def test_the_report_says_which_files_are_as_they_were_sealed(run: Path) -> None:
    verdicts = {each.file: each.verdict for each in open_run_files(run).hashes()}
    assert set(verdicts.values()) == {"as recorded"}
    assert {"record.json", f"model/{CONFIG}", f"model/{CARD}"} <= verdicts.keys()
    (run / "model" / CARD).write_text("another card")
    assert {each.file: each.verdict for each in open_run_files(run).hashes()}[f"model/{CARD}"] == "NOT as recorded"


def test_the_model_of_another_run_is_not_taken_for_this_one_s(run: Path, finished: Path) -> None:
    shutil.rmtree(run / "model")
    shutil.copytree(finished / "runs/concat/seed-0/model", run / "model")
    with pytest.raises(FormatError, match=r"model/seal\.json changed since the run was sealed"):
        load_run(run)
    (run / "record.json").unlink()
    with pytest.raises(FormatError, match=r"is missing|changed since"):
        load_run(run)


def test_a_sealed_model_loads_from_a_cache_that_keeps_its_files_behind_links(run: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "one"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for path in (run / "model").iterdir():
        shutil.copy(path, blobs / f"{path.name}-hash")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{path.name}-hash")
    assert load_run(snapshot).sealed
    (blobs / "config.json-hash").write_text((blobs / "config.json-hash").read_text().replace("0.5", "0.6"))
    with pytest.raises(FormatError, match=r"config\.json changed since"):
        load_run(snapshot)
