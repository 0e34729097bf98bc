"""A run keeps the features that it was trained on: what is done with it later encodes only what is new."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from studies.photo_table import BUILT_IN, request_for, write_table

from meq.data.content import Content, fingerprint_of
from meq.encoders import Tokens
from meq.encoders.builtin import Patches, Words
from meq.runs.explain import Explainer
from meq.runs.load import load_run
from meq.runs.own_data import encoders_of_run, kept_features
from meq.runs.showcase import ShowcaseOptions, prepare_showcase
from meq.runs.train_on import new_folder, train_on
from meq.training.config import TrainConfig
from meq.training.prepare import FEATURES

SMALL = {"dim": 8, "heads": 2, "steps": 2}
ONCE = TrainConfig(epochs=1, batch_size=12, learning_rate=1e-3)
FEW = ShowcaseOptions(examples=1, samples=1, eigenvalues=2)


class Counts(Counter[bytes]):
    """How often each content was encoded, by any encoder."""


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    for kind in (Patches, Words):
        original = kind.__call__

        def counting(self: object, contents: Sequence[Content], original: object = original) -> list[Tokens]:
            counts.update(fingerprint_of(each) for each in contents)
            return original(self, contents)  # type: ignore[operator]

        monkeypatch.setattr(kind, "__call__", counting)
    return counts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    train_on(request_for(write_table(folder)), folder / "run", encoders=BUILT_IN, shape=SMALL, config=ONCE)
    return folder


def copied(trained: Path, to: Path) -> Path:
    shutil.copytree(trained, to, dirs_exist_ok=True)
    return to / "run"


def test_from_training_to_the_report_every_content_is_encoded_once(tmp_path: Path, encoded: Counts) -> None:
    table = write_table(tmp_path)
    run = train_on(request_for(table), tmp_path / "run", encoders=BUILT_IN, shape=SMALL, config=ONCE)
    pictures, captions = 6, 3
    assert len(encoded) == pictures + captions
    run.evaluate()
    run.predict_table(table)
    found = prepare_showcase(tmp_path / "run", options=FEW)
    assert any(each.explanation is not None for each in found.examples), "examples were explained"
    explainer = Explainer(load_run(tmp_path / "run"))
    explainer([explainer.pair(tmp_path / "photos" / "0.png", "it is red")])
    assert set(encoded.values()) == {1}
    assert len(encoded) == pictures + captions


def test_without_the_features_of_training_a_report_encodes_a_content_once(
    trained: Path, tmp_path: Path, encoded: Counts
) -> None:
    run = copied(trained, tmp_path)
    shutil.rmtree(run / FEATURES)
    assert kept_features(load_run(run)) is None
    found = prepare_showcase(run, options=FEW)
    assert found.missing == ()
    assert encoded
    assert set(encoded.values()) == {1}


def test_a_picture_that_is_explained_with_two_texts_is_encoded_once(
    trained: Path, tmp_path: Path, encoded: Counts
) -> None:
    run = copied(trained, tmp_path)
    shutil.rmtree(run / FEATURES)
    explainer = Explainer(load_run(run))
    explainer.contrast(explainer.pair(tmp_path / "photos" / "0.png", "it is red"), "it is blue")
    assert sorted(encoded.values()) == [1, 1, 1]


def test_new_rows_are_encoded_and_leave_the_runs_features_as_they_were(
    trained: Path, tmp_path: Path, encoded: Counts
) -> None:
    run = copied(trained, tmp_path)
    before = {path: path.read_bytes() for path in (run / FEATURES).rglob("*") if path.is_file()}
    table = tmp_path / "photos.csv"
    table.write_text(table.read_text().replace("it is red", "it was red"))
    load_run(run).predict_table(table)
    assert len(encoded) == 1, "the pictures and the other captions are known"
    assert {path: path.read_bytes() for path in (run / FEATURES).rglob("*") if path.is_file()} == before


def test_answers_are_the_same_with_the_kept_features_as_without(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    table = tmp_path / "photos.csv"
    known = load_run(run).predict_table(table).rows()
    shutil.rmtree(run / FEATURES)
    assert load_run(run).predict_table(table).rows() == known


def test_a_run_that_was_moved_takes_its_features_along(trained: Path, tmp_path: Path, encoded: Counts) -> None:
    run = copied(trained, tmp_path / "elsewhere").rename(tmp_path / "moved")
    load_run(run).predict_table(tmp_path / "elsewhere" / "photos.csv")
    assert not encoded


def test_a_run_in_a_folder_that_cannot_be_written_is_read(trained: Path, tmp_path: Path, encoded: Counts) -> None:
    run = copied(trained, tmp_path)
    for path in [*(run / FEATURES).rglob("*"), run / FEATURES]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    load_run(run).evaluate()
    assert not encoded
    for path in [run / FEATURES, *(run / FEATURES).rglob("*")]:
        path.chmod(0o755)


def test_encoders_are_loaded_where_the_store_has_nothing_of_them(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    lazy = encoders_of_run(load_run(run))["photo"]
    assert "loaded" not in vars(lazy)
    assert lazy.loaded.name == lazy.name == "patches-6x6-v1"
    shutil.rmtree(run / FEATURES)
    (run / FEATURES).mkdir()
    assert encoders_of_run(load_run(run))["photo"].loaded.name == "patches-6x6-v1"


def test_a_folder_that_holds_features_alone_is_taken_again(tmp_path: Path) -> None:
    (tmp_path / "photos" / FEATURES).mkdir(parents=True)
    assert new_folder("photos.csv", runs=tmp_path) == tmp_path / "photos"
    (tmp_path / "photos" / "record.json").write_text("{}")
    assert new_folder("photos.csv", runs=tmp_path) == tmp_path / "photos-2"
