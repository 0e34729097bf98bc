"""Pictures of which something is said, true and not true, and masks that show what it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from meq.core.options import nearest
from meq.data.content import Picture
from meq.data.contract import DataSet, Example
from meq.data.registry import open_data
from meq.experiments.build import Prepared
from meq.experiments.measures.encoding import encode_alike, only, raw_of
from meq.experiments.study import StudyError

ENTAILMENT, CONTRADICTION = "entailment", "contradiction"
OTHERS: Mapping[str, Mapping[str, Any]] = {"cod10k": {"dev": 0.0}}
"""Sets that can be read besides the one that was trained on, with options: nothing is held out for training."""
WORD = re.compile(r"\w+")
LISTENED = 20_000
"""Train texts that are looked through for the words of a sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """A statement about a picture: as it is written, and as features."""

    text: str
    label: str
    example: Example


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A picture, what is said of it, and the mask of what the true statement speaks of."""

    name: str
    picture: Picture
    said: tuple[Said, ...]

    def first(self, label: str) -> Said | None:
        return next((each for each in self.said if each.label == label), None)

    @property
    def true(self) -> Said:
        return next(each for each in self.said if each.label == ENTAILMENT)

    def mask(self) -> Bool[Tensor, "H W"] | None:
        """None where the set has none, or an empty one."""
        facts = self.true.example.facts
        if "masks" in facts:
            mask = torch.from_numpy(facts["masks"]()["things"])
        elif "mask" in facts:
            mask = torch.from_numpy(facts["mask"].open())
        else:
            return None
        return mask if bool(mask.any()) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """The pictures that are read, of one split."""

    data: str
    split: str
    labels: tuple[str, ...]
    shown: tuple[Shown, ...]
    image: str
    """The modality that holds the pictures."""
    text: str


def open_other(name: str, prepared: Prepared) -> DataSet:
    """A set that the model was not trained on, not encoded yet."""
    root = prepared.places.read
    if root is None:
        raise StudyError(f"grounding reads {name!r}, which lies in a folder of yours: give its path (--read FOLDER)")
    data = open_data(name, Path(root), **OTHERS[name])
    if missing := [each for each in data.modalities if each not in prepared.encoders]:
        known = nearest(missing[0], prepared.encoders)
        raise StudyError(f"{name} has {missing[0]!r}, and what was trained on has no encoder of that name: {known}")
    return data


def check_labels(data: DataSet) -> None:
    if not {ENTAILMENT, CONTRADICTION} <= set(data.labels):
        raise StudyError(
            f"grounding needs statements that are true or not, with the labels {ENTAILMENT} and {CONTRADICTION}; "
            f"{data.name} has {', '.join(data.labels)}"
        )


def modality_of(data: DataSet, kind: str) -> str:
    found = [name for name, modality in data.modalities.items() if modality.kind == kind]
    if len(found) != 1:
        raise StudyError(f"grounding needs one modality of kind {kind!r}; {data.name} has {', '.join(found) or 'none'}")
    return found[0]


def read_gallery(prepared: Prepared, name: str | None, *, split: str, limit: int | None) -> Gallery:
    """The first pictures of a split of the study's own data, or of another set, which is encoded once per process."""
    kept, key = _GALLERIES.setdefault(prepared, {}), (name, split, limit)
    if key not in kept:
        raw = raw_of(prepared, "grounding") if name is None else open_other(name, prepared)
        chosen = _first_pictures(raw, split, limit)
        examples = [raw.splits[split][place] for places in chosen.values() for place in places]
        if name is None:
            encoded = [prepared.data.splits[split][place] for places in chosen.values() for place in places]
        else:
            encoded = list(encode_alike(only(raw, list(raw.modalities), examples), prepared).splits["read"])
        kept[key] = _gallery(raw, split, examples, encoded)
    return kept[key]


_GALLERIES: WeakKeyDictionary[Prepared, dict[tuple[str | None, str, int | None], Gallery]] = WeakKeyDictionary()


def _first_pictures(raw: DataSet, split: str, limit: int | None) -> dict[str, list[int]]:
    """By picture: the places of what is said of it; pictures of which nothing true is said are left out."""
    places: dict[str, list[int]] = {}
    true = set()
    for place, example in enumerate(raw.splits[split]):
        if "picture" not in example.facts:
            raise StudyError(f"{raw.name}: its examples do not tell which picture they show: grounding needs to know")
        name = str(example.facts["picture"])
        places.setdefault(name, []).append(place)
        if _label(example, raw) == ENTAILMENT:
            true.add(name)
    kept = [name for name in places if name in true][:limit]
    if not kept:
        raise StudyError(f"{raw.name}: no picture of {split} has a statement that is true of it")
    return {name: places[name] for name in kept}


def _gallery(raw: DataSet, split: str, examples: list[Example], encoded: list[Example]) -> Gallery:
    image, text = modality_of(raw, "image"), modality_of(raw, "text")
    shown: dict[str, Shown] = {}
    for original, example in zip(examples, encoded, strict=True):
        name, words, picture = str(original.facts["picture"]), original.content[text], original.content[image]
        assert isinstance(words, str)
        assert isinstance(picture, Picture)
        said = Said(text=words, label=_label(original, raw), example=example)
        before = shown.get(name, Shown(name=name, picture=picture, said=()))
        shown[name] = replace(before, said=(*before.said, said))
    return Gallery(
        data=raw.name, split=split, labels=tuple(raw.labels), shown=tuple(shown.values()), image=image, text=text
    )


def with_sentence(gallery: Gallery, sentence: str, prepared: Prepared) -> list[Example]:
    """Every picture with one and the same sentence in place of what is said of it."""
    raw = raw_of(prepared, "grounding")
    alone = Example(id="sentence", content={gallery.text: sentence}, target=torch.zeros((), dtype=torch.long))
    (encoded,) = encode_alike(only(raw, [gallery.text], [alone]), prepared).splits["read"]
    return [
        replace(true, content={**true.content, **encoded.content})
        for true in (each.true.example for each in gallery.shown)
    ]


def new_words(sentence: str, prepared: Prepared) -> list[str]:
    """The words that no train text has (of the first texts of a large set): features a model has never seen."""
    raw = raw_of(prepared, "grounding")
    text = modality_of(raw, "text")
    left = set(_words(sentence))
    for example in raw.splits["train"][:LISTENED] if "train" in raw.splits else ():
        left -= set(_words(str(example.content.get(text, ""))))
        if not left:
            break
    return [word for word in dict.fromkeys(_words(sentence)) if word in left]


def _words(text: str) -> Iterable[str]:
    return WORD.findall(text.lower())


def _label(example: Example, data: DataSet) -> str:
    if example.target is None:
        raise StudyError(f"{data.name}: example {example.id!r} has no label, and grounding needs to know what is true")
    return data.labels[int(example.target)]


def words_in(facts: Mapping[str, Any]) -> str:
    """How many words of a sentence are new, in words."""
    new = facts["new_words"]
    return (
        f"{len(new)} of its {facts['words']} words ({', '.join(new)}) are in no train text"
        if new
        else ("all of its words are in train texts")
    )
