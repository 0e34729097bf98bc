"""From a study's plain values to data, models and objectives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.registry import open_data
from meq.data.standardise import standardise
from meq.encoders import Encoder, default_encoders, encode
from meq.encoders.catalogue import make_encoder
from meq.experiments.study import ArmConfig, DataConfig, Study, StudyError
from meq.models.base import FusionModel
from meq.objectives import CrossFloor, JacobianRange, Objective, ResidualCorrection
from meq.objectives.penalty import Penalty
from meq.training.recipes import ARMS, make_model
from meq.training.record import EncoderFacts, Provenance
from meq.training.seeds import seed_everything

PENALTIES: Mapping[str, Callable[..., Penalty]] = {
    "jacobian-range": JacobianRange,
    "residual-correction": ResidualCorrection,
    "cross-floor": CrossFloor,
}


def prepare_data(
    config: DataConfig, root: Path | None = None, *, store: Path | None = None
) -> tuple[DataSet, Provenance]:
    """The data set as features, and where they come from. Features of pictures and texts are kept in `store`."""
    data = open_data(config.name, root, **config.options)
    raw = [name for name, modality in data.modalities.items() if modality.width is None]
    source = data.fingerprint() if raw else None
    encoders = _encoders(data, config.encoders, raw)
    if encoders:
        data = encode(data, encoders, store=store)
    statistics = None
    if config.standardise:
        data, statistics = standardise(data)
    facts = {name: encoder_facts(encoder) for name, encoder in encoders.items()}
    return data, Provenance(source_fingerprint=source, encoders=facts, standardisation=statistics)


def encoder_facts(encoder: Encoder) -> EncoderFacts:
    return EncoderFacts(name=encoder.name, revision=encoder.revision, sha256=encoder.weight_hash)


def build_model(study: Study, arm: ArmConfig, data: DataSet, seed: int) -> FusionModel:
    """The arm's model with the initial weights of that seed."""
    if arm.model not in ARMS:
        raise StudyError(
            f"the arm {arm.name!r} of {study.name!r}: there is no model {arm.model!r}: {nearest(arm.model, ARMS)}"
        )
    build, fixed = ARMS[arm.model]
    known = [name for name in inspect.signature(build).parameters if name not in ("widths", "classes", "head", *fixed)]
    for name in arm.options:
        if name not in known:
            raise StudyError(f"the arm {arm.name!r}: {arm.model!r} has no option {name!r}: {nearest(name, known)}")
    seed_everything(seed)
    return make_model(arm.model, data, arm.options)


def build_objective(arm: ArmConfig, data: DataSet) -> Objective:
    penalties = []
    for name, options in arm.penalties.items():
        if name not in PENALTIES:
            raise StudyError(f"the arm {arm.name!r}: there is no penalty {name!r}: {nearest(name, PENALTIES)}")
        penalties.append(PENALTIES[name](**options))
    return Objective(task=data.head, penalties=tuple(penalties))


def _encoders(data: DataSet, names: Mapping[str, str], raw: list[str]) -> dict[str, Encoder]:
    """One for each modality that is not features yet: the one that is named for it, or the built-in one."""
    for modality in names:
        if modality not in raw:
            raise StudyError(f"{data.name} has no modality {modality!r} to encode: {nearest(modality, raw)}")
    unnamed = [name for name in raw if name not in names]
    chosen = {name: make_encoder(encoder, data.modalities[name].kind) for name, encoder in names.items()}
    if not unnamed:
        return chosen
    rest = replace(data, modalities={name: data.modalities[name] for name in unnamed})
    return {**chosen, **default_encoders(rest)}
