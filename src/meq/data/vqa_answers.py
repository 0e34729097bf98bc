"""The answers of VQA: how they are written alike, what one is worth, and which of them a model can give.

Rules of the official evaluation (GT-Vision-Lab/VQA, `vqaEval.py`), oddities included: a score that is to be compared
with others must be made the way others make it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from meq.data.files import described, read_json
from meq.data.findings import DataError

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


def _contractions() -> dict[str, str]:
    """Each word under every spelling that lacks one of its apostrophes, and one word that the rules strip instead."""
    table = {"somebody'd": "somebodyd"}
    for word in APOSTROPHES.split():
        for place, letter in enumerate(word):
            if letter == "'":
                table[word[:place] + word[place + 1 :]] = word
    return table


CONTRACTIONS = _contractions()


@functools.lru_cache(maxsize=500_000)
def normalise(answer: str) -> str:
    """An answer as the official evaluation compares it: punctuation, number words, articles, apostrophes, case."""
    return _words(_punctuation(tidy(answer)))


def tidy(answer: str) -> str:
    """Line ends and tabs as spaces, none at the ends: what is done to every answer, whatever the others are."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def _punctuation(text: str) -> str:
    """A mark next to a space goes; one inside a word leaves a space, unless the text has a comma between digits."""
    out = text
    grouped = DIGITS_AROUND_COMMA.search(text) is not None
    for mark in PUNCTUATION:
        beside = f"{mark} " in text or f" {mark}" in text
        out = out.replace(mark, "" if beside or grouped else " ")
    return PERIOD.sub("", out, count=32)  # the official code hands re.UNICODE, which is 32, to the count


def _words(text: str) -> str:
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


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
