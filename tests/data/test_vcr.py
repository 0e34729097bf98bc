from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data.folders import SHARED, change_json, change_line, draw, vcr_folder

from meq.data import DataError, Findings, open_data
from meq.data.check import check
from meq.data.vcr import LABELS, NAMES, names_of, person, sentence, vcr

REAL = SHARED / "vcr_sample"


def test_a_question_and_four_answers_become_four_texts(tmp_path: Path) -> None:
    data = open_data("vcr", vcr_folder(tmp_path))
    example = data.splits["dev"][1]
    assert example.content["text"][1] == "Why does Casey hold lamp? Casey and Riley like it, option 1."
    assert len(example.content["text"]) == len(LABELS) == 4
    assert int(example.target) == 1
    assert (data.head, data.modalities["image"].kind) == ("choices", "regions")


def test_rationales_follow_the_question_and_its_right_answer(tmp_path: Path) -> None:
    example = vcr(vcr_folder(tmp_path), task="qa2r").splits["dev"][2]
    answer = "Casey and Riley like it, option 2."
    assert example.content["text"][0] == f"Why does Casey hold lamp? {answer} Riley doesn't see, reason 0."
    assert int(example.target) == 3


def test_both_tasks_have_the_same_questions_in_the_same_order(tmp_path: Path) -> None:
    root = vcr_folder(tmp_path)
    q2a, qa2r = vcr(root).splits["dev"], vcr(root, task="qa2r").splits["dev"]
    assert [example.id for example in q2a] == [example.id for example in qa2r]


def test_regions_bear_the_names_of_the_text_and_are_clipped_to_the_picture(tmp_path: Path) -> None:
    regions = vcr(vcr_folder(tmp_path)).splits["train"][0].content["image"]
    assert regions.names == ("Casey", "Riley", "lamp")
    assert regions.boxes == ((2.5, 3.0, 20.0, 38.0), (0.0, 1.0, 30.0, 40.0), (25.0, 5.0, 59.0, 30.0))
    assert regions.picture.open().size == (60, 40)


def test_the_test_without_labels_is_not_called_test(tmp_path: Path) -> None:
    root, findings = vcr_folder(tmp_path), Findings()
    assert [example.target for example in vcr(root).splits["test_unlabelled"]] == [None] * 3
    assert set(vcr(root, task="qa2r", findings=findings).splits) == {"train", "dev"}
    assert findings.absent == ["test: qa2r needs the right answers, and test.jsonl has none"]


def test_a_test_with_labels_is_the_test(tmp_path: Path) -> None:
    root = vcr_folder(tmp_path)
    for line in (1, 2, 3):
        change_line(root / "test.jsonl", line, lambda record: record.update(answer_label=1, rationale_label=2))
    assert len(vcr(root).splits["test"]) == len(vcr(root, task="qa2r").splits["test"]) == 3
    change_line(root / "test.jsonl", 2, lambda record: record.pop("answer_label"))
    with pytest.raises(DataError, match=r"test\.jsonl, line 2: the record has no 'answer_label'"):
        vcr(root)
    with pytest.raises(DataError, match=r"test\.jsonl, line 2: the record has no 'answer_label', and rationales"):
        vcr(root, task="qa2r")


def test_dev_can_be_the_first_records_of_val_as_in_the_paper(tmp_path: Path) -> None:
    data = vcr(vcr_folder(tmp_path), first=2)
    assert [example.id for example in data.splits["dev"]] == ["val-0", "val-1"]
    assert len(data.splits["train"]) == 6
    assert (data.facts["first"], data.facts["paper_first"]) == (2, 5000)


def test_wrong_options_are_errors_that_help(tmp_path: Path) -> None:
    root = vcr_folder(tmp_path)
    with pytest.raises(DataError, match="did you mean 'qa2r'"):
        vcr(root, task="qar")
    with pytest.raises(DataError, match="at least 1"):
        vcr(root, first=0)


def test_people_get_names_and_things_their_class() -> None:
    assert names_of(["lamp", "person", "lamp", "person"]) == ("lamp", "Casey", "lamp", "Riley")
    assert len(set(NAMES)) == len(NAMES)
    crowd = [person(place) for place in range(40)]
    assert len(set(crowd)) == 40
    assert crowd[len(NAMES)] == "Casey 2"


def test_sentences_read_as_written() -> None:
    tokens = [[0, 1, 2], "ca", "n't", "see", "(", "or", "hear", ")", [1], "'s", "hat", ":", "why", "?"]
    names = ("Casey", "Riley", "dog")
    assert sentence(tokens, names, "question") == "Casey, Riley and dog can't see ( or hear) Riley's hat: why?"


def objects_beyond(record: dict[str, Any]) -> None:
    record["answer_choices"][2][0] = [0, 3]


BAD = {
    "wrong JSON": "{",
    "missing key": lambda record: record.pop("answer_label"),
    "wrong label": lambda record: record.update(answer_label=4),
    "wrong choices": lambda record: record["answer_choices"].pop(),
    "wrong object": objects_beyond,
    "wrong type": lambda record: record.update(question=["Why", 0]),
    "empty text": lambda record: record.update(question=[]),
    "missing picture": lambda record: record.update(img_fn="film_1/none.jpg"),
    "missing metadata": lambda record: record.update(metadata_fn="film_9/none.json"),
    "duplicate id": lambda record: record.update(annot_id="val-0"),
    "path outside": lambda record: record.update(metadata_fn="../val.jsonl"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path: Path, kind: str) -> None:
    root = vcr_folder(tmp_path)
    change_line(root / "val.jsonl", 3, BAD[kind])
    with pytest.raises(DataError, match=r"val\.jsonl, line 3: "):
        vcr(root)
    findings = Findings("skip")
    assert len(vcr(root, findings=findings).splits["dev"]) == 3
    assert findings.counts == {kind: 1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/etc/hostname", "leads outside"),
        ("../outside.jpg", r"goes up with '\.\.'"),
        ("film_1/../../x.jpg", r"goes up with '\.\.'"),
    ],
)
def test_pictures_outside_of_the_folder_are_refused_with_their_line(tmp_path: Path, name: str, words: str) -> None:
    root = vcr_folder(tmp_path)
    change_line(root / "val.jsonl", 2, lambda record: record.update(img_fn=name))
    with pytest.raises(DataError, match=rf"val\.jsonl, line 2: .*{words}"):
        vcr(root)


def metadata_of(root: Path) -> Path:
    return root / "vcr1images" / json.loads((root / "val.jsonl").read_text().splitlines()[0])["metadata_fn"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.pop("boxes"), "'boxes' must be a list of 3"),
        (lambda content: content["boxes"].pop(), "'boxes' must be a list of 3, one per object of the record, it is 2"),
        (lambda content: content.update(width=0), "positive"),
        (lambda content: content.update(height="40"), "positive"),
        (lambda content: content["boxes"][1].__setitem__(2, float("nan")), "NaN is not JSON"),
        (lambda content: content["boxes"][1].__setitem__(2, 10**400), r"boxes\[1\] must be four finite numbers"),
        (lambda content: content["boxes"].__setitem__(0, [1, 2, 3]), r"boxes\[0\] must be four finite numbers"),
    ],
)
def test_broken_boxes_are_found_on_access_and_name_their_file(tmp_path: Path, change: Any, says: str) -> None:
    root = vcr_folder(tmp_path)
    change_json(metadata_of(root), change)
    data = vcr(root)  # reading the records opens no metadata
    with pytest.raises(DataError, match=rf"@0\.json: .*{says}"):
        data.splits["dev"][0]
    assert data.splits["dev"][1].content["image"].names


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_metadata_that_is_no_metadata_leaves_the_text_when_skipping(tmp_path: Path, content: str) -> None:
    root = vcr_folder(tmp_path)
    metadata_of(root).write_text(content)
    with pytest.raises(DataError, match=r"@0\.json"):
        vcr(root).splits["dev"][0]
    findings = Findings("skip")
    split = vcr(root, findings=findings).splits["dev"]
    assert [set(split[0].content) for _ in range(3)] == [{"text"}] * 3
    assert findings.counts == {"broken metadata": 1}  # once, however often it is asked for


def test_a_box_without_area_is_an_error_or_left_out_and_counted(tmp_path: Path) -> None:
    root = vcr_folder(tmp_path)
    change_json(metadata_of(root), lambda content: content["boxes"].__setitem__(1, [70, 5, 90, 20, 0.5]))
    with pytest.raises(DataError, match=r"boxes\[1\], of 'Riley', has no area within the picture"):
        vcr(root).splits["dev"][0]
    found = check("vcr", root)
    assert {problem.kind: problem.count for problem in found.problems} == {"empty box": 1}
    split = vcr(root, findings=Findings("skip")).splits["dev"]
    assert split[0].content["image"].names == ("Casey", "lamp")


def test_symlinks_that_leave_the_root_are_not_followed(tmp_path: Path) -> None:
    root = vcr_folder(tmp_path / "root")
    metadata = metadata_of(root)
    picture, read = metadata.with_suffix(".jpg"), vcr(root).splits["dev"]
    inside = picture.rename(picture.with_name("inside.jpg"))
    picture.symlink_to(draw(tmp_path / "outside.jpg"))
    with pytest.raises(DataError, match="leads outside"):
        read[0].content["image"].picture.open()
    with pytest.raises(DataError, match=r"val\.jsonl, line 1: .*leads outside"):
        vcr(root)
    inside.replace(picture)
    metadata.rename(tmp_path / "outside.json")
    metadata.symlink_to(tmp_path / "outside.json")
    with pytest.raises(DataError, match="leads outside"):
        read[0]
    with pytest.raises(DataError, match=r"val\.jsonl, line 1: .*leads outside"):
        vcr(root)


def test_a_folder_without_the_set_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked for train\.jsonl, val\.jsonl, test\.jsonl"):
        vcr(tmp_path)
    root = vcr_folder(tmp_path)
    (root / "vcr1images").rename(root / "images")
    with pytest.raises(DataError, match="looked for vcr1images"):
        vcr(root)


@pytest.mark.skipif(not REAL.is_dir(), reason="no shared/data/vcr_sample beside the checkout")
def test_the_real_record_is_read() -> None:
    record = json.loads((REAL / "val.jsonl").read_text())
    example = vcr(REAL).splits["dev"][0]
    assert example.id == record["annot_id"]
    assert int(example.target) == record["answer_label"]
    regions = example.content["image"]
    assert regions.names == ("Casey", "Riley", "Jessie", "car", "cellphone", "clock")
    width, height = regions.picture.open().size
    assert all(0 <= a < c <= width and 0 <= b < d <= height for a, b, c, d in regions.boxes)
    # the makers' own wording numbers people from 1
    asked = record["question_orig"].replace("1", "Casey")
    right = example.content["text"][record["answer_label"]]
    assert right == f"{asked} {record['answer_orig'].replace('1', 'Casey')}"
    reasons = vcr(REAL, task="qa2r").splits["dev"][0]
    rationale = record["rationale_orig"].replace("1", "Casey")
    assert reasons.content["text"][int(reasons.target)] == f"{right} {rationale}"
