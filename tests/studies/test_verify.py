from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from studies.samples import RELEASED

from meq.records import FormatError, sha256, write_bytes
from meq.studies import StudyError, make_study, read_predictions, read_record, records_of, verify
from meq.studies.compare import answers_of
from meq.studies.tables import table_files
from meq.studies.verify import MANIFEST, files_below, read_manifest, sealed, write_manifest
from meq.training.predictions import write_predictions
from meq.training.record import HashedFile, RunRecord, write_record

PLACE = "runs/meq/seed-1"


def test_a_finished_study_verifies(finished: Path) -> None:
    found = verify(finished, require_checkpoints=True)
    assert found.faults == []
    assert found.unverified == []
    assert found.hashes == len(files_below(finished)) - 1, "all but the manifest, which has its own hash"
    assert found.metrics == 6 * 2 * 2, "six runs, two splits, accuracy and loss"
    assert found.tables == 5 * 4, "means and intervals of two splits, runs; four forms"


def test_every_flipped_byte_is_found_and_named(copied: Path) -> None:
    """Two bytes of every file, at random places: over a hundred flips."""
    draw, flips = random.Random(5), 0
    for name in files_below(copied):
        content = (copied / name).read_bytes()
        for _ in range(2):
            flipped = bytearray(content)
            flipped[place := draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            (copied / name).write_bytes(flipped)
            assert name in {fault.file for fault in verify(copied).faults}, f"byte {place} of {name}"
            flips += 1
        (copied / name).write_bytes(content)
    assert flips > 100
    assert verify(copied).ok


def test_every_single_byte_of_the_manifest_counts(finished: Path, tmp_path: Path) -> None:
    content = (finished / MANIFEST).read_bytes()
    for place in range(0, len(content), 29):
        flipped = bytearray(content)
        flipped[place] ^= 1
        (tmp_path / MANIFEST).write_bytes(flipped)
        with pytest.raises(FormatError, match=MANIFEST):
            read_manifest(tmp_path)
    for more in (content + b"\n", b" " + content, content[:-1]):
        (tmp_path / MANIFEST).write_bytes(more)
        with pytest.raises(FormatError):
            read_manifest(tmp_path)


def test_a_file_that_nobody_vouches_for_is_a_fault(copied: Path) -> None:
    (copied / "runs" / "meq" / "seed-0" / "notes.txt").write_text("added later")
    (fault,) = verify(copied).faults
    assert fault.file == "runs/meq/seed-0/notes.txt"
    assert "not listed" in fault.message


@pytest.mark.parametrize("name", [f"{PLACE}/record.json", f"{PLACE}/predictions/dev.parquet", "tables/runs.md"])
def test_a_missing_file_is_a_fault(copied: Path, name: str) -> None:
    (copied / name).unlink()
    assert (name, "missing") in {(fault.file, fault.message) for fault in verify(copied).faults}


def test_absent_checkpoints_are_listed_or_required(copied: Path) -> None:
    (copied / PLACE / "model" / "model.safetensors").unlink()
    found = verify(copied)
    assert found.ok
    assert found.unverified == [f"{PLACE}/model/model.safetensors"]
    (fault,) = verify(copied, require_checkpoints=True).faults
    assert fault.file == f"{PLACE}/model/model.safetensors"


def reseal(folder: Path) -> None:
    """What somebody does who covers up a change: new hashes and new tables."""
    study = make_study("statements-tiny")
    made = table_files(study, records_of(folder, study), answers=answers_of(folder))
    for path in (folder / "tables").iterdir():
        path.unlink()
    for name, content in made.items():
        write_bytes(folder / "tables" / name, content)
    files = [name for name in files_below(folder) if name != MANIFEST]
    write_manifest(folder, sealed(read_manifest(folder), folder, files, without="tables"))


def change_record(folder: Path, change: Callable[[RunRecord], RunRecord]) -> None:
    write_record(folder / PLACE, change(read_record(folder / PLACE)))
    reseal(folder)


def better(record: RunRecord) -> RunRecord:
    return replace(record, metrics={**record.metrics, "dev": {**record.metrics["dev"], "accuracy": 0.99}})


def unknown(record: RunRecord) -> RunRecord:
    return replace(record, metrics={**record.metrics, "dev": {**record.metrics["dev"], "acuracy": 0.99}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (better, "accuracy on dev is 0.99, the predictions give 0.5"),
        (unknown, "there is no metric 'acuracy': did you mean 'accuracy'?"),
        (lambda record: replace(record, config={**record.config, "learning_rate": 9.0}), "its config is not what"),
        (lambda record: replace(record, arm="concat"), "its arm is not what the study has"),
        (
            lambda record: replace(record, data=replace(record.data, fingerprint="0" * 64)),
            "trained on other data than the first run",
        ),
        (
            lambda record: replace(record, checkpoint=HashedFile(file="../../x", sha256="0")),
            "it places model/model.safetensors at '../../x'",
        ),
        (lambda record: replace(record, predictions={}), "not the same splits"),
    ],
)
def test_a_record_that_was_changed_and_sealed_again_is_found(copied: Path, change: Callable, message: str) -> None:
    change_record(copied, change)
    found = verify(copied)
    assert [fault.file for fault in found.faults] == [f"{PLACE}/record.json"]
    assert message in found.faults[0].message


def test_answers_that_were_changed_and_sealed_again_are_found(copied: Path) -> None:
    file = copied / PLACE / "predictions" / "dev.parquet"
    kept = read_predictions(file)
    write_predictions(file, replace(kept, logits=-kept.logits))
    hashed = HashedFile(file="predictions/dev.parquet", sha256=sha256(file))
    change_record(copied, lambda record: replace(record, predictions={**record.predictions, "dev": hashed}))
    assert {fault.message.split(" is ")[0] for fault in verify(copied).faults} >= {"loss on dev"}


def test_other_targets_than_those_of_the_other_runs_are_found(copied: Path) -> None:
    file = copied / PLACE / "predictions" / "dev.parquet"
    kept = read_predictions(file)
    write_predictions(file, replace(kept, target=1 - kept.target, logits=kept.logits.flip(1)))
    hashed = HashedFile(file="predictions/dev.parquet", sha256=sha256(file))
    change_record(copied, lambda record: replace(record, predictions={**record.predictions, "dev": hashed}))
    assert "its examples or targets are not those of the first run" in {each.message for each in verify(copied).faults}


def test_a_table_that_does_not_follow_from_the_records_is_found(copied: Path) -> None:
    table = copied / "tables" / "dev-accuracy.md"
    table.write_text(table.read_text().replace("not called", "called"))
    manifest = read_manifest(copied)
    write_manifest(copied, sealed(manifest, copied, ["tables/dev-accuracy.md"]))
    (fault,) = verify(copied).faults
    assert (fault.file, fault.message) == ("tables/dev-accuracy.md", "it differs from the table that the records give")


def test_a_run_that_is_not_over_is_mentioned_and_its_files_are_no_fault(copied: Path) -> None:
    shutil.rmtree(copied / PLACE)
    write_manifest(copied, sealed(read_manifest(copied), copied, [], without=PLACE))
    reseal(copied)
    (copied / PLACE / "checkpoints").mkdir(parents=True)
    (copied / PLACE / "checkpoints" / "half").write_text("being written")
    found = verify(copied)
    assert found.ok
    assert found.notes == ["meq, seed 1: no finished record"]


def test_a_manifest_cannot_lead_out_of_the_folder(copied: Path) -> None:
    manifest = read_manifest(copied)
    entry = next(iter(manifest.files.values()))
    write_manifest(copied, replace(manifest, files={"../outside": entry}))
    (fault, *_) = verify(copied).faults
    assert fault.file == MANIFEST
    assert "leads outside" in fault.message


def test_a_folder_that_is_no_study_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="is not the folder of a study"):
        verify(tmp_path)


def test_the_study_of_every_released_format_still_verifies() -> None:
    folders = [path for path in RELEASED.parent.iterdir() if (path / MANIFEST).is_file()]
    assert folders
    for folder in folders:
        found = verify(folder)
        assert found.faults == [], folder.name
        assert len(found.unverified) == 4, "weights are not committed"


def test_every_metric_of_a_data_set_can_be_computed_again() -> None:
    import inspect

    from meq.data import metrics
    from meq.data.metrics import METRICS, Metric, metric_named

    for module in (metrics,):
        for name, value in inspect.getmembers(module, lambda each: isinstance(each, Metric)):
            assert METRICS[value.name] == value, name
    scores, target = torch.tensor([[0.4], [2.6]]), torch.tensor([0.0, 3.0])
    assert metric_named("Acc-7", {"target": "score", "rule": "round"})(scores, target) == 1.0
    assert metric_named("Acc-7", {"target": "score", "rule": "sdk"})(scores, target) == 0.5
    assert metric_named("Acc-7", {"target": "acc7"})(torch.eye(7), torch.arange(7)) == 1.0


def test_the_committed_study_is_strict_json() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    for path in RELEASED.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)
