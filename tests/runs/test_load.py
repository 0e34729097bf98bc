from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from rich.console import Console

from meq.data.contract import Example
from meq.data.request import open_data
from meq.data.scenes import scenes
from meq.data.statements import statements
from meq.encoders import default_encoders
from meq.encoders.builtin import Patches, Words
from meq.records import FormatError
from meq.runs import load_run
from meq.studies import DataConfig, StudyError, make_study, read_predictions, run_study
from meq.studies.build import prepare_data
from meq.training.bundle import read_task
from meq.training.record import encoders_of

PLACE = "runs/meq/seed-0"
MODEL_FILES = {"config.json", "model.safetensors", "task.json", "README.md", "seal.json"}


def dev_examples() -> list[Example]:
    return [replace(example, target=None) for example in statements(train=64, dev=24, test=16).splits["dev"]]


def test_a_moved_run_is_loaded_in_two_lines_and_answers_as_it_was_recorded(finished: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(finished / PLACE, tmp_path / "elsewhere" / "my-run"))
    run = load_run(moved)
    answers = run.predict(dev_examples())
    kept = read_predictions(moved / run.record.predictions["dev"].file)
    assert [answer.id for answer in answers] == list(kept.ids)
    torch.testing.assert_close(torch.stack([answer.logits for answer in answers]), kept.logits, rtol=1e-5, atol=1e-6)
    assert [answer.answer for answer in answers] == [("false", "true")[best] for best in kept.logits.argmax(1)]
    assert run.labels == ("false", "true")
    assert run.record.arm == "meq"
    assert not run.model.training
    text = "".join(path.read_text() for path in moved.rglob("*.json")) + (moved / "model" / "README.md").read_text()
    assert str(finished) not in text, "nothing in a run says where it once lay"


def test_the_model_folder_alone_is_enough(finished: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(finished / PLACE / "model", tmp_path / "pushed"))
    run = load_run(alone)
    assert run.record is None
    assert len(run.predict(dev_examples())) == 24
    assert {path.name for path in alone.iterdir()} == MODEL_FILES
    assert "meq.load(" in (alone / "README.md").read_text()


def test_the_batch_size_changes_nothing(finished: Path) -> None:
    run = load_run(finished / PLACE)
    few, many = (run.predict(dev_examples(), batch_size=size) for size in (5, 24))
    for ours, theirs in zip(few, many, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_those_of_the_task_are_refused(copied: Path) -> None:
    weights = copied / PLACE / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(FormatError, match=r"model.safetensors changed since the run was sealed: its SHA-256 differs"):
        load_run(copied / PLACE)
    for seal in (copied / PLACE).rglob("seal.json"):
        seal.unlink()
    with pytest.raises(FormatError, match=r"is not the file that was saved with task.json: its SHA-256 differs"):
        load_run(copied / PLACE)


def test_what_is_no_trained_run_is_answered_in_words(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(StudyError, match=r"is not the folder of a trained run: expected record.json and model/"):
        load_run(tmp_path)
    (copied / PLACE / "model" / "task.json").unlink()
    with pytest.raises(StudyError, match="the run is not finished"):
        load_run(copied / PLACE)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures and texts, encoded and standardised."""
    folder = tmp_path_factory.mktemp("scenes") / "study"
    tiny = make_study("statements-tiny")
    data = DataConfig(name="scenes", options={"train": 36, "dev": 18, "test": 18}, standardise=True)
    study = replace(tiny, data=data, arms=(tiny.arm("concat"),), seeds=(0,), train=replace(tiny.train, epochs=1))
    run_study(study, folder, console=Console(quiet=True))
    return folder / "runs" / "concat" / "seed-0"


def test_pictures_and_texts_go_the_way_they_went_in_training(seen: Path) -> None:
    run = load_run(seen)
    raw = scenes(train=36, dev=18, test=18)
    answers = run.predict(list(raw.splits["dev"]), encoders=default_encoders(raw))
    kept = read_predictions(seen / "predictions" / "dev.parquet")
    torch.testing.assert_close(torch.stack([answer.logits for answer in answers]), kept.logits, rtol=1e-4, atol=1e-5)
    features = prepare_data(DataConfig(name="scenes", options={"train": 36, "dev": 18, "test": 18})).data
    assert run.task.encoders == encoders_of(features)
    assert run.task.source_fingerprint == raw.fingerprint() == run.record.data.source_fingerprint
    assert run.task.standardisation is not None
    again = run.predict(list(features.splits["dev"]))
    torch.testing.assert_close(again[0].logits, answers[0].logits, rtol=1e-4, atol=1e-5)
    assert "standardised" in (seen / "model" / "README.md").read_text()


def test_another_encoder_than_in_training_is_refused(seen: Path) -> None:
    raw = list(open_data("scenes", train=36, dev=18, test=18).splits["dev"])
    with pytest.raises(StudyError, match=r"'image' was encoded by patches.* in training, and patches-11x11.* else"):
        load_run(seen).predict(raw, encoders={"image": Patches(grid=11), "text": Words()})


def test_the_encoders_of_training_are_found_unless_none_are_wanted(seen: Path) -> None:
    raw, run = list(open_data("scenes", train=36, dev=18, test=18).splits["dev"]), load_run(seen)
    found, given = run.predict(raw), run.predict(raw, encoders={"image": Patches(grid=3), "text": Words()})
    assert [answer.answer for answer in found] == [answer.answer for answer in given]
    torch.testing.assert_close(found[0].logits, given[0].logits)
    with pytest.raises(ValueError, match="encode it first"):
        run.predict(raw, encoders={})


def test_a_run_is_pushed_whole_and_nothing_else_of_its_folder(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub itself is out of reach of a test: what would be sent to it is looked at."""
    sent: dict = {}
    (copied / PLACE / "model" / "notes.txt").write_text("not for everybody")

    class Api:
        def __init__(self, token: str | None = None) -> None:
            sent["token"] = token

        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            return f"https://hub/{name}"

        def upload_folder(
            self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str
        ) -> None:
            names = [path.name for path in Path(folder_path).iterdir()]
            sent["files"] = set(filter_repo_objects(names, allow_patterns=allow_patterns))

    monkeypatch.setattr("meq.runs.run.HfApi", Api)
    assert load_run(copied / PLACE).push_to_hub("me/run", token="t") == "https://hub/me/run"
    assert sent == {"token": "t", "files": MODEL_FILES}


def test_a_run_of_the_hub_is_downloaded_and_checked(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(*, repo_id: str, filename: str, revision: str | None, token: str | None) -> str:
        asked.append((repo_id, filename, revision))
        return str(finished / PLACE / "model" / filename)

    monkeypatch.setattr("meq.models.hub.get_hf_file_metadata", lambda *_, **__: None)
    monkeypatch.setattr("meq.models.hub.hf_hub_download", download)
    run = load_run("me/run", revision="v2")
    assert ("me/run", "task.json", "v2") in asked
    assert run.labels == ("false", "true")


def test_a_task_from_a_later_version_is_refused(copied: Path) -> None:
    path = copied / PLACE / "model" / "task.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 7'))
    with pytest.raises(FormatError, match="written in format 7, this version of meq reads up to 1"):
        read_task(path)
