"""Other inputs made ready as the study's own data was: the same encoders, the same store, the same standardisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meq.data.blanking import blank
from meq.data.contract import DataSet, Example, Modality
from meq.data.standardise import Standardisation
from meq.encoders import Encoder, encode
from meq.encoders.builtin import SIDE, Patches
from meq.encoders.regions import PictureRegions
from meq.experiments.build import Prepared
from meq.experiments.measures.contract import Trained
from meq.experiments.study import StudyError

USUAL_SIZE = 224
"""Pixels of a side that picture encoders read, where one does not tell."""


def raw_of(prepared: Prepared, measure: str) -> DataSet:
    """The set before it was encoded."""
    if prepared.raw is None:
        raise StudyError(
            f"{prepared.data.name} came as features: the measure {measure!r} changes pictures and texts, and there are "
            "none; run it on a set that is encoded"
        )
    return prepared.raw


def encode_alike(data: DataSet, prepared: Prepared) -> DataSet:
    """Pictures and texts as features, in the scale of the study's own; the set may have some of its modalities only."""
    encoders = {name: encoder for name, encoder in prepared.encoders.items() if name in data.modalities}
    encoded = encode(data, encoders, store=prepared.places.store)
    known = prepared.provenance.standardisation
    if known is None:
        return encoded
    mean = {name: row for name, row in known.mean.items() if name in data.modalities}
    return Standardisation(mean=mean, std={name: known.std[name] for name in mean}).apply(encoded)


def only(data: DataSet, modalities: Sequence[str], examples: Sequence[Example]) -> DataSet:
    """These examples, and of what they hold these modalities."""
    kept = [
        replace(each, content={name: each.content[name] for name in modalities if name in each.content})
        for each in examples
    ]
    some: dict[str, Modality] = {name: data.modalities[name] for name in modalities}
    return replace(data, splits={"read": kept}, modalities=some)


def seen_by_arm(examples: Sequence[Example], trained: Trained) -> list[Example]:
    """Encoded examples as the arm sees them: with zeros in the modalities that it does not read."""
    if not trained.arm.blank:
        return list(examples)
    return list(
        blank(replace(trained.prepared.data, splits={"read": list(examples)}), trained.arm.blank).splits["read"]
    )


def encoder_size(encoder: Encoder) -> int:
    """The shorter side, in pixels, of the pictures that an encoder looks at."""
    if isinstance(encoder, Patches):
        return encoder.grid * SIDE
    window = getattr(encoder.encoder if isinstance(encoder, PictureRegions) else encoder, "window", None)
    return USUAL_SIZE if window is None else min(window)
