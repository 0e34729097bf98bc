"""Pictures of which something is said, true and not true: masks of what it speaks of, and maps against those masks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.analysis.attribution import attribute
from meq.analysis.maps import Grounding, paint, score_grounding
from meq.analysis.walk import open_case
from meq.core.operator import held_still
from meq.data.content import Picture
from meq.data.contract import DataSet, Example
from meq.data.request import open_data
from meq.options import nearest
from meq.studies.build import Places, PreparedData, open_raw
from meq.studies.measures.contract import TrainedModel, encode_alike, only, raw_of
from meq.studies.study import DataConfig, StudyError
from meq.training.predictions import batched

ENTAILMENT, CONTRADICTION = "entailment", "contradiction"
OTHERS: Mapping[str, Mapping[str, Any]] = {"cod10k": {"dev": 0.0}}
"""Sets that can be read besides the one that was trained on, with options: nothing is held out for training."""
WORD = re.compile(r"\w+")
TRAIN_TEXTS = 20_000
"""Train texts that are looked through for the words of a sentence."""
BATCH = 25
SENTENCES = ("true", "wrong", "irrelevant")
SCORED_SIDE = 256
"""Pixels of the longer side at which maps and masks are compared: tokens are coarser, and sorting pixels is slow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Statement:
    """A statement about a picture: as it is written, and as features."""

    text: str
    label: str
    example: Example


@dataclass(frozen=True, kw_only=True, eq=False)
class GalleryPicture:
    """A picture, what is said of it, and the mask of what the true statement speaks of."""

    name: str
    picture: Picture
    said: tuple[Statement, ...]

    def first(self, label: str) -> Statement | None:
        return next((each for each in self.said if each.label == label), None)

    @property
    def true(self) -> Statement:
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
    shown: tuple[GalleryPicture, ...]
    image: str
    """The modality that holds the pictures."""
    text: str


def open_other(name: str, prepared: PreparedData) -> DataSet:
    """A set that the model was not trained on, not encoded yet."""
    root = prepared.places.read
    if root is None:
        raise StudyError(f"grounding reads {name!r}, which lies in a folder of yours: give its path (--read FOLDER)")
    data = open_data(name, Path(root), **OTHERS[name])
    if missing := [each for each in data.modalities if each not in prepared.encoders]:
        known = nearest(missing[0], prepared.encoders)
        raise StudyError(f"{name} has {missing[0]!r}, and what was trained on has no encoder of that name: {known}")
    return data


def check_statements(data: DataSet) -> None:
    """An error unless the set has one modality of pictures, one of texts, and the labels of entailment."""
    modality_of(data, "image"), modality_of(data, "text")
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


def read_gallery(prepared: PreparedData, name: str | None, *, split: str, limit: int | None) -> Gallery:
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


_GALLERIES: WeakKeyDictionary[PreparedData, dict[tuple[str | None, str, int | None], Gallery]] = WeakKeyDictionary()


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
    shown: dict[str, GalleryPicture] = {}
    for original, example in zip(examples, encoded, strict=True):
        name, words, picture = str(original.facts["picture"]), original.content[text], original.content[image]
        assert isinstance(words, str)
        assert isinstance(picture, Picture)
        said = Statement(text=words, label=_label(original, raw), example=example)
        before = shown.get(name, GalleryPicture(name=name, picture=picture, said=()))
        shown[name] = replace(before, said=(*before.said, said))
    return Gallery(
        data=raw.name, split=split, labels=tuple(raw.labels), shown=tuple(shown.values()), image=image, text=text
    )


def pictures_named(
    names: Collection[str], config: DataConfig, places: Places, *, read: str | None, split: str
) -> dict[str, Picture]:
    """Pictures of a split of a study's own data, or of the other set that it reads, by name; nothing is encoded."""
    if read is not None and places.read is None:
        return {}
    raw = open_raw(config, places) if read is None else open_data(read, places.read, **OTHERS[read])
    image, found = modality_of(raw, "image"), dict[str, Picture]()
    for example in raw.splits[split]:
        name, picture = str(example.facts.get("picture")), example.content[image]
        if name in names and name not in found and isinstance(picture, Picture):
            found[name] = picture
        if len(found) == len(set(names)):
            break
    return found


def with_sentence(gallery: Gallery, sentence: str, prepared: PreparedData) -> list[Example]:
    """Every picture with one and the same sentence in place of what is said of it."""
    raw = raw_of(prepared, "grounding")
    alone = Example(id="sentence", content={gallery.text: sentence}, target=torch.zeros((), dtype=torch.long))
    (encoded,) = encode_alike(only(raw, [gallery.text], [alone]), prepared).splits["read"]
    return [
        replace(true, content={**true.content, **encoded.content})
        for true in (each.true.example for each in gallery.shown)
    ]


def new_words(sentence: str, prepared: PreparedData) -> list[str]:
    """The words that no train text has (of the first texts of a large set): features a model has never seen."""
    raw = raw_of(prepared, "grounding")
    text = modality_of(raw, "text")
    words = WORD.findall(sentence.lower())
    left = set(words)
    for example in raw.splits["train"][:TRAIN_TEXTS] if "train" in raw.splits else ():
        left -= set(WORD.findall(str(example.content.get(text, "")).lower()))
        if not left:
            break
    return [word for word in dict.fromkeys(words) if word in left]


def _label(example: Example, data: DataSet) -> str:
    if example.target is None:
        raise StudyError(f"{data.name}: example {example.id!r} has no label, and grounding needs to know what is true")
    return data.labels[int(example.target)]


# -- maps of what a true statement's score depends on, step by step ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class PictureMaps:
    """One method's maps of one picture with its true statement, over the steps."""

    image: Float[Tensor, "S N"]
    boxes: Float[Tensor, "N 4"]
    text: Float[Tensor, "S M"] | None
    """None where the method has no map of the text."""
    spans: Tensor | None


@dataclass(frozen=True, eq=False)
class SmallMask:
    """A mask on at most SCORED_SIDE pixels a side: those of thousands of photographs have to be held at once."""

    pixels: Bool[Tensor, "h w"]
    height: int
    """Of the picture."""
    width: int


def reduce_mask(mask: Bool[Tensor, "H W"]) -> SmallMask:
    height, width = mask.shape
    scale = SCORED_SIDE / max(height, width)
    if scale < 1:
        size = max(1, round(height * scale)), max(1, round(width * scale))
        share = torch.nn.functional.adaptive_avg_pool2d(mask.float()[None, None], size)[0, 0]
        mask = share >= min(0.5, float(share.max()))  # what is smaller than a pixel stays
    return SmallMask(mask, height, width)


def left_out(method: str, trained: TrainedModel, gallery: Gallery) -> str | None:
    """Why a method gives no maps of this model's pictures; None if it does."""
    model: Any = trained.model
    batch = trained.collate(trained.as_seen([gallery.shown[0].true.example]))
    try:
        found = attribute(model, batch.features, batch.masks, method=method, steps=[0])
    except ValueError as error:
        if method != "rollout":  # the only one that asks for a certain mixer and solver
            raise
        return str(error)
    return None if gallery.image in found.maps else f"its maps are of the states {', '.join(found.maps)}"


def maps_of(
    trained: TrainedModel, gallery: Gallery, shown: Sequence[GalleryPicture], *, method: str, steps: Sequence[int]
) -> list[PictureMaps]:
    """One method's maps of every picture: of the score of `entailment`, its true statement's label."""
    examples = trained.as_seen([each.true.example for each in shown])
    made: list[PictureMaps] = []
    for some in batched(examples, BATCH):
        batch = trained.collate(some)
        target = torch.full_like(batch.target, list(trained.data.labels).index(ENTAILMENT))
        model: Any = trained.model
        found = attribute(model, batch.features, batch.masks, method=method, steps=list(steps), target=target)
        for row, example in enumerate(some):
            tokens = example.facts["tokens"]()
            (image,), (text,) = tokens[gallery.image], tokens[gallery.text]
            assert image.boxes is not None
            on_image = found.maps[gallery.image][:, row, : len(image.boxes)].cpu()
            on_text = (
                found.maps[gallery.text][:, row, : len(text.features)].cpu() if gallery.text in found.maps else None
            )
            made.append(PictureMaps(on_image, image.boxes, on_text, text.spans))
    return made


def score_maps(maps: Sequence[PictureMaps], masks: Sequence[SmallMask], steps: Sequence[int]) -> Grounding:
    return score_grounding(
        (_compared(one.image, one.boxes, mask) for one, mask in zip(maps, masks, strict=True)), steps=list(steps)
    )


def _compared(
    values: Float[Tensor, "S N"], boxes: Float[Tensor, "N 4"], mask: SmallMask
) -> tuple[Float[Tensor, "S h w"], Bool[Tensor, "h w"]]:
    """Map and mask on the same pixels, fewer than the picture's where it is large."""
    height, width = mask.pixels.shape
    factor = boxes.new_tensor([width / mask.width, height / mask.height] * 2)
    return paint(values, boxes * factor, height=height, width=width), mask.pixels


def best_possible(maps: Sequence[PictureMaps], masks: Sequence[SmallMask]) -> dict[str, float]:
    """The means that the best maps of such tokens would have: a token is coarser than what it shows.

    Each token has the share of it that lies in the mask. All of a map in the token with the largest share is the best
    for pointing and energy, and a threshold on shares is the best for overlap.
    """

    def ideal() -> Iterator[tuple[Tensor, Tensor]]:
        for one, mask in zip(maps, masks, strict=True):
            tokens, pixels = _compared(torch.eye(len(one.boxes)), one.boxes, mask)  # each token's own pixels
            shares = ((tokens * pixels).sum((1, 2)) / tokens.sum((1, 2))).nan_to_num(0)  # 0 for one without a place
            yield _compared(shares[None], one.boxes, mask)

    found = score_grounding(ideal())
    pointing, overlap = float(found.mean("pointing")[0]), float(found.mean("iou")[0])
    return {"pointing": pointing, "energy": pointing, "iou": overlap}


# -- what the model answers to all that is said of the pictures, step by step ------------------------------------------


@dataclass(frozen=True, eq=False)
class EntailmentWalk:
    """Probabilities of all labels at every step, of all that is said of the pictures."""

    steps: list[int]
    gallery: Gallery
    entailment: int
    said: Mapping[str, Float[Tensor, "S C"]]
    """By the id of a statement."""
    irrelevant: Mapping[str, Float[Tensor, "S C"]]
    """By the name of a picture."""
    diverged: int

    @classmethod
    def over(cls, trained: TrainedModel, gallery: Gallery, sentence: str, *, steps: list[int]) -> EntailmentWalk:
        """Samples that stop being finite are read where they last were."""
        said = [each.example for shown in gallery.shown for each in shown.said]
        others = with_sentence(gallery, sentence, trained.prepared)
        model: Any = trained.model
        parts, diverged = [], 0
        with torch.no_grad(), held_still(model):
            for batch in trained.collated(trained.as_seen([*said, *others])):
                readings = open_case(model, batch.features, batch.masks).read_along(steps)
                parts.append(readings.logits.float().softmax(-1))
                diverged += int((readings.stopped >= 0).sum())
        rows = torch.cat(parts, dim=1).unbind(1)
        return cls(
            steps,
            gallery,
            list(trained.data.labels).index(ENTAILMENT),
            dict(zip((each.id for each in said), rows[: len(said)], strict=True)),
            dict(zip((each.name for each in gallery.shown), rows[len(said) :], strict=True)),
            diverged,
        )

    def at(self, rows: Float[Tensor, "S C"], steps: Sequence[int]) -> Float[Tensor, "T C"]:
        return rows[[self.steps.index(k) for k in steps]]

    def of_picture(self, shown: GalleryPicture, steps: Sequence[int]) -> dict[str, Float[Tensor, " T"]]:
        """P(entailment) with the true statement, a wrong one if there is any, and the irrelevant sentence."""
        wrong = shown.first(CONTRADICTION)
        rows = {"true": self.said[shown.true.example.id]}
        rows |= {"wrong": self.said[wrong.example.id]} if wrong is not None else {}
        rows["irrelevant"] = self.irrelevant[shown.name]
        return {name: self.at(each, steps)[:, self.entailment] for name, each in rows.items()}

    def means(self, steps: Sequence[int]) -> dict[str, tuple[float, ...]]:
        """Over pictures; those whose logits are not finite are left out."""
        curves = [self.of_picture(shown, steps) for shown in self.gallery.shown]
        names = [name for name in SENTENCES if any(name in each for each in curves)]
        stacked = {name: torch.stack([each[name] for each in curves if name in each]).double() for name in names}
        return {name: tuple(float(x) for x in rows.nanmean(0)) for name, rows in stacked.items()}
