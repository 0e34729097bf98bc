"""One suite over every data set: what the contract promises holds for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data import folders, more_folders
from torch import Tensor

from meq.data import DATA_SETS, DataError, DataSet, Example, Findings, collate, open_data
from meq.data.check import check
from meq.data.content import Picture, Regions
from meq.models.heads import HEADS

OPTIONS: dict[str, dict[str, Any]] = {
    "statements": {"train": 8, "dev": 4, "test": 4},
    "scenes": {"train": 18, "dev": 18, "test": 18},
    "duels": {"train": 18, "dev": 18, "test": 18, "deep_test": 18},
    "relay": {"train": 18, "dev": 18, "test": 18, "deep_test": 18},
    "cod10k": {"dev": 0.3},
    "easy-vqa": {"dev": 0.002},
}
"""Sizes that fit a test."""
SOME = 30
"""How many examples of each split are looked at."""


def builder(name: str) -> Callable[..., Path] | None:
    function = f"{name.replace('-', '_')}_folder"
    return getattr(folders, function, None) or getattr(more_folders, function, None)


@pytest.fixture(scope="module", params=DATA_SETS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path | None]:
    """The set's name and a folder that holds it."""
    name = request.param
    if DATA_SETS[name].embedded:
        return name, None
    make = builder(name)
    if make is None:
        pytest.skip(f"no folder is made up for {name}: its form is the user's own")
    folder = tmp_path_factory.mktemp(name)
    return name, make(folder) or folder


@pytest.fixture(scope="module")
def reading(place: tuple[str, Path | None]) -> tuple[DataSet, Findings]:
    findings = Findings("skip")
    return opened(place, findings=findings), findings


@pytest.fixture
def data(reading: tuple[DataSet, Findings]) -> DataSet:
    return reading[0]


def opened(place: tuple[str, Path | None], **options: Any) -> DataSet:
    return open_data(place[0], place[1], **OPTIONS.get(place[0], {}), **options)


def some(data: DataSet) -> list[tuple[str, Example]]:
    return [(name, split[row]) for name, split in data.splits.items() for row in range(min(SOME, len(split)))]


def test_a_good_folder_brings_up_nothing(reading: tuple[DataSet, Findings]) -> None:
    assert not reading[1].counts


def test_training_finds_the_splits_it_reads(data: DataSet) -> None:
    assert {"train", "dev"} <= set(data.splits)
    assert all(len(split) > 0 for split in data.splits.values())


def test_ids_are_unique_within_a_split(data: DataSet) -> None:
    for name in data.splits:
        ids = [example.id for split, example in some(data) if split == name]
        assert len(ids) == len(set(ids))


def test_content_is_of_the_kind_that_its_modality_says(data: DataSet) -> None:
    for _, example in some(data):
        assert set(example.content) <= set(data.modalities)
        for name, content in example.content.items():
            kind = data.modalities[name].kind
            for part in content if isinstance(content, tuple) else (content,):
                expected = {"features": Tensor, "image": Picture, "regions": Regions, "text": str}[kind]
                assert isinstance(part, expected), (example.id, name)
                if isinstance(part, Tensor):
                    assert part.shape[-1] == data.modalities[name].width
                    assert bool(torch.isfinite(part).all())
                if isinstance(part, str):
                    assert part.strip()


def test_pictures_open(data: DataSet) -> None:
    for _, example in some(data)[:10]:
        for content in example.content.values():
            picture = content.picture if isinstance(content, Regions) else content
            if isinstance(picture, Picture):
                assert picture.open().mode == "RGB"


def test_targets_are_what_the_head_answers(data: DataSet) -> None:
    assert data.head in HEADS
    for split, example in some(data):
        target = example.target
        if target is None:
            assert split not in ("train", "dev")
        elif data.head == "labels":
            assert target.shape == (len(data.labels),)
            assert 0 <= float(target.min()) <= float(target.max()) <= 1
        elif data.head == "score":
            assert bool(torch.isfinite(target))
        elif data.head == "tokens":
            assert set(data.answering) <= set(data.modalities)
            assert (target.dtype, target.ndim) == (torch.long, 1)
            assert -1 <= int(target.min()) <= int(target.max()) < len(data.labels)
        else:
            assert target.dtype == torch.long
            assert 0 <= int(target) < len(data.labels)


def test_the_metric_scores_logits(data: DataSet) -> None:
    targets = [example.target for split, example in some(data) if split == "dev" and example.target is not None]
    target = torch.stack(targets)
    answers = target.shape[1:] if data.head == "tokens" else ()
    logits = torch.randn(len(target), *answers, 1 if data.head == "score" else len(data.labels))
    for metric in (data.metric, *data.also):
        assert isinstance(metric(logits, target), float), metric.name


def test_facts_can_be_written_into_a_record(data: DataSet) -> None:
    assert json.dumps(data.facts)


def test_reading_again_gives_the_same(place: tuple[str, Path | None], data: DataSet) -> None:
    again = opened(place)
    assert {name: len(split) for name, split in again.splits.items()} == {
        name: len(split) for name, split in data.splits.items()
    }
    assert head_of(again).fingerprint() == head_of(data).fingerprint()


def head_of(data: DataSet) -> DataSet:
    """The first examples of each split."""
    return DataSet(
        name=data.name,
        splits={name: split[:SOME] for name, split in data.splits.items()},
        modalities=data.modalities,
        labels=data.labels,
        head=data.head,
        metric=data.metric,
    )


def test_slices_are_the_same_examples(data: DataSet) -> None:
    for split in data.splits.values():
        assert [example.id for example in split[:3]] == [split[row].id for row in range(min(3, len(split)))]
        assert split[-1].id == split[len(split) - 1].id


def test_features_make_a_batch_and_the_rest_must_be_encoded(data: DataSet) -> None:
    if all(modality.width is not None for modality in data.modalities.values()):
        batch = collate(data.splits["train"][:4], data.widths)
        assert len(batch) == min(4, len(data.splits["train"]))
    else:
        with pytest.raises(ValueError, match="must be encoded"):
            _ = data.widths


def test_an_unknown_option_is_an_error_that_names_the_known_ones(place: tuple[str, Path | None]) -> None:
    with pytest.raises(DataError, match=r"has no option 'sead'.*Known: "):
        open_data(place[0], place[1], sead=1)


def test_the_root_is_asked_for_where_it_is_needed(place: tuple[str, Path | None], tmp_path: Path) -> None:
    wrong = tmp_path if place[1] is None else None
    with pytest.raises(DataError, match="has no folder" if place[1] is None else "give its path"):
        open_data(place[0], wrong)


@pytest.mark.parametrize("name", [name for name, entry in DATA_SETS.items() if not entry.embedded and builder(name)])
def test_a_folder_without_the_set_is_named_in_the_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        open_data(name, tmp_path)


def test_check_finds_it_ready(place: tuple[str, Path | None]) -> None:
    decode = place[0] != "easy-vqa"  # five thousand pictures
    found = check(place[0], place[1], decode=decode, **OPTIONS.get(place[0], {}))
    assert found.ok, str(found)
    assert str(found).splitlines()[-1].startswith("Ready to ")
