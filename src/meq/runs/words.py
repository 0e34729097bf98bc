"""Which words of the texts count: a word is left out of every text that has it, and the text is encoded anew.

Encoders that read words in their context make something else of the words that stay, so that a token cannot simply be
masked: what is measured is what the model says to the text without the word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from meq.analysis.answers import Estimate, Scorer, estimate
from meq.core.operator import held_still
from meq.data.contract import Example
from meq.encoders.contract import Progress
from meq.models.base import FusionModel
from meq.models.heads import probabilities
from meq.runs.load import TrainedRun
from meq.runs.own_data import RunData, examples_as_features
from meq.runs.probabilities import applied
from meq.runs.worth import spread
from meq.training.predictions import answer_batch, answer_logits, batched
from meq.training.profile import WORD

BATCH = 64
LEAST_EXAMPLES, MOST_EXAMPLES = 5, 64
"""Of a word in fewer examples nothing can be said; of one in more, so many spread over them are looked at."""
ONE_ANSWER = ("classes", "ordinal", "choices")
"""Heads whose true answer has a probability."""


@dataclass(frozen=True, kw_only=True)
class WordImportance:
    """What is lost over the examples whose text has a word, when it is left out of them."""

    word: str
    modality: str
    found: int
    """Examples that have it, among those that were looked through."""
    samples: int
    """Those in which it was left out."""
    removed: Estimate
    """The score that is lost; the interval is over examples."""
    probability: Estimate | None
    """The probability of the true answer that is lost; None where answers have none, or several."""
    changed: float
    """The share of answers that change."""

    @property
    def name(self) -> str:
        return f"{self.modality}: {self.word}"

    @property
    def lost(self) -> Estimate:
        """What words are ranked by: probability, which moves where the answer stays, or else the score."""
        return self.removed if self.probability is None else self.probability


def measure_words(
    run: TrainedRun,
    ready: RunData,
    split: str,
    *,
    words: int,
    samples: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[WordImportance]:
    """The `words` most frequent words of each text modality, the one that counts most first; none without texts.

    A run that answers for tokens has none either: what it is asked about would be left out with the word.
    """
    texts = [name for name, encoder in ready.encoders.items() if encoder.kind == "text"]
    if not texts or not words or run.task.head == "tokens":
        return []
    model = run.model_read()
    looked = spread(ready.data.splits[split], samples)
    wanted = {example.id for example in looked}
    said = {example.id: example.content for example in ready.raw.splits[split] if example.id in wanted}
    chosen = [(name, *each) for name in texts for each in _frequent(looked, said, name, words)]
    done: list[WordImportance] = []
    with torch.no_grad(), held_still(model):
        for count, (modality, word, places) in enumerate(chosen, 1):
            made = _word(run, ready, model, [looked[at] for at in places], said, modality, word, seed)
            done += [] if made is None else [made]
            if progress is not None:
                progress("leaving out words", count, len(chosen))
    return sorted(done, key=lambda each: -each.lost.value)


def words_of(content: Any) -> set[str]:
    """The words of a text, or of several choices, in small letters."""
    texts = content if isinstance(content, tuple) else (content,)
    return {found.lower() for text in texts if isinstance(text, str) for found in WORD.findall(text)}


def without_word(content: Any, word: str) -> Any:
    """A text, or several choices, without every occurrence of the word; None where a text has no other word."""
    if isinstance(content, tuple):
        kept = tuple(without_word(each, word) for each in content)
        return None if any(each is None for each in kept) else kept
    left = WORD.sub(lambda found: "" if found[0].lower() == word else found[0], content)
    return re.sub(r"\s+", " ", left).strip() if WORD.search(left) else None


def _frequent(
    looked: Sequence[Example], said: Mapping[str, Mapping[str, Any]], modality: str, words: int
) -> list[tuple[str, list[int]]]:
    """The most frequent words, and the examples that have each, by place; the same count goes by the alphabet."""
    places: dict[str, list[int]] = {}
    for at, example in enumerate(looked):
        content = said.get(example.id, {}).get(modality)
        for word in words_of(content) if modality in example.content else ():  # an arm may go without a modality
            if without_word(content, word) is not None:
                places.setdefault(word, []).append(at)
    often = sorted((word for word, at in places.items() if len(at) >= LEAST_EXAMPLES), key=str)
    often.sort(key=lambda word: -len(places[word]))
    return [(word, places[word]) for word in often[:words]]


def _word(
    run: TrainedRun,
    ready: RunData,
    model: FusionModel,
    having: Sequence[Example],
    said: Mapping[str, Mapping[str, Any]],
    modality: str,
    word: str,
    seed: int,
) -> WordImportance | None:
    asked = spread(having, MOST_EXAMPLES)
    texts = [
        Example(id=each.id, content={modality: without_word(said[each.id][modality], word)}, target=None)
        for each in asked
    ]
    encoded = examples_as_features(run, texts, {modality: ready.encoders[modality]})
    changed = [
        replace(each, content={**each.content, modality: other.content[modality]})
        for each, other in zip(asked, encoded, strict=True)
    ]
    whole, target = _answers(model, ready, asked)
    without, _ = _answers(model, ready, changed)
    head = run.task.head
    scorer = Scorer.of(whole, target, head)
    kept = scorer.kept
    if not bool(kept.any()):
        return None
    return WordImportance(
        word=word,
        modality=modality,
        found=len(having),
        samples=len(asked),
        removed=estimate((scorer.points - scorer.scored(without))[kept], seed),
        probability=_less_sure(run, model, whole, without, target, seed) if head in ONE_ANSWER else None,
        changed=float(scorer.changed(without).mean()),
    )


def _answers(model: FusionModel, ready: RunData, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    parts = [answer_batch(model, part, ready.data.widths) for part in batched(examples, BATCH)]
    logits = [answer_logits(output).float().cpu() for _, output in parts]
    return torch.cat(logits), torch.cat([batch.target.cpu() for batch, _ in parts])


def _less_sure(
    run: TrainedRun, model: FusionModel, whole: Tensor, without: Tensor, target: Tensor, seed: int
) -> Estimate:
    sure = [
        probabilities(logits.double() / applied(run, model).temperature, run.task.head)
        .gather(1, target.long().reshape(-1, 1))[:, 0]
        .nan_to_num(0.0)  # no answer gives the true one no probability
        for logits in (whole, without)
    ]
    return estimate(sure[0] - sure[1], seed)
