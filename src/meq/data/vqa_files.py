"""The files of VQA v2: questions and annotations, joined.

Both are single documents of hundreds of megabytes, so each object is made small while it is read. They have no lines to
speak of: an error names the place in the list instead.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from meq.data.findings import DataError, Findings
from meq.data.jsonl import BadRowError, described, read_json, text_of, whole_number
from meq.data.paths import Tree, first_of

FOLDERS = ("", "questions/", "annotations/", "Questions/", "Annotations/", "data/")
PEOPLE = 10


class Annotation(NamedTuple):
    """What people answered. Everything but the answers and the id may be missing in the file."""

    question: int
    answers: tuple[str, ...]
    commonest: str
    kinds: Mapping[str, str]


class Question(NamedTuple):
    id: int
    image: int
    text: str
    picture: str
    pictures: Tree
    answers: tuple[str, ...]
    """Those of ten people; none in a split without labels."""
    kinds: Mapping[str, str]
    """The type of the question and of its answer, where the annotations give them."""


class Documents:
    """The documents of a data set's folder, each read once."""

    def __init__(self, root: Path, findings: Findings) -> None:
        self.root, self.findings = root, findings
        self._annotations: dict[str, dict[int, Annotation]] = {}

    def questions_file(self, subset: str) -> Path | None:
        return first_of(self.root, [f"{folder}v2_OpenEnded_mscoco_{subset}_questions.json" for folder in FOLDERS])

    def annotations_file(self, subset: str) -> Path | None:
        return first_of(self.root, [f"{folder}v2_mscoco_{subset}_annotations.json" for folder in FOLDERS])

    def questions(self, subset: str, *, pictures: Tree, labelled: bool = True) -> list[Question]:
        """The questions of a subset with their answers; what lacks question, annotation or picture is reported."""
        file = self.questions_file(subset)
        if file is None:
            raise DataError(f"{self.root}: no questions of {subset}")
        annotations = self.annotations(subset) if labelled else None
        questions: dict[int, Question] = {}
        asked = set()
        for place, record in enumerate(_list(file, "questions")):
            try:
                asked.add(_number(record, "question_id"))
                question = _question(record, subset, pictures, annotations)
                if question.id in questions:
                    raise BadRowError("duplicate id", f"the question id {question.id} was used before")
                questions[question.id] = question
            except BadRowError as bad:
                self.findings.report(bad.kind, f"questions[{place}]: {bad}", file=file)
        for number in annotations.keys() - asked if annotations else ():
            message = f"the question {number} is annotated but not asked in {file.name}"
            self.findings.report("missing question", message, file=self.annotations_file(subset) or file)
        return list(questions.values())

    def annotations(self, subset: str) -> dict[int, Annotation]:
        """The annotations of a subset by the question's id."""
        if subset not in self._annotations:
            file = self.annotations_file(subset)
            if file is None:
                name = f"v2_mscoco_{subset}_annotations.json"
                raise DataError(f"{self.root}: no {name}, which holds the answers to the questions of {subset}")
            self._annotations[subset] = self._read_annotations(file)
        return self._annotations[subset]

    def _read_annotations(self, file: Path) -> dict[int, Annotation]:
        found: dict[int, Annotation] = {}
        for place, record in enumerate(_list(file, "annotations")):
            try:
                annotation = _annotation(record)
                if annotation.question in found:
                    raise BadRowError("duplicate id", f"the question {annotation.question} has two annotations")
                found[annotation.question] = annotation
            except BadRowError as bad:
                self.findings.report(bad.kind, f"annotations[{place}]: {bad}", file=file)
        return found


def _question(record: Any, subset: str, pictures: Tree, annotations: Mapping[int, Annotation] | None) -> Question:
    number, image = _number(record, "question_id"), _number(record, "image_id")
    if annotations is not None and number not in annotations:
        raise BadRowError("missing annotation", f"the question {number} has no annotation")
    _need(record, "question")
    annotation = None if annotations is None else annotations[number]
    return Question(
        id=number,
        image=image,
        text=text_of(record, "question"),
        picture=pictures.check_picture(f"COCO_{subset}_{image:012d}.jpg"),
        pictures=pictures,
        answers=() if annotation is None else annotation.answers,
        kinds={} if annotation is None else annotation.kinds,
    )


def _annotation(record: Any) -> Annotation:
    number = _number(record, "question_id")
    answers = _need(record, "answers")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise BadRowError("wrong type", f"question {number}: 'answers' must be a list of objects with an 'answer'")
    if len(answers) != PEOPLE:
        raise BadRowError("wrong answers", f"question {number} has {len(answers)} answers; VQA v2 has {PEOPLE} of each")
    commonest = record.get("multiple_choice_answer")
    return Annotation(
        question=number,
        answers=tuple(answers),
        commonest=commonest if isinstance(commonest, str) else Counter(answers).most_common(1)[0][0],
        kinds={key: value for key in ("question_type", "answer_type") if isinstance(value := record.get(key), str)},
    )


def _list(file: Path, key: str) -> list[Any]:
    """The list under a key of the document."""
    document = read_json(file, hook=_smaller)
    content = document.get(key) if isinstance(document, dict) else None
    if not isinstance(content, list):
        raise DataError(f"{file}: must be an object with a list {key!r}; is it the file that its name says?")
    return content


def _smaller(found: dict[str, Any]) -> Any:
    """One person's answer becomes a shared text: an object for each of millions would not fit."""
    answer = found.get("answer")
    return sys.intern(answer) if isinstance(answer, str) else found


def _need(record: Any, key: str) -> Any:
    if not isinstance(record, dict):
        raise BadRowError("wrong JSON", f"must be an object, it is {described(record)}")
    if key not in record:
        raise BadRowError("missing key", f"the record has no {key!r}")
    return record[key]


def _number(record: Any, key: str) -> int:
    value = _need(record, key)
    if not whole_number(value) or value < 0:
        raise BadRowError("wrong type", f"{key!r} must be a whole number, it is {described(value)}")
    return int(value)
