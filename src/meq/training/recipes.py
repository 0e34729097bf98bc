"""What the command line can train so far, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from meq import models
from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.findings import Findings, OnBad
from meq.data.request import DataRequest
from meq.data.standardise import standardise
from meq.encoders.choice import encoders_by_kind
from meq.encoders.encode import encode
from meq.models.base import FusionModel
from meq.objectives import JacobianRange, Objective, ResidualCorrection
from meq.training.config import TrainConfig
from meq.training.fit import Training
from meq.training.record import Provenance, RunRecord
from meq.training.seeds import seed_everything

ARMS: Mapping[str, tuple[Callable[..., FusionModel], dict[str, Any]]] = {
    "meq": (models.MutualEquilibrium, {}),
    "meq-gmlp": (models.MutualEquilibrium, {"mixer": "gmlp"}),
    "concat": (models.Concat, {}),
    "self-attention": (models.SelfAttention, {}),
    "cross-attention": (models.CrossAttention, {}),
    "low-rank": (models.LowRankFusion, {}),
    "single-state": (models.SingleState, {}),
    "feature-sum": (models.FeatureSum, {}),
}


def prepare(
    request: DataRequest,
    encoders: Mapping[str, str | None],
    *,
    store: Path | None = None,
    skip_bad: bool = False,
    standardised: bool = True,
) -> tuple[DataSet, Provenance]:
    """The data set that was asked for, read and encoded, and where its features come from.

    `encoders` maps kinds of content to encoders' names; what has none of its own gets the built-in one of its kind.
    Numbers that come with the data are standardised by the train split; what encoders make is left as it is.
    """
    on_bad: OnBad = "skip" if skip_bad else "raise"
    data, statistics = request.open(Findings(on_bad)), None
    if standardised and any(modality.kind == "features" for modality in data.modalities.values()):
        data, statistics = standardise(data)
    chosen = encoders_by_kind(data, encoders)
    if not chosen:
        return data, Provenance(standardisation=statistics)
    encoded = encode(data, chosen, store=store, on_bad=on_bad)
    return encoded, Provenance(source_fingerprint=data.fingerprint(), standardisation=statistics)


def make_model(arm: str, data: DataSet, shape: Mapping[str, Any]) -> FusionModel:
    """An arm for a data set; of `shape` it takes the options it has."""
    if arm not in ARMS:
        raise ValueError(f"there is no arm {arm!r}: {nearest(arm, ARMS)}")
    build, fixed = ARMS[arm]
    if fixed.get("mixer") == "gmlp":
        fixed = {**fixed, "max_tokens": _longest(data)}
    known = inspect.signature(build).parameters
    options = {name: value for name, value in shape.items() if name in known}
    return build(dict(data.widths), len(data.labels), head=data.head, **fixed, **options)


def train_arm(
    data: DataSet,
    arm: str,
    folder: Path,
    config: TrainConfig,
    shape: Mapping[str, Any],
    *,
    lambda_j: float,
    lambda_f: float,
    resume: bool,
    provenance: Provenance | None = None,
) -> RunRecord | None:
    """Train; the record on the first process, None on the others."""
    seed_everything(config.seed)
    model = make_model(arm, data, shape)
    penalties = (JacobianRange(weight=lambda_j), ResidualCorrection(weight=lambda_f))
    objective = Objective(task=data.head, penalties=penalties if model.operator is not None else ())
    training = Training(model, data, objective, folder, config, provenance=provenance)
    record = training.run(resume=resume)
    return record if training.main else None


def _longest(data: DataSet) -> dict[str, int]:
    examples = [example for split in data.splits.values() for example in split]
    return {
        name: max(len(x) for example in examples if isinstance(x := example.content.get(name), Tensor))
        for name in data.widths
    }
