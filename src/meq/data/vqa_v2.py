"""VQA v2: a question about a picture, answered by ten people; a model chooses one of some thousand answers.

Three ways of splitting, since the paper trains on nine tenths of the official validation questions and scores the rest:

- `paper`: val2014, one question in ten held out. Almost every held-out question has a picture seen in training.
- `image-disjoint`: val2014, a tenth of the questions held out, no picture on both sides.
- `official`: train2014 is `train`, val2014 is `dev`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meq.core.options import checked_options, nearest
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows, Split
from meq.data.findings import DataError, Findings
from meq.data.jsonl import filled
from meq.data.metrics import SOFT_ACCURACY
from meq.data.paths import Tree, first_of, need_one_of
from meq.data.vqa_answers import Vocabulary
from meq.data.vqa_files import Documents, Question

SPLITS = ("paper", "image-disjoint", "official")
UNANSWERABLE = ("wrong", "drop")
PICTURES = ("{}", "images/{}", "Images/{}", "Images/mscoco/{}", "coco/{}", "coco/images/{}")
HELD_OUT = 10
"""One in so many questions of val2014 is held out."""


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
    _check("split", split, SPLITS)
    _check("unanswerable", unanswerable, UNANSWERABLE)
    root, findings = Path(root), Findings() if findings is None else findings
    documents = Documents(root, findings)
    vocabulary, source = _vocabulary(documents, answers, at_least)
    reader = _Reader(vocabulary)
    questions = _labelled(documents, split, seed)
    answerable = {name: [q for q in rows if vocabulary.scores(q.answers)] for name, rows in questions.items()}
    without = {name: len(rows) - len(answerable[name]) for name, rows in questions.items()}
    if unanswerable == "drop":
        questions = answerable
    splits: dict[str, Split] = {name: Rows(rows, reader.example) for name, rows in questions.items()}
    return DataSet(
        name="vqa-v2",
        splits=filled({**splits, **_unlabelled(documents, reader)}, findings, root=root),
        modalities={"image": IMAGE, "text": TEXT},
        labels=vocabulary.answers,
        head="labels",
        metric=SOFT_ACCURACY,
        facts={
            "split": split,
            "seed": seed,
            "unanswerable": unanswerable,
            "questions_without_an_answer": without,
            "dev_questions_on_training_pictures": _shared(questions),
            "answers": {"count": len(vocabulary), "from": source},
        },
    )


def _check(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise DataError(f"vqa-v2: {option} cannot be {value!r}: {nearest(value, known)}")


def _vocabulary(documents: Documents, answers: Path | str | None, at_least: int) -> tuple[Vocabulary, dict[str, Any]]:
    """The answers a model can give, and where they come from."""
    if answers is not None:
        return Vocabulary.from_file(Path(answers)), {"file": Path(answers).name}
    subsets = [subset for subset in ("train2014", "val2014") if documents.annotations_file(subset) is not None]
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


@dataclass
class _Reader:
    vocabulary: Vocabulary

    def example(self, question: Question) -> Example:
        facts = {"picture": question.picture, "answers": question.answers, **question.kinds}
        return Example(
            id=str(question.id),
            content={"image": question.pictures.picture(question.picture), "text": question.text},
            target=self._target(question) if question.answers else None,
            facts={key: value for key, value in facts.items() if value},
        )

    def _target(self, question: Question) -> torch.Tensor:
        target = torch.zeros(len(self.vocabulary))
        for index, score in self.vocabulary.scores(question.answers).items():
            target[index] = score
        return target


def _pictures(root: Path, subset: str) -> Tree:
    names = [pattern.format(subset) for pattern in PICTURES]
    return Tree(need_one_of(root, names, what=f"the pictures of {subset}"), root)


def _labelled(documents: Documents, split: str, seed: int) -> dict[str, list[Question]]:
    if split == "official":
        return _official(documents)
    if documents.questions_file("val2014") is None:
        raise DataError(
            f"{documents.root}: no v2_OpenEnded_mscoco_val2014_questions.json, which the split {split!r} divides; "
            "with train2014 alone use split='official'"
        )
    questions = documents.questions("val2014", pictures=_pictures(documents.root, "val2014"))
    held_out = _held_out(questions, seed, by_picture=split == "image-disjoint")
    return {
        "train": [question for question in questions if question.id not in held_out],
        "dev": [question for question in questions if question.id in held_out],
    }


def _official(documents: Documents) -> dict[str, list[Question]]:
    found = {}
    for name, subset in (("train", "train2014"), ("dev", "val2014")):
        if documents.questions_file(subset) is None:
            documents.findings.absent.append(f"{name}: no v2_OpenEnded_mscoco_{subset}_questions.json")
        else:
            found[name] = documents.questions(subset, pictures=_pictures(documents.root, subset))
    if not found:
        raise DataError(f"{documents.root}: no v2_OpenEnded_mscoco_{{train2014,val2014}}_questions.json")
    return found


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


def _shared(questions: Mapping[str, list[Question]]) -> int:
    """How many questions of dev are about a picture that training has seen."""
    seen = {question.picture for question in questions.get("train", ())}
    return sum(question.picture in seen for question in questions.get("dev", ()))


def _unlabelled(documents: Documents, reader: _Reader) -> Mapping[str, Split]:
    """test2015, whose answers are not public, where its questions and pictures are there."""
    subset = "test2015"
    if documents.questions_file(subset) is None:
        documents.findings.absent.append(f"{subset}: no questions")
    elif first_of(documents.root, [pattern.format(subset) for pattern in PICTURES]) is None:
        documents.findings.absent.append(f"{subset}: no pictures")
    else:
        questions = documents.questions(subset, pictures=_pictures(documents.root, subset), labelled=False)
        return {subset: Rows(questions, reader.example)}
    return {}
