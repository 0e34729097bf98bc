from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data.folders import SHARED, change_json, draw, vqa_v2_folder

from meq.data import DataError, DataSet, Findings, open_data
from meq.data.vqa_v2 import CONTRACTIONS, Vocabulary, compared, normalise, tidy, vqa_v2, worth

VISION = SHARED / "format_samples" / "fixtures_allennlp" / "vision"
REAL_ANSWERS = SHARED / "vqa_v2_meta" / "ans2label_3129_uniter.json"
QUESTIONS, ANNOTATIONS = "v2_OpenEnded_mscoco_val2014_questions.json", "v2_mscoco_val2014_annotations.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: a test that changes something makes its own."""
    return vqa_v2_folder(tmp_path_factory.mktemp("vqa"))


def sizes(data: DataSet) -> dict[str, int]:
    return {name: len(split) for name, split in data.splits.items()}


def pictures(data: DataSet, split: str) -> set[str]:
    return {example.facts["picture"] for example in data.splits[split]}


def ids(data: DataSet, split: str) -> set[str]:
    return {example.id for example in data.splits[split]}


def test_the_papers_split_holds_out_a_tenth_of_the_validation_questions(folder: Path) -> None:
    data = open_data("vqa-v2", folder)
    assert sizes(data) == {"train": 54, "dev": 6, "test2015": 60}
    assert pictures(data, "dev") & pictures(data, "train")  # it shares pictures, which is why there is another
    assert data.facts["dev_questions_on_training_pictures"] == 6
    assert not ids(data, "dev") & ids(data, "train")
    assert all("val2014" in name for name in pictures(data, "train") | pictures(data, "dev"))


def test_the_split_depends_on_the_seed_and_on_nothing_else(tmp_path: Path, folder: Path) -> None:
    assert ids(vqa_v2(folder), "dev") == ids(vqa_v2(folder), "dev") != ids(vqa_v2(folder, seed=1), "dev")
    other = vqa_v2_folder(tmp_path)
    change_json(other / QUESTIONS, lambda document: document["questions"].reverse())
    assert ids(vqa_v2(other), "dev") == ids(vqa_v2(folder), "dev")


def test_the_image_disjoint_split_shares_no_picture(folder: Path) -> None:
    data = vqa_v2(folder, split="image-disjoint")
    assert not pictures(data, "dev") & pictures(data, "train")
    assert data.facts["dev_questions_on_training_pictures"] == 0
    assert sizes(data) == {"train": 50, "dev": 10, "test2015": 60}  # pictures have five questions each


def test_the_official_split_trains_on_train2014(folder: Path) -> None:
    data = vqa_v2(folder, split="official")
    assert sizes(data) == {"train": 60, "dev": 60, "test2015": 60}
    assert all("train2014" in name for name in pictures(data, "train"))


def test_targets_are_what_each_answer_is_worth(folder: Path) -> None:
    data = vqa_v2(folder, split="official")
    assert sorted(data.labels) == ["2", "cup", "yes"]
    worth = {example.facts["answer_type"]: example for example in data.splits["dev"][:3]}
    assert worth["yes/no"].target.tolist() == [float(label == "yes") for label in data.labels]
    assert worth["number"].target.tolist() == [float(label == "2") for label in data.labels]
    assert worth["other"].target[data.labels.index("cup")] == 1
    assert (data.head, data.metric.name) == ("labels", "soft accuracy")


def test_a_perfect_model_loses_the_questions_outside_of_the_vocabulary_unless_dropped(folder: Path) -> None:
    wrong, drop = vqa_v2(folder, split="official"), vqa_v2(folder, split="official", unanswerable="drop")
    assert wrong.facts["questions_without_an_answer"] == {"train": 5, "dev": 5}
    assert sizes(drop) == {"train": 55, "dev": 55, "test2015": 60}
    for data, score in ((wrong, 55 / 60), (drop, 1)):
        target = torch.stack([example.target for example in data.splits["dev"]])
        assert data.metric(target, target) == pytest.approx(score)


def test_test2015_has_questions_without_targets(folder: Path) -> None:
    example = vqa_v2(folder).splits["test2015"][0]
    assert example.target is None
    assert example.content["image"].open().size == (24, 16)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    findings = Findings()
    data = vqa_v2(vqa_v2_folder(tmp_path, subsets=("val2014",)), findings=findings)
    assert data.facts["answers"]["from"] == {"subsets": ["val2014"], "at_least": 9}
    assert any("counted on val2014 alone" in each for each in findings.absent)
    assert "test2015: no questions" in findings.absent


def test_a_given_list_of_answers_is_used(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('{"mug": 0, "3": 1}')
    data = vqa_v2(folder, split="official", answers=file)
    assert data.labels == ("mug", "3")
    target = {example.facts["answer_type"]: example.target for example in data.splits["dev"][:3]}
    assert target["number"].tolist() == pytest.approx([0, 0.6])
    assert target["other"].tolist() == pytest.approx([0.6, 0])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "oficial"}, "did you mean 'official'"),
        ({"unanswerable": "dropped"}, "did you mean 'drop'"),
        ({"at_least": 999}, "give a list with the option `answers`, or a lower `at_least`"),
    ],
)
def test_wrong_options_are_errors_that_help(folder: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        vqa_v2(folder, **options)


def test_folders_that_lack_something_say_what(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train2014 or val2014, which are not there"):
        vqa_v2(tmp_path)
    root = vqa_v2_folder(tmp_path, subsets=("train2014",))
    with pytest.raises(DataError, match="use split='official'"):
        vqa_v2(root)
    (root / "train2014").rename(root / "elsewhere")
    with pytest.raises(DataError, match="the pictures of train2014 not found; looked for train2014, images/train2014"):
        vqa_v2(root, split="official")


Change = Callable[[dict[str, Any]], Any]
BAD_QUESTIONS: dict[str, Change] = {
    "missing key": lambda record: record.pop("question"),
    "wrong type": lambda record: record.update(image_id="2000"),
    "empty text": lambda record: record.update(question=" "),
    "missing picture": lambda record: record.update(image_id=31337),
    "duplicate id": lambda record: record.update(question_id=2000000),
    "missing annotation": lambda record: record.update(question_id=5),
}
BAD_ANNOTATIONS: dict[str, Change] = {
    "missing key": lambda record: record.pop("answers"),
    "wrong answers": lambda record: record["answers"].pop(),
    "wrong type": lambda record: record["answers"][0].pop("answer"),
    "duplicate id": lambda record: record.update(question_id=2000000),
}


@pytest.mark.parametrize("kind", BAD_QUESTIONS)
def test_a_bad_question_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    root = vqa_v2_folder(tmp_path)
    change_json(root / QUESTIONS, lambda document: BAD_QUESTIONS[kind](document["questions"][7]))
    with pytest.raises(DataError, match=r"val2014_questions\.json: questions\[7\]: "):
        vqa_v2(root)
    findings = Findings("skip")
    assert len(vqa_v2(root, split="official", findings=findings).splits["dev"]) == 59
    assert findings.counts[kind] == 1


@pytest.mark.parametrize("kind", BAD_ANNOTATIONS)
def test_a_bad_annotation_is_named_or_skipped_with_its_question(tmp_path: Path, kind: str) -> None:
    root = vqa_v2_folder(tmp_path)
    change_json(root / ANNOTATIONS, lambda document: BAD_ANNOTATIONS[kind](document["annotations"][7]))
    with pytest.raises(DataError, match=r"val2014_annotations\.json: annotations\[7\]: "):
        vqa_v2(root)
    findings = Findings("skip")
    assert len(vqa_v2(root, split="official", findings=findings).splits["dev"]) == 59
    assert findings.counts == {kind: 1, "missing annotation": 1}


def test_an_annotation_of_no_question_is_reported(tmp_path: Path) -> None:
    root = vqa_v2_folder(tmp_path)
    change_json(root / QUESTIONS, lambda document: document["questions"].pop(3))
    with pytest.raises(DataError, match="the question 2000003 is annotated but not asked"):
        vqa_v2(root)


@pytest.mark.parametrize(
    ("content", "says"), [("{", "not JSON"), ("[]", "with a list 'questions'"), ("{}", "with a list 'questions'")]
)
def test_a_document_that_is_not_one_is_named(tmp_path: Path, content: str, says: str) -> None:
    root = vqa_v2_folder(tmp_path)
    (root / QUESTIONS).write_text(content)
    with pytest.raises(DataError, match=says):
        vqa_v2(root)


def test_optional_keys_of_annotations_may_be_missing(tmp_path: Path, folder: Path) -> None:
    root = vqa_v2_folder(tmp_path)

    def bare(document: dict[str, Any]) -> None:
        for record in document["annotations"]:
            for key in ("multiple_choice_answer", "question_type", "answer_type", "image_id"):
                del record[key]

    for subset in ("train2014", "val2014"):
        change_json(root / f"v2_mscoco_{subset}_annotations.json", bare)
    data, whole = vqa_v2(root), vqa_v2(folder)
    assert data.labels == whole.labels
    assert set(data.splits["dev"][0].facts) == {"picture", "answers"}


def test_a_symlink_that_leaves_the_root_is_refused_when_it_is_read_and_when_it_is_opened(tmp_path: Path) -> None:
    root = vqa_v2_folder(tmp_path / "root")
    picture = root / "val2014" / "COCO_val2014_000000002000.jpg"
    read = vqa_v2(root, split="official").splits["dev"]
    picture.unlink()
    picture.symlink_to(draw(tmp_path / "elsewhere.jpg"))
    with pytest.raises(DataError, match="leads outside"):
        read[0].content["image"].open()
    with pytest.raises(DataError, match=r"\.json.*000000002000.* is a symlink that leads outside"):
        vqa_v2(root, split="official")


@pytest.mark.skipif(
    not (VISION / "vqav2").is_dir() or not REAL_ANSWERS.exists(), reason="no shared/data samples of VQA"
)
def test_real_questions_with_the_real_answers(tmp_path: Path) -> None:
    shutil.copytree(VISION / "images" / "vqav2", tmp_path / "train2014")
    shutil.copy(VISION / "vqav2" / "questions.json", tmp_path / "v2_OpenEnded_mscoco_train2014_questions.json")
    shutil.copy(VISION / "vqav2" / "annotations.json", tmp_path / "v2_mscoco_train2014_annotations.json")
    data = vqa_v2(tmp_path, split="official", answers=REAL_ANSWERS)
    assert len(data.labels) == 3129
    first = data.splits["train"][0]
    assert (first.id, len(first.target), first.target.dtype) == ("458752000", 3129, torch.float32)
    given = json.loads((VISION / "vqav2" / "annotations.json").read_text())["annotations"][0]["answers"]
    assert data.labels[int(first.target.argmax())] == "net"
    people = sum(answer["answer"] == "net" for answer in given)
    assert first.target.max() == pytest.approx(min(1, 0.3 * people))
    assert first.content["image"].open().size[0] > 100


# -- answers -----------------------------------------------------------------------------------------------------------


REAL = SHARED / "vqa_v2_meta" / "ans2label_3129_uniter.json"
needs_real = pytest.mark.skipif(not REAL.exists(), reason="no shared/data/vqa_v2_meta beside the checkout")


@pytest.mark.parametrize(
    ("answer", "normalised"),
    [
        ("The Cup.", "cup"),
        ("two  dogs\n", "2 dogs"),
        ("None", "0"),
        ("ten", "10"),
        ("eleven", "eleven"),
        ("dont know", "don't know"),
        ("couldnt've", "couldn't've"),
        ("somebody'd", "somebodyd"),
        ("don't", "don't"),
        ("black-and-white", "black and white"),
        ("black - white", "black white"),
        ("red/blue", "red blue"),
        ("red / blue", "red blue"),
        ("1,000", "1000"),
        ("1,000-2,000", "10002000"),
        ("2.5", "2.5"),
        ("2. 5", "2 5"),
        ("p.m.", "pm"),
        ("2:30", "2:30"),
        ("at&t", "at&t"),
        ("what?!", "what"),
        ("a", ""),
        ("an apple, the pear", "apple pear"),
        ("U.S.A", "usa"),
    ],
)
def test_answers_are_normalised_by_the_official_rules(answer: str, normalised: str) -> None:
    assert normalise(answer) == normalised


def test_contractions_get_back_the_one_apostrophe_they_lack() -> None:
    assert CONTRACTIONS["yall'd've"] == CONTRACTIONS["y'alld've"] == CONTRACTIONS["y'all'dve"] == "y'all'd've"
    assert CONTRACTIONS["ow's'at"] == "'ow's'at"
    assert "shed" not in CONTRACTIONS
    assert "well" not in CONTRACTIONS


def left_one_out(matches: int) -> float:
    """The definition: each of ten people in turn is left out."""
    people = [True] * matches + [False] * (10 - matches)
    return sum(min(1, sum(people[:i] + people[i + 1 :]) / 3) for i in range(10)) / 10


def test_an_answer_is_worth_the_mean_over_nine_of_ten_people() -> None:
    assert [round(worth(matches), 9) for matches in range(6)] == [0, 0.3, 0.6, 0.9, 1, 1]
    assert all(worth(matches) == pytest.approx(left_one_out(matches)) for matches in range(11))


def soft_accuracy(answer: str, answers: list[str]) -> float:
    """What one answer is worth, given the answers of people."""
    given, differ = compared(answers)
    return worth(given.count(normalise(answer) if differ else tidy(answer)), len(given))


def test_answers_are_normalised_only_where_people_differ() -> None:
    assert soft_accuracy("0", ["none"] * 10) == 0
    assert soft_accuracy("none", ["none"] * 10) == 1
    assert soft_accuracy("0", ["none"] * 9 + ["two"]) == 1
    assert soft_accuracy("2", ["none"] * 9 + ["two"]) == pytest.approx(0.3)


def test_a_vocabulary_scores_as_soft_accuracy_does() -> None:
    vocabulary = Vocabulary(["0", "none", "2", "cup", "mug"])
    for answers in (["none"] * 10, ["the cup"] * 6 + ["mug"] * 3 + ["none"], ["two"] * 2 + ["jar"] * 8):
        scores = vocabulary.scores(answers)
        for index, answer in enumerate(vocabulary.answers):
            assert scores.get(index, 0) == pytest.approx(soft_accuracy(answer, answers)), (answer, answers)


def test_a_vocabulary_keeps_what_is_frequent_the_most_frequent_first() -> None:
    commonest = ["yes"] * 4 + ["The yes"] + ["two"] * 2 + ["2"] + ["cup"] * 3 + ["rare"] * 2
    assert Vocabulary.from_counts(commonest, at_least=3).answers == ("yes", "2", "cup")


def test_a_vocabulary_is_read_from_a_list_or_from_indices(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('{"yes": 1, "no": 0}')
    assert Vocabulary.from_file(file).answers == ("no", "yes")
    file.write_text('["no", "yes"]')
    assert Vocabulary.from_file(file).answers == ("no", "yes")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"yes": 1, "no": 1}', "0 to 1, each once"),
        ('{"yes": 1, "no": 2}', "0 to 1, each once"),
        ("[]", "must hold a list of answers"),
        ("[1]", "must hold a list of answers"),
        ("7", "must hold a list of answers"),
        ('["yes", "yes"]', "'yes' is in the vocabulary twice"),
        ("{", "not JSON"),
    ],
)
def test_a_wrong_vocabulary_file_is_refused(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "answers.json"
    file.write_text(content)
    with pytest.raises(DataError, match=says):
        Vocabulary.from_file(file)


@needs_real
def test_every_answer_of_the_real_vocabulary_is_normal_already() -> None:
    vocabulary = Vocabulary.from_file(REAL)
    assert len(vocabulary) == 3129
    assert [answer for answer in vocabulary.answers if normalise(answer) != answer] == []
    indices = json.loads(REAL.read_text())
    assert all(vocabulary.answers[indices[answer]] == answer for answer in ("yes", "2:30", "black and white"))
