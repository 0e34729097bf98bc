"""What the command line trains: arms by name, data read and encoded."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from meq import models
from meq.core.options import nearest
from meq.data.contract import DataSet, tensors_of
from meq.data.findings import Finding, Findings
from meq.data.request import DataRequest
from meq.data.standardise import standardise
from meq.data.table_files import is_table
from meq.encoders.choice import OFFLINE, check_request, encoders_by_kind, encoding_device, preferred_names
from meq.encoders.encode import encode_and_count
from meq.encoders.survey import Progress
from meq.models.base import FusionModel
from meq.objectives import JacobianRange, Objective, ResidualCorrection
from meq.training.config import TrainConfig
from meq.training.fit import Training
from meq.training.record import Provenance, RunRecord
from meq.training.request import RunRequest
from meq.training.seeds import seed_everything

ARMS: Mapping[str, tuple[Callable[..., FusionModel], dict[str, Any]]] = {
    "meq": (models.MutualEquilibrium, {}),
    "meq-gmlp": (models.MutualEquilibrium, {"mixer": "gmlp"}),
    "tree": (models.EquilibriumTree, {}),
    "concat": (models.Concat, {}),
    "self-attention": (models.SelfAttention, {}),
    "cross-attention": (models.CrossAttention, {}),
    "low-rank": (models.LowRankFusion, {}),
    "single-state": (models.SingleState, {}),
    "feature-sum": (models.FeatureSum, {}),
}


SHAPE: Mapping[str, Any] = {"dim": 64, "heads": 4, "steps": 8, "dropout": 0.0}
"""The size of a model that nobody has given another size."""
SHOWN = 5
"""How many bad rows are named one by one."""


def prepare(
    request: DataRequest,
    encoders: Mapping[str, str | None],
    *,
    store: Path | None = None,
    skip_bad: bool = False,
    standardised: bool = True,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda words: None,
    check: Callable[[DataSet], None] = lambda data: None,
) -> tuple[DataSet, Provenance]:
    """The data set that was asked for, read and encoded, and where its features come from.

    `encoders` maps kinds of content to encoders' names. What has none of its own gets, in a table, an encoder whose
    weights came with pip if it is installed, and otherwise the built-in one of its kind. Numbers that come with the
    data are standardised by the train split; what encoders make is left as it is. `say` is told what is done. `check`
    may refuse the data once it is read and before it is encoded.
    """
    check_request(request, encoders)
    findings = Findings("skip" if skip_bad else "raise")
    data, statistics = request.open(findings), None
    check(data)
    if standardised and any(modality.kind == "features" for modality in data.modalities.values()):
        data, statistics = standardise(data)
    named = {kind: name for kind, name in encoders.items() if name is not None}
    if is_table(request.data):
        named = preferred_names(data, encoders)
    chosen = encoders_by_kind(data, named, device=encoding_device())
    provenance = Provenance(
        standardisation=statistics,
        kinds={name: encoder.kind for name, encoder in chosen.items()},
        request=RunRequest.of(request, named, store=store, skip_bad=skip_bad),
    )
    if not chosen:
        say_left_out(findings, say)
        return data, provenance
    _say_encoders({name: encoder.name for name, encoder in chosen.items()}, named, encoders, say)
    encoded = encode_and_count(data, chosen, store=store, on_bad=findings.on_bad, progress=progress)
    say_left_out([*findings, *encoded.findings], say)
    return encoded.data, replace(provenance, source_fingerprint=data.fingerprint())


def _say_encoders(
    used: Mapping[str, str], named: Mapping[str, str], asked: Mapping[str, str | None], say: Callable[[str], None]
) -> None:
    say("encoders: " + ", ".join(f"{modality} by {name}" for modality, name in used.items()))
    fallen_back = [
        kind for kind in OFFLINE if kind in named and asked.get(kind) is None and named[kind] != OFFLINE[kind]
    ]
    if fallen_back:
        say(f"better encoders of {' and '.join(fallen_back)} come with: pip install 'meq[offline]'")


def say_left_out(findings: Findings | Sequence[Finding], say: Callable[[str], None]) -> None:
    """How many rows were left out, and the first of them with their places."""
    found = list(findings)
    if not found:
        return
    say(f"left out as bad: {len(findings):,}")
    for finding in found[:SHOWN]:
        say(f"  {finding}")
    if len(findings) > SHOWN:
        say(f"  and {len(findings) - SHOWN:,} more")


def check_recipe(arm: str, shape: Mapping[str, Any], *, lambda_j: float = 0.5, lambda_f: float = 0.3) -> None:
    """An error if no model of that arm and shape can be built, whatever the data. No memory is taken for it."""
    _check_arm(arm)
    for name, weight in (("lambda_j", lambda_j), ("lambda_f", lambda_f)):
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{name} must be 0 (off) or a positive number, got {weight}")
    any_two = {"image": 1, "text": 1}
    lengths = {"max_tokens": any_two} if _needs_lengths(arm, shape) else {}
    with torch.device("meta"):
        _build(arm, any_two, {**shape, **lengths}, classes=2)


def _needs_lengths(arm: str, shape: Mapping[str, Any]) -> bool:
    return ARMS[arm][1].get("mixer") == "gmlp" and "max_tokens" not in shape


def _check_arm(arm: str) -> None:
    if arm not in ARMS:
        raise ValueError(f"there is no arm {arm!r}: {nearest(arm, ARMS)}")


def make_model(arm: str, data: DataSet, shape: Mapping[str, Any]) -> FusionModel:
    """An arm for a data set; of `shape` it takes the options it has."""
    _check_arm(arm)
    if _needs_lengths(arm, shape):
        shape = {**shape, "max_tokens": longest(data)}
    return _build(arm, dict(data.widths), {**shape, "head": data.head}, classes=len(data.labels))


def _build(arm: str, widths: Mapping[str, int], shape: Mapping[str, Any], *, classes: int) -> FusionModel:
    """A tree that was told no order merges modality after modality, in the order of the data."""
    build, fixed = ARMS[arm]
    known = inspect.signature(build).parameters
    options = {name: value for name, value in {**shape, **fixed}.items() if name in known}
    if "order" in known and "order" not in options:
        options["order"] = _one_after_the_other(list(widths))
    return build(widths, classes, **options)


def _one_after_the_other(names: Sequence[str]) -> Any:
    """["a", "b", "c"] as [["a", "b"], "c"]."""
    order: Any = names[0]
    for name in names[1:]:
        order = [order, name]
    return order


def fitted_to(config: TrainConfig, data: DataSet) -> TrainConfig:
    """The recipe with a batch no larger than the train split allows: a small table is no reason to fail."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    most = len(data.splits["train"]) // (processes * config.accumulate)
    return replace(config, batch_size=max(1, min(config.batch_size, most)))


def train_arm(
    data: DataSet,
    arm: str,
    folder: Path,
    config: TrainConfig,
    shape: Mapping[str, Any],
    *,
    lambda_j: float = 0.5,
    lambda_f: float = 0.3,
    resume: bool = False,
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


def longest(data: DataSet) -> dict[str, int]:
    """The most tokens that an example has, by modality."""
    lengths = dict.fromkeys(data.widths, 0)
    for split in data.splits.values():
        for example in split:
            for name in lengths:
                counts = [len(x) if x.ndim > 1 else 1 for x in tensors_of(example.content.get(name))]
                lengths[name] = max(lengths[name], *counts, 0)
    return lengths
