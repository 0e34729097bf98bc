"""Does the iteration find what hides? Maps against masks, and P(entailment) of true, wrong and irrelevant sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.analysis.attribution import METHODS
from meq.analysis.maps import SCORES, spell
from meq.analysis.maps import WORD as WORDS
from meq.options import checked_options, nearest
from meq.records import SINCE
from meq.studies.build import PreparedData
from meq.studies.measures.contract import (
    SPREADS,
    Measure,
    Results,
    SeedRow,
    TrainedModel,
    by_arm,
    check_split,
    mean_and_spread,
    raw_of,
    spread_titles,
)
from meq.studies.measures.gallery import (
    OTHERS,
    SENTENCES,
    WORD,
    EntailmentWalk,
    Gallery,
    GalleryPicture,
    PictureMaps,
    best_possible,
    check_statements,
    left_out,
    maps_of,
    new_words,
    open_other,
    read_gallery,
    reduce_mask,
    score_maps,
)
from meq.studies.study import Study, StudyError
from meq.tables import Cell, Table

CURVE = 20
"""P(entailment) is read at k = 1 to this, or to twice the read depth where that is more."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """The irrelevant one."""

    text: str
    words: int
    new_words: tuple[str, ...]
    """Those that no train text has: features that the model has never seen."""

    def __str__(self) -> str:
        if not self.new_words:
            return f'"{self.text}", all of its words are in train texts'
        new = ", ".join(self.new_words)
        return f'"{self.text}", {len(self.new_words)} of its {self.words} words ({new}) are in no train text'


@dataclass(frozen=True, kw_only=True)
class EntailmentCurves:
    """P(entailment) at each of the steps, means over pictures."""

    steps: tuple[int, ...]
    true: tuple[float, ...]
    wrong: tuple[float, ...] | None = field(default=None, metadata=SINCE)
    """Where the set has wrong statements."""
    irrelevant: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Of all that is said of the pictures, at each of the steps: which of the read set's own labels is likeliest?

    A set with fewer labels than the model has, such as COD10K without `neutral`, is thereby read as a choice between
    its own; `all_labels` counts an answer outside of them as wrong.
    """

    steps: tuple[int, ...]
    samples: int
    score: tuple[float, ...]
    all_labels: tuple[float, ...] | None = field(default=None, metadata=SINCE)


@dataclass(frozen=True, kw_only=True)
class MapScores:
    """Of one method's maps, at each of the steps: means over pictures, None where no picture counts."""

    pointing: tuple[float | None, ...]
    energy: tuple[float | None, ...]
    iou: tuple[float | None, ...]
    counted: tuple[int, ...]
    """Pictures whose map is not zero throughout."""


@dataclass(frozen=True, kw_only=True)
class ExamplePicture:
    """All that a grid of this picture needs besides the picture: places, and values at every step.

    The values of a step are one text of numbers (see `numbers`): a list would take a line of the file for each.
    """

    id: str
    picture: str
    text: str
    label: str
    size: tuple[int, ...]
    """Width and height."""
    mask_box: tuple[int, ...] | None
    probabilities: tuple[str, ...]
    boxes: tuple[str | None, ...]
    maps: Mapping[str, tuple[str, ...]]
    words: tuple[tuple[int, ...], ...]
    word_values: Mapping[str, tuple[str, ...]]
    p_entailment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GroundingResult:
    """What was found over all pictures, and the maps of a few of them."""

    data: str
    split: str
    pictures: int
    read: int
    horizon: int
    labels: tuple[str, ...]
    irrelevant: Sentence
    p_entailment: EntailmentCurves
    accuracy: Accuracy
    diverged: int
    with_masks: int
    constant: float | None
    """What a constant map scores; None without masks."""
    best_possible: Mapping[str, float] | None
    steps: tuple[int, ...]
    """Of the maps."""
    grounding: Mapping[str, MapScores]
    """By method."""
    left_out: Mapping[str, str]
    """Why a method has no maps."""
    examples: tuple[ExamplePicture, ...]


@checked_options
@dataclass(frozen=True, kw_only=True)
class Grounding(Measure[GroundingResult]):
    """Of pictures with a true statement: grounding scores and P(entailment) over k, accuracy at K and far beyond."""

    name: ClassVar[str] = "grounding"
    result: ClassVar[type] = GroundingResult

    read: str | None = None
    """A set that the model was not trained on, such as cod10k; the study's own data unless given."""
    split: str | None = None
    """Test where there is one (and, of the study's own data, where it is labelled)."""
    steps: Sequence[int] | None = None
    """Where maps are made: at 0 to twice the read depth unless given; K always."""
    methods: Sequence[str] = ("grad-cam", "gradient", "rollout")
    """The paper shows Grad-CAM, which alone may mislead: see docs/log.md. What a model cannot give is left out."""
    limit: int | None = None
    """Only the first so many pictures."""
    examples: int = 4
    """Pictures whose maps are kept whole: the first ones, those with masks before others."""
    irrelevant: str = "A man is walking down the street."
    horizon: int = 300

    def __post_init__(self) -> None:
        if self.read is not None and self.read not in OTHERS:
            raise StudyError(f"grounding cannot read {self.read!r}: {nearest(self.read, OTHERS)}")
        for method in self.methods:
            if method not in METHODS:
                raise StudyError(f"grounding: there is no method {method!r}: {nearest(method, METHODS)}")
        if any(k < 0 for k in self.steps or ()):
            raise StudyError(f"grounding: steps are counted from 0, the start; got {list(self.steps or ())}")
        for what, count, least in (
            ("limit", self.limit, 1),
            ("examples", self.examples, 0),
            ("horizon", self.horizon, 1),
        ):
            if count is not None and count < least:
                raise StudyError(f"grounding: {what} must be at least {least}, got {count}")
        if not WORD.search(self.irrelevant):
            raise StudyError(f"grounding: the irrelevant sentence has no word in it: {self.irrelevant!r}")

    def check(self, study: Study, prepared: PreparedData) -> None:
        raw = raw_of(prepared, self.name)
        check_statements(raw)
        if self.read is None:
            check_split(raw, self.split)
        else:
            other = open_other(self.read, prepared)
            check_split(other, self.split)
            check_statements(other)

    def take(self, trained: TrainedModel) -> GroundingResult | None:
        if trained.iterated is None:
            return None
        read = trained.iterated.steps
        gallery = read_gallery(trained.prepared, self.read, split=self._split(trained), limit=self.limit)
        steps = sorted({*(range(2 * read + 1) if self.steps is None else self.steps), read})
        curve = list(range(1, max(CURVE, 2 * read) + 1))
        walked = EntailmentWalk.over(
            trained, gallery, self.irrelevant, steps=sorted({*steps, *curve, read, self.horizon})
        )
        masks = {each.name: reduce_mask(mask) for each in gallery.shown if (mask := each.mask()) is not None}
        areas = [float(mask.pixels.double().mean()) for mask in masks.values()]
        masked = [each for each in gallery.shown if each.name in masks]
        kept = [*masked, *(each for each in gallery.shown if each.name not in masks)][: self.examples]
        mapped = [*masked, *(each for each in kept if each.name not in masks)]
        reasons = {method: left_out(method, trained, gallery) for method in self.methods}
        shown = [method for method, reason in reasons.items() if reason is None]
        maps = {method: maps_of(trained, gallery, mapped, method=method, steps=steps) for method in shown}
        on_masks = {method: made[: len(masked)] for method, made in maps.items()} if masked else {}
        sentence = Sentence(
            text=self.irrelevant,
            words=len(WORD.findall(self.irrelevant)),
            new_words=tuple(new_words(self.irrelevant, trained.prepared)),
        )
        return GroundingResult(
            data=gallery.data,
            split=gallery.split,
            pictures=len(gallery.shown),
            read=read,
            horizon=self.horizon,
            labels=tuple(trained.data.labels),
            irrelevant=sentence,
            p_entailment=EntailmentCurves(steps=tuple(curve), **walked.means(curve)),
            accuracy=_accuracy(walked, gallery, trained, steps=sorted({*curve, read, self.horizon})),
            diverged=walked.diverged,
            with_masks=len(masked),
            constant=sum(areas) / len(areas) if areas else None,
            best_possible=next((best_possible(made, list(masks.values())) for made in on_masks.values()), None),
            steps=tuple(steps),
            grounding={method: _scores(made, list(masks.values()), steps) for method, made in on_masks.items()},
            left_out={method: reason for method, reason in reasons.items() if reason is not None},
            examples=tuple(
                _example_picture(
                    each, {method: made[mapped.index(each)] for method, made in maps.items()}, walked, steps, curve
                )
                for each in kept
            ),
        )

    def _split(self, trained: TrainedModel) -> str:
        if self.split is not None:
            return self.split
        if self.read is None:
            return trained.reported_split
        splits = open_other(self.read, trained.prepared).splits
        return "test" if "test" in splits else next(iter(splits))

    def tables(self, study: Study, results: Results[GroundingResult]) -> dict[str, Table]:
        """By arm the scores over k and P(entailment) over k; accuracy of all arms."""
        made = {}
        for arm, found in by_arm(study, results).items():
            if found[0].grounding:
                made[f"grounding-scores-{arm}"] = _score_table(study, arm, found)
            made[f"p-entailment-{arm}"] = _entailment_table(study, arm, found)
        return {**made, "grounding-accuracy": _accuracy_table(study, results)} if made else {}


def _scores(maps: Sequence[PictureMaps], masks: Sequence[Any], steps: Sequence[int]) -> MapScores:
    found = score_maps(maps, masks, steps)
    means = {name: tuple(None if x.isnan() else float(x) for x in found.mean(name)) for name in SCORES}
    return MapScores(**means, counted=tuple(found.counted.tolist()))


def _example_picture(
    shown: GalleryPicture,
    maps: Mapping[str, PictureMaps],
    walked: EntailmentWalk,
    steps: Sequence[int],
    curve: Sequence[int],
) -> ExamplePicture:
    mask, some, true = shown.mask(), next(iter(maps.values()), None), shown.true
    return ExamplePicture(
        id=true.example.id,
        picture=shown.name,
        text=true.text,
        label=true.label,
        size=tuple(shown.picture.open().size),
        mask_box=None if mask is None else tuple(bounds(mask)),
        probabilities=tuple(as_row(row) for row in walked.at(walked.said[true.example.id], steps)),
        boxes=() if some is None else tuple(box_row(row) for row in some.boxes),
        maps={method: tuple(as_row(row) for row in one.image) for method, one in maps.items()},
        words=tuple(match.span() for match in WORDS.finditer(true.text)),
        word_values={
            method: tuple(as_row(value for _, value in spell(row, one.spans, true.text)) for row in one.text)
            for method, one in maps.items()
            if one.text is not None and one.spans is not None
        },
        p_entailment={name: as_row(x) for name, x in walked.of_picture(shown, curve).items()},
    )


def _accuracy(walked: EntailmentWalk, gallery: Gallery, trained: TrainedModel, *, steps: list[int]) -> Accuracy:
    known = list(trained.data.labels)
    said = [each for shown in gallery.shown for each in shown.said]
    rows = torch.stack([walked.at(walked.said[each.example.id], steps) for each in said], dim=1)
    own = [known.index(label) for label in gallery.labels]
    target = torch.tensor([known.index(each.label) for each in said])
    finite = rows.isfinite().all(-1)

    def share(answers: Tensor) -> tuple[float, ...]:
        return tuple(float(x) for x in ((answers == target) & finite).double().mean(1))

    return Accuracy(
        steps=tuple(steps),
        samples=len(said),
        score=share(torch.tensor(own)[rows[..., own].argmax(-1)]),
        all_labels=share(rows.argmax(-1)) if set(own) != set(range(len(known))) else None,
    )


# -- numbers as text, so that a list does not take a line of the file for each ----------------------------------------


def numbers(row: str) -> list[float]:
    """What was kept of one step: a value per token, word or label."""
    return [float(word) for word in row.split()]


def as_row(values: Iterable[float | Tensor]) -> str:
    """Three digits of each."""
    return " ".join(f"{float(value):.3g}" for value in values)


def box_row(box: Float[Tensor, 4]) -> str | None:
    """None for a token without a place."""
    return None if bool(box.isnan().any()) else " ".join(f"{side:.6g}" for side in box.tolist())


def bounds(mask: Bool[Tensor, "H W"]) -> list[int]:
    """Left, top, right, bottom."""
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


# -- tables ------------------------------------------------------------------------------------------------------------


def _score_table(study: Study, arm: str, found: Sequence[GroundingResult]) -> Table:
    first = found[0]
    pairs = {f"{method} {score}": (method, score) for method in first.grounding for score in SCORES}
    rows: list[dict[str, Cell]] = []
    for place, k in enumerate(first.steps):
        row: dict[str, Cell] = {"k": _step(k, first)}
        for key, (method, score) in pairs.items():
            row[key] = mean_and_spread(getattr(each.grounding[method], score)[place] for each in found)[0]
        rows.append(row)
    rows.append({"k": "constant map", **dict.fromkeys(pairs, first.constant)})
    best = first.best_possible or {}
    rows.append({"k": "best possible", **{key: best[score] for key, (_, score) in pairs.items()}})
    notes = [
        f"Mean over pictures, then over seeds: {first.with_masks} of {_pictures(first)} have a mask of what the "
        "statement speaks of. Maps are of the score of entailment, with the true statement.",
        "Best possible: for maps that are constant within a token.",
        *(f"{name}: {meaning}." for name, meaning in SCORES.items()),
        *(f"{method} is left out: {reason}." for method, reason in first.left_out.items()),
    ]
    for method in first.grounding:
        least = min(count for each in found for count in each.grounding[method].counted)
        if least < first.with_masks:
            notes.append(f"{method}: maps that are zero throughout are not counted, so that at some k {least} count.")
    return Table.of(
        f"{study.name}: {arm}, do the maps of step k lie on it? ({first.data})",
        rows,
        titles={key: f"{method}, {score}" for key, (method, score) in pairs.items()},
        digits=dict.fromkeys(pairs, 3),
        notes=notes,
    )


def _entailment_table(study: Study, arm: str, found: Sequence[GroundingResult]) -> Table:
    first = found[0]
    names = [name for name in SENTENCES if getattr(first.p_entailment, name) is not None]
    rows = []
    for place, k in enumerate(first.p_entailment.steps):
        row = SeedRow(k=_step(k, first))
        for name in names:
            row.add(name, (getattr(each.p_entailment, name)[place] for each in found))
        rows.append(row)
    note = (
        f"Mean over {_pictures(first)}; {SPREADS[0].lower()}{SPREADS[1:]} True and wrong: a statement of the set whose "
        f"label is entailment or contradiction. Irrelevant: {first.irrelevant}."
    )
    title = f"{study.name}: {arm}, P(entailment) read at step k ({first.data})"
    return Table.of(title, rows, titles=spread_titles(rows), notes=(note,))


def _accuracy_table(study: Study, results: Results[GroundingResult]) -> Table:
    first = next(iter(results.values()))
    kinds = {"score": "", **({"all_labels": ", all labels"} if first.accuracy.all_labels is not None else {})}
    rows = []
    for arm, found in by_arm(study, results).items():
        row = SeedRow(arm=arm)
        for kind in kinds:
            row.add(f"{kind} read", (_accuracy_at(each, kind, each.read) for each in found))
            row.add(f"{kind} far", (_accuracy_at(each, kind, each.horizon) for each in found))
        row["samples"] = found[0].accuracy.samples
        rows.append(row)
    titles = {f"{kind} read": f"at {first.read}{words}" for kind, words in kinds.items()}
    titles |= {f"{kind} far": f"at {first.horizon}{words}" for kind, words in kinds.items()}
    notes = [f"All that is said of {_pictures(first)}, {first.with_masks} of them with a mask. {SPREADS}"]
    if "all_labels" in kinds:
        notes.append(
            f"{first.data} has fewer labels than the model: an answer is the likeliest of the set's own labels; "
            "with all labels, an answer outside of them is wrong."
        )
    title = f"{study.name}: accuracy at the read depth, and far beyond it ({first.data}, {first.split})"
    return Table.of(title, rows, titles=titles | spread_titles(rows), notes=notes)


def _accuracy_at(found: GroundingResult, kind: str, k: int) -> float:
    return float(getattr(found.accuracy, kind)[found.accuracy.steps.index(k)])


def _pictures(found: GroundingResult) -> str:
    return f"{found.pictures} picture{'s' if found.pictures != 1 else ''} of {found.split}"


def _step(k: int, found: GroundingResult) -> str:
    return f"{k} = K" if k == found.read else str(k)
