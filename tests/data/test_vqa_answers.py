from __future__ import annotations

import json
from pathlib import Path

import pytest
from data.folders import SHARED

from meq.data.findings import DataError
from meq.data.vqa_v2 import CONTRACTIONS, Vocabulary, compared, normalise, tidy, worth

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
