"""VQA v2: a question about a picture, answered by ten people; a model chooses one of some thousand answers.

Three ways of splitting, since the paper trains on nine tenths of the official validation questions and scores the rest:

- `paper`: val2014, one question in ten held out. Almost every held-out question has a picture seen in training.
- `image-disjoint`: val2014, a tenth of the questions held out, no picture on both sides.
- `official`: train2014 is `train`, val2014 is `dev`.

Questions and annotations are single documents of hundreds of megabytes, so each object is made small while it is read.
They have no lines to speak of: an error names the place in the list instead.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meq.data.content import Tree, first_of, need_one_of
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows, Split, filled, plain_example
from meq.data.files import BadRowError, described, read_json, text_of, whole_number
from meq.data.findings import DataError, Findings, check_choice
from meq.data.metrics import SOFT_ACCURACY
from meq.options import checked_options

SPLITS = ("paper", "image-disjoint", "official")
UNANSWERABLE = ("wrong", "drop")
FOLDERS = ("", "questions/", "annotations/", "Questions/", "Annotations/", "data/")
DOCUMENTS = {"questions": "v2_OpenEnded_mscoco_{}_questions.json", "annotations": "v2_mscoco_{}_annotations.json"}
PICTURES = ("{}", "images/{}", "Images/{}", "Images/mscoco/{}", "coco/{}", "coco/images/{}")
PEOPLE = 10
HELD_OUT = 10
"""One in so many questions of val2014 is held out."""

Record = TypeVar("Record")


@checked_options
def vqa_v2(
    root: Path | str,
    *,
    split: str = "paper",
    unanswerable: str = "wrong",
    answers: Path | str | None = None,
    at_least: int = 9,
    seed: int = 0,
    findings: Findings | None = None,
) -> DataSet:
    """Read the official questions, annotations and pictures.

    The answers a model can give are the normalised commonest answers of at least `at_least` questions over train and
    val, or those in the JSON file `answers`. A question that none of them scores on counts as wrong, or is dropped.
    """
    check_choice("vqa-v2: split", split, SPLITS)
    check_choice("vqa-v2: unanswerable", unanswerable, UNANSWERABLE)
    root, findings = Path(root), Findings() if findings is None else findings
    documents = Documents(root, findings)
    vocabulary, source = _vocabulary(documents, answers, at_least)
    make = functools.partial(_example, vocabulary)
    questions = _labelled(documents, split, seed)
    answerable = {name: [q for q in rows if vocabulary.scores(q.answers)] for name, rows in questions.items()}
    without = {name: len(rows) - len(answerable[name]) for name, rows in questions.items()}
    if unanswerable == "drop":
        questions = answerable
    splits: dict[str, Split] = {name: Rows(rows, make) for name, rows in questions.items()}
    test = "test2015"  # its answers are not public
    if documents.file("questions", test) is None:
        findings.absent.append(f"{test}: no questions")
    elif first_of(root, [pattern.format(test) for pattern in PICTURES]) is None:
        findings.absent.append(f"{test}: no pictures")
    else:
        splits[test] = Rows(documents.questions(test, labelled=False), make)
    seen = {question.picture for question in questions.get("train", ())}
    shared = sum(question.picture in seen for question in questions.get("dev", ()))
    return DataSet(
        name="vqa-v2",
        splits=filled(splits, findings, root=root),
        modalities={"image": IMAGE, "text": TEXT},
        labels=vocabulary.answers,
        head="labels",
        metric=SOFT_ACCURACY,
        facts={
            "split": split,
            "seed": seed,
            "unanswerable": unanswerable,
            "questions_without_an_answer": without,
            "dev_questions_on_training_pictures": shared,
            "answers": {"count": len(vocabulary), "from": source},
        },
    )


def _vocabulary(documents: Documents, answers: Path | str | None, at_least: int) -> tuple[Vocabulary, dict[str, Any]]:
    """The answers a model can give, and where they come from."""
    if answers is not None:
        return Vocabulary.from_file(Path(answers)), {"file": Path(answers).name}
    subsets = [subset for subset in ("train2014", "val2014") if documents.file("annotations", subset) is not None]
    if len(subsets) == 1:
        note = f"the answers are counted on {subsets[0]} alone; the usual list counts train2014 and val2014"
        documents.findings.absent.append(note)
    commonest = (each.commonest for subset in subsets for each in documents.annotations(subset).values())
    vocabulary = Vocabulary.from_counts(commonest, at_least=at_least)
    if not len(vocabulary):
        raise DataError(
            f"{documents.root}: no answer is the commonest one of {at_least} questions in the annotations of "
            f"{' and '.join(subsets) or 'train2014 or val2014, which are not there'}; "
            "give a list with the option `answers`, or a lower `at_least`"
        )
    return vocabulary, {"subsets": subsets, "at_least": at_least}


def _labelled(documents: Documents, split: str, seed: int) -> dict[str, list[Question]]:
    if split == "official":
        found = {}
        for name, subset in (("train", "train2014"), ("dev", "val2014")):
            if documents.file("questions", subset) is None:
                documents.findings.absent.append(f"{name}: no {DOCUMENTS['questions'].format(subset)}")
            else:
                found[name] = documents.questions(subset)
        if not found:
            raise DataError(f"{documents.root}: no {DOCUMENTS['questions'].format('{train2014,val2014}')}")
        return found
    if documents.file("questions", "val2014") is None:
        raise DataError(
            f"{documents.root}: no {DOCUMENTS['questions'].format('val2014')}, which the split {split!r} divides; "
            "with train2014 alone use split='official'"
        )
    questions = documents.questions("val2014")
    held_out = _held_out(questions, seed, by_picture=split == "image-disjoint")
    return {
        "train": [question for question in questions if question.id not in held_out],
        "dev": [question for question in questions if question.id in held_out],
    }


def _held_out(questions: list[Question], seed: int, *, by_picture: bool) -> set[int]:
    """The ids of one question in ten, in an order that depends on the seed and the ids alone.

    By picture, whole pictures are held out until a tenth of the questions is reached.
    """
    groups: dict[int, list[int]] = {}
    for question in questions:
        groups.setdefault(question.image if by_picture else question.id, []).append(question.id)
    wanted = len(questions) // HELD_OUT
    held_out: set[int] = set()
    for group in sorted(groups, key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest()):
        if len(held_out) >= wanted:
            break
        held_out.update(groups[group])
    return held_out


def _example(vocabulary: Vocabulary, question: Question) -> Example:
    target = None
    if question.answers:
        target = np.zeros(len(vocabulary), dtype=np.float32)
        for index, score in vocabulary.scores(question.answers).items():
            target[index] = score
    facts = {"picture": question.picture, "answers": question.answers, **question.kinds}
    return plain_example(
        id=str(question.id),
        content={"image": question.pictures.picture(question.picture), "text": question.text},
        target=target,
        facts={key: value for key, value in facts.items() if value},
    )


# -- questions and annotations -----------------------------------------------------------------------------------------


class Annotation(NamedTuple):
    """What people answered. Everything but the answers may be missing in the file."""

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

    def file(self, kind: str, subset: str) -> Path | None:
        """Where the questions, or the annotations, of a subset are."""
        return first_of(self.root, [f"{folder}{DOCUMENTS[kind].format(subset)}" for folder in FOLDERS])

    def questions(self, subset: str, *, labelled: bool = True) -> list[Question]:
        """The questions of a subset with their answers; what lacks question, annotation or picture is reported."""
        file, where = self.file("questions", subset), [pattern.format(subset) for pattern in PICTURES]
        if file is None:
            raise DataError(f"{self.root}: no questions of {subset}")
        pictures = Tree(need_one_of(self.root, where, what=f"the pictures of {subset}"), self.root)
        annotations = self.annotations(subset) if labelled else {}
        asked: set[int] = set()

        def parse(record: Any) -> tuple[int, Question]:
            number = _number(record, "question_id")
            asked.add(number)
            image = _number(record, "image_id")
            if labelled and number not in annotations:
                raise BadRowError("missing annotation", f"the question {number} has no annotation")
            _need(record, "question")
            annotation = annotations.get(number)
            return number, Question(
                id=number,
                image=image,
                text=text_of(record, "question"),
                picture=pictures.find(f"COCO_{subset}_{image:012d}.jpg"),
                pictures=pictures,
                answers=() if annotation is None else annotation.answers,
                kinds={} if annotation is None else annotation.kinds,
            )

        questions = self._by_id(file, "questions", parse, twice="the question id {} was used before")
        for number in annotations.keys() - asked:
            message = f"the question {number} is annotated but not asked in {file.name}"
            self.findings.report("missing question", message, file=self.file("annotations", subset) or file)
        return list(questions.values())

    def annotations(self, subset: str) -> dict[int, Annotation]:
        """The annotations of a subset by the question's id."""
        if subset not in self._annotations:
            file = self.file("annotations", subset)
            if file is None:
                name = DOCUMENTS["annotations"].format(subset)
                raise DataError(f"{self.root}: no {name}, which holds the answers to the questions of {subset}")
            twice = "the question {} has two annotations"
            self._annotations[subset] = self._by_id(file, "annotations", _annotation, twice=twice)
        return self._annotations[subset]

    def _by_id(
        self, file: Path, key: str, parse: Callable[[Any], tuple[int, Record]], *, twice: str
    ) -> dict[int, Record]:
        """What `parse` makes of each object in the list under a key of a document, by its id; bad ones are reported."""
        document = read_json(file, hook=_smaller)
        content = document.get(key) if isinstance(document, dict) else None
        if not isinstance(content, list):
            raise DataError(f"{file}: must be an object with a list {key!r}; is it the file that its name says?")
        found: dict[int, Record] = {}
        for place, record in enumerate(content):
            try:
                number, made = parse(record)
                if number in found:
                    raise BadRowError("duplicate id", twice.format(number))
                found[number] = made
            except BadRowError as bad:
                self.findings.report(bad.kind, f"{key}[{place}]: {bad}", file=file)
        return found


def _annotation(record: Any) -> tuple[int, Annotation]:
    number = _number(record, "question_id")
    answers = _need(record, "answers")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise BadRowError("wrong type", f"question {number}: 'answers' must be a list of objects with an 'answer'")
    if len(answers) != PEOPLE:
        raise BadRowError("wrong answers", f"question {number} has {len(answers)} answers; VQA v2 has {PEOPLE} of each")
    commonest = record.get("multiple_choice_answer")
    return number, Annotation(
        answers=tuple(answers),
        commonest=commonest if isinstance(commonest, str) else Counter(answers).most_common(1)[0][0],
        kinds={key: value for key in ("question_type", "answer_type") if isinstance(value := record.get(key), str)},
    )


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


# -- answers: how they are written alike, what each is worth, and which a model can give -------------------------------

# Rules of the official evaluation (GT-Vision-Lab/VQA, `vqaEval.py`), oddities included: a score that is to be compared
# with others must be made the way others make it.
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
DIGITS_AROUND_COMMA = re.compile(r"\d,\d")
PERIOD = re.compile(r"\.(?!\d)")
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0", **{word: str(number) for number, word in enumerate(NUMBER_WORDS)}}
ARTICLES = frozenset(("a", "an", "the"))
APOSTROPHES = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd've he'd
    he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""


CONTRACTIONS = {"somebody'd": "somebodyd"} | {
    word[:place] + word[place + 1 :]: word
    for word in APOSTROPHES.split()
    for place, letter in enumerate(word)
    if letter == "'"
}
"""Each word under every spelling that lacks one of its apostrophes, and one word that the rules strip instead."""


@functools.lru_cache(maxsize=500_000)
def normalise(answer: str) -> str:
    """An answer as the official evaluation compares it: punctuation, number words, articles, apostrophes, case.

    A mark next to a space goes; one inside a word leaves a space, unless the text has a comma between digits.
    """
    text = out = tidy(answer)
    grouped = DIGITS_AROUND_COMMA.search(text) is not None
    for mark in PUNCTUATION:
        beside = f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if beside or grouped else " ")
    out = PERIOD.sub("", out, count=32)  # the official code hands re.UNICODE, which is 32, to the count
    words = [NUMBERS.get(word, word) for word in out.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def tidy(answer: str) -> str:
    """Line ends and tabs as spaces, none at the ends: what is done to every answer, whatever the others are."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def compared(answers: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """People's answers as they are compared, and whether they were normalised: only if they differ."""
    answers = tuple(map(tidy, answers))
    differ = len(set(answers)) > 1
    return (tuple(map(normalise, answers)) if differ else answers), differ


def worth(matches: int, people: int = 10) -> float:
    """mean_i min(1, matches among the others / 3), over the people i: 0, .3, .6, .9, 1 for 0 to 4 of ten."""
    matching = matches * min(1.0, (matches - 1) / 3)
    return (matching + (people - matches) * min(1.0, matches / 3)) / people if matches else 0.0


class Vocabulary:
    """The answers a model can give, by index."""

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers = tuple(answers)
        self._exact = {answer: (index,) for index, answer in enumerate(self.answers)}
        if len(self._exact) != len(self.answers):
            twice = next(answer for answer, count in Counter(self.answers).items() if count > 1)
            raise DataError(f"the answer {twice!r} is in the vocabulary twice")
        self._normalised: dict[str, tuple[int, ...]] = {}
        for index, answer in enumerate(self.answers):
            key = normalise(answer)
            self._normalised[key] = (*self._normalised.get(key, ()), index)

    def __len__(self) -> int:
        return len(self.answers)

    def scores(self, answers: Sequence[str]) -> dict[int, float]:
        """What each answer of the vocabulary is worth; those worth nothing are left out."""
        given, differ = compared(answers)
        indices = self._normalised if differ else self._exact
        counts = Counter(given)
        return {
            index: worth(count, len(given)) for answer, count in counts.items() for index in indices.get(answer, ())
        }

    @classmethod
    def from_counts(cls, commonest: Iterable[str], *, at_least: int) -> Vocabulary:
        """The normalised commonest answers that so many questions have; the most frequent first."""
        counts = Counter(map(normalise, commonest))
        return cls(sorted((a for a, n in counts.items() if n >= at_least), key=lambda a: (-counts[a], a)))

    @classmethod
    def from_file(cls, file: Path) -> Vocabulary:
        """A JSON file: the answers in order, or an object from each answer to its index."""
        content = read_json(file)
        if isinstance(content, dict) and content:
            if sorted(map(str, content.values())) != sorted(map(str, range(len(content)))):
                raise DataError(f"{file}: the indices of the answers must be 0 to {len(content) - 1}, each once")
            content = sorted(content, key=lambda answer: int(content[answer]))
        if not isinstance(content, list) or not content or not all(isinstance(answer, str) for answer in content):
            raise DataError(
                f"{file}: must hold a list of answers, or an object from answer to index, it is {described(content)}"
            )
        return cls(content)
