from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data.folders import change_line, draw, hateful_memes_folder

from meq.data import DataError, Findings, collate, open_data
from meq.data.hateful_memes import hateful_memes


def sizes(root: Path) -> dict[str, int]:
    return {name: len(split) for name, split in hateful_memes(root).splits.items()}


def test_the_second_release_has_five_splits_and_dev_is_dev_seen(tmp_path: Path) -> None:
    data = open_data("hateful-memes", hateful_memes_folder(tmp_path))
    found = {name: len(split) for name, split in data.splits.items()}
    assert found == {"train": 8, "dev": 4, "dev_unseen": 5, "test": 4, "test_unseen": 6}
    assert data.facts["files"]["dev"] == "dev_seen.jsonl"
    assert (data.metric.name, [metric.name for metric in data.also]) == ("auroc", ["accuracy"])


def test_the_first_release_has_three(tmp_path: Path) -> None:
    assert sizes(hateful_memes_folder(tmp_path, first_release=True)) == {"train": 8, "dev": 4, "test": 4}


def test_the_folder_may_be_the_one_that_holds_the_files(tmp_path: Path) -> None:
    assert sizes(hateful_memes_folder(tmp_path) / "data")["train"] == 8


def test_memes_shared_by_the_two_dev_splits_are_no_duplicates(tmp_path: Path) -> None:
    data = hateful_memes(hateful_memes_folder(tmp_path))
    shared = {each.id for each in data.splits["dev"]} & {each.id for each in data.splits["dev_unseen"]}
    assert len(shared) == 4


def test_ids_keep_their_leading_zeros_whether_number_or_text(tmp_path: Path) -> None:
    examples = hateful_memes(hateful_memes_folder(tmp_path)).splits["train"]
    assert [example.id for example in examples[:2]] == ["01234", "01235"]
    assert examples[0].facts["picture"] == "img/01234.png"


@pytest.mark.parametrize("first_release", [True, False])
def test_a_test_without_labels_is_not_called_test(tmp_path: Path, first_release: bool) -> None:
    root = hateful_memes_folder(tmp_path, first_release=first_release, labelled_test=False)
    data = hateful_memes(root)
    assert "test" not in data.splits
    name = "test_unlabelled" if first_release else "test_seen"
    assert [example.target for example in data.splits[name]] == [None] * 4
    with pytest.raises(ValueError, match="no label"):
        collate(data.splits[name][:2], {})


def test_targets_are_the_labels_and_score_the_metric(tmp_path: Path) -> None:
    data = hateful_memes(hateful_memes_folder(tmp_path))
    target = torch.stack([example.target for example in data.splits["dev"]])
    assert target.tolist() == [0, 1, 0, 1]
    assert data.metric(torch.nn.functional.one_hot(target, 2).float(), target) == 1


BAD = {
    "wrong JSON": '{"id": 1,',
    "missing key": lambda record: record.pop("label"),
    "wrong label": lambda record: record.update(label=2),
    "missing picture": lambda record: record.update(img="img/99999.png"),
    "empty text": lambda record: record.update(text=""),
    "wrong type": lambda record: record.update(id=[1]),
    "duplicate id": lambda record: record.update(id=1234),
    "path outside": lambda record: record.update(img="../data/img/01234.png"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path, kind: str) -> None:
    root = hateful_memes_folder(tmp_path)
    change_line(root / "data" / "train.jsonl", 4, BAD[kind])
    with pytest.raises(DataError, match=r"train\.jsonl, line 4: "):
        hateful_memes(root)
    findings = Findings("skip")
    assert len(hateful_memes(root, findings=findings).splits["train"]) == 7
    assert findings.counts == {kind: 1}


@pytest.mark.parametrize("label", [True, "1", 0.0, -1])
def test_only_the_numbers_0_and_1_are_labels(tmp_path: Path, label: object) -> None:
    root = hateful_memes_folder(tmp_path)
    change_line(root / "data" / "train.jsonl", 1, lambda record: record.update(label=label))
    with pytest.raises(DataError, match="must be 0"):
        hateful_memes(root)


def test_one_label_missing_among_others_in_the_test_is_reported(tmp_path: Path) -> None:
    root = hateful_memes_folder(tmp_path)
    change_line(root / "data" / "test_seen.jsonl", 2, lambda record: record.pop("label"))
    with pytest.raises(DataError, match=r"test_seen\.jsonl, line 2: the record has no 'label'"):
        hateful_memes(root)


def test_an_absolute_path_is_refused(tmp_path: Path) -> None:
    root = hateful_memes_folder(tmp_path / "root")
    outside = draw(tmp_path / "secret.png")
    change_line(root / "data" / "dev_seen.jsonl", 1, lambda record: record.update(img=str(outside)))
    with pytest.raises(DataError, match=r"dev_seen\.jsonl, line 1: .*leads outside"):
        hateful_memes(root)


def test_a_symlink_that_leaves_the_root_is_refused_when_it_is_read_and_when_it_is_opened(tmp_path: Path) -> None:
    root = hateful_memes_folder(tmp_path / "root")
    picture = root / "data" / "img" / "01234.png"
    read = hateful_memes(root).splits["train"]
    picture.unlink()
    picture.symlink_to(draw(tmp_path / "secret.png"))
    with pytest.raises(DataError, match=r"01234\.png: leads outside"):
        read[0].content["image"].open()
    with pytest.raises(DataError, match=r"\.json.*01234.* is a symlink that leads outside"):
        hateful_memes(root)


def test_names_with_odd_characters_are_read(tmp_path: Path) -> None:
    root = hateful_memes_folder(tmp_path)
    name = "img/a b@ü.png"
    draw(root / "data" / name, size=(9, 9))
    change_line(root / "data" / "train.jsonl", 1, lambda record: record.update(img=name))
    assert hateful_memes(root).splits["train"][0].content["image"].open().size == (9, 9)


def test_a_folder_without_the_set_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked for train\.jsonl, dev_seen\.jsonl"):
        hateful_memes(tmp_path)
