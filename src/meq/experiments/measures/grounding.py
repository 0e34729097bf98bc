"""Does the iteration find what hides? Maps against masks, and P(entailment) of true, wrong and irrelevant sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from meq.analysis.attribution import METHODS
from meq.analysis.subject import held_still, open_case, stopped_at
from meq.core.options import checked_options, nearest
from meq.core.state import State
from meq.data.contract import Example
from meq.experiments.build import Prepared
from meq.experiments.measures.contract import Found, Measure, Trained, Values, batched, check_split
from meq.experiments.measures.encoding import raw_of, seen_by_arm
from meq.experiments.measures.grounding_maps import (
    PictureMaps,
    as_row,
    best_possible,
    constant_score,
    kept_picture,
    left_out,
    maps_of,
    reduce_mask,
    score_maps,
    summary,
)
from meq.experiments.measures.grounding_pictures import (
    CONTRADICTION,
    ENTAILMENT,
    OTHERS,
    WORD,
    Gallery,
    Shown,
    check_labels,
    modality_of,
    new_words,
    open_other,
    read_gallery,
    with_sentence,
)
from meq.experiments.measures.grounding_tables import SENTENCES, grounding_tables
from meq.experiments.measures.steps import reported_split
from meq.experiments.render import Table
from meq.experiments.study import Study, StudyError

CURVE = 20
"""P(entailment) is read at k = 1 to this, or to twice the read depth where that is more."""


@checked_options
@dataclass(frozen=True, kw_only=True)
class Grounding(Measure):
    """Of pictures with a true statement: grounding scores and P(entailment) over k, accuracy at K and far beyond."""

    name: ClassVar[str] = "grounding"

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
    irrelevant: str = "The bus is late again."
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

    def check(self, study: Study, prepared: Prepared) -> None:
        raw = raw_of(prepared, self.name)
        modality_of(raw, "image"), modality_of(raw, "text")
        check_labels(raw)
        if self.read is None:
            check_split(raw, self.split)
        else:
            other = open_other(self.read, prepared)
            check_split(other, self.split)
            check_labels(other)

    def take(self, trained: Trained) -> Found | None:
        if trained.iterated is None:
            return None
        read = trained.iterated.steps
        gallery = read_gallery(trained.prepared, self.read, split=self._split(trained), limit=self.limit)
        steps = sorted({*(range(2 * read + 1) if self.steps is None else self.steps), read})
        curve = list(range(1, max(CURVE, 2 * read) + 1))
        walked = _Walked.over(trained, gallery, self.irrelevant, steps=sorted({*steps, *curve, read, self.horizon}))
        return {
            "data": gallery.data,
            "split": gallery.split,
            "pictures": len(gallery.shown),
            "read": read,
            "horizon": self.horizon,
            "labels": list(trained.data.labels),
            "irrelevant": {
                "text": self.irrelevant,
                "words": len(WORD.findall(self.irrelevant)),
                "new_words": new_words(self.irrelevant, trained.prepared),
            },
            "p_entailment": {"steps": curve, **walked.means(curve)},
            "accuracy": _accuracy(walked, gallery, trained, steps=sorted({*curve, read, self.horizon})),
            "diverged": walked.diverged,
            **self._maps(trained, gallery, walked, steps, curve),
        }

    def _split(self, trained: Trained) -> str:
        if self.split is not None:
            return self.split
        if self.read is None:
            return reported_split(trained)
        splits = open_other(self.read, trained.prepared).splits
        return "test" if "test" in splits else next(iter(splits))

    def _maps(
        self, trained: Trained, gallery: Gallery, walked: _Walked, steps: list[int], curve: list[int]
    ) -> dict[str, Any]:
        """Scores over all pictures that have a mask, and whole maps of a few pictures."""
        masks = {each.name: reduce_mask(mask) for each in gallery.shown if (mask := each.mask()) is not None}
        masked = [each for each in gallery.shown if each.name in masks]
        kept = [*masked, *(each for each in gallery.shown if each.name not in masks)][: self.examples]
        mapped = [*masked, *(each for each in kept if each.name not in masks)]
        reasons = {method: left_out(method, trained, gallery) for method in self.methods}
        series: dict[str, dict[str, PictureMaps]] = {each.name: {} for each in kept}
        scores, best = {}, None
        for method in (method for method, reason in reasons.items() if reason is None):
            made = maps_of(trained, gallery, mapped, method=method, steps=steps)
            if masked:
                scores[method] = summary(score_maps(made[: len(masked)], list(masks.values()), steps))
                best = best or best_possible(made[: len(masked)], list(masks.values()))
            for each, maps in zip(mapped, made, strict=True):
                if each.name in series:
                    series[each.name][method] = maps
        return {
            "with_masks": len(masked),
            "constant": constant_score(list(masks.values())),
            "best_possible": best,
            "steps": steps,
            "grounding": scores,
            "left_out": {method: reason for method, reason in reasons.items() if reason is not None},
            "examples": [
                {
                    **kept_picture(each, series[each.name], walked.probabilities(each, steps)),
                    "p_entailment": {name: as_row(x) for name, x in walked.of_picture(each, curve).items()},
                }
                for each in kept
            ],
        }

    def tables(self, study: Study, values: Values) -> dict[str, Table]:
        return grounding_tables(study, values)


@dataclass(frozen=True, eq=False)
class _Walked:
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
    def over(cls, trained: Trained, gallery: Gallery, sentence: str, *, steps: list[int]) -> _Walked:
        said = [each.example for shown in gallery.shown for each in shown.said]
        others = with_sentence(gallery, sentence, trained.prepared)
        found, diverged = _walk(trained, seen_by_arm([*said, *others], trained), steps)
        rows = found.unbind(1)
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

    def probabilities(self, shown: Shown, steps: Sequence[int]) -> Float[Tensor, "T C"]:
        """Of the true statement."""
        return self.at(self.said[shown.true.example.id], steps)

    def of_picture(self, shown: Shown, steps: Sequence[int]) -> dict[str, Float[Tensor, " T"]]:
        """P(entailment) with the true statement, a wrong one if there is any, and the irrelevant sentence."""
        wrong = shown.first(CONTRADICTION)
        rows = {"true": self.said[shown.true.example.id]}
        rows |= {"wrong": self.said[wrong.example.id]} if wrong is not None else {}
        rows["irrelevant"] = self.irrelevant[shown.name]
        return {name: self.at(each, steps)[:, self.entailment] for name, each in rows.items()}

    def means(self, steps: Sequence[int]) -> dict[str, list[float]]:
        """Over pictures; those whose logits are not finite are left out."""
        curves = [self.of_picture(shown, steps) for shown in self.gallery.shown]
        names = [name for name in SENTENCES if any(name in each for each in curves)]
        stacked = {name: torch.stack([each[name] for each in curves if name in each]).double() for name in names}
        return {name: [float(x) for x in rows.nanmean(0)] for name, rows in stacked.items()}


def _walk(trained: Trained, examples: list[Example], steps: list[int]) -> tuple[Float[Tensor, "S N C"], int]:
    """Probabilities at each step, and how many samples stopped being finite; those are read where they last were."""
    model: Any = trained.model
    rows, diverged = [], 0
    with torch.no_grad(), held_still(model):
        for batch in batched(examples, trained.data):
            case = open_case(model, batch.features, batch.masks)
            logits: dict[int, Tensor] = {}

            def look(k: int, state: State, case: Any = case, logits: dict[int, Tensor] = logits) -> None:
                if k in steps:
                    logits[k] = case.read(state)

            solution = case.walk(steps[-1], trajectory=look)
            last = case.read(solution.state)  # where the walk broke off because every sample had diverged
            rows.append(torch.stack([logits.get(k, last) for k in steps]).float().softmax(-1).cpu())
            diverged += int((stopped_at(solution) >= 0).sum())
    return torch.cat(rows, dim=1), diverged


def _accuracy(walked: _Walked, gallery: Gallery, trained: Trained, *, steps: list[int]) -> dict[str, Any]:
    """Of all that is said of the pictures: which of the read set's own labels is likeliest?

    A set with fewer labels than the model has, such as COD10K without `neutral`, is thereby read as a choice between
    its own; `all_labels` counts an answer outside of them as wrong.
    """
    known = list(trained.data.labels)
    said = [each for shown in gallery.shown for each in shown.said]
    rows = torch.stack([walked.at(walked.said[each.example.id], steps) for each in said], dim=1)
    own = [known.index(label) for label in gallery.labels]
    target = torch.tensor([known.index(each.label) for each in said])
    finite = rows.isfinite().all(-1)
    among_own = torch.tensor(own)[rows[..., own].argmax(-1)]
    found: dict[str, Any] = {
        "steps": steps,
        "samples": len(said),
        "score": [float(x) for x in ((among_own == target) & finite).double().mean(1)],
    }
    if set(own) != set(range(len(known))):
        found["all_labels"] = [float(x) for x in ((rows.argmax(-1) == target) & finite).double().mean(1)]
    return found
