"""From a study's plain values to data, models and objectives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.registry import open_data
from meq.data.standardise import standardise
from meq.encoders import choose_encoders, encode
from meq.experiments.study import ArmConfig, DataConfig, Study, StudyError
from meq.models.base import FusionModel
from meq.objectives import CrossFloor, JacobianRange, Objective, ResidualCorrection
from meq.objectives.penalty import Penalty
from meq.training.recipes import ARMS, make_model
from meq.training.record import Provenance
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
    raw = any(modality.width is None for modality in data.modalities.values())
    source = data.fingerprint() if raw else None
    if raw:
        data = encode(data, choose_encoders(data, config.encoders), store=store)
    statistics = None
    if config.standardise:
        data, statistics = standardise(data)
    return data, Provenance(source_fingerprint=source, standardisation=statistics)


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
