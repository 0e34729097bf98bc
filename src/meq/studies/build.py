"""From a study's plain values to data, models and objectives."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from meq.core.backward import Backward
from meq.core.registry import made_backward, made_solver
from meq.core.solvers import Solver
from meq.data.contract import DataSet, Example, tensors_of
from meq.data.request import DataRequest, open_data
from meq.data.table_files import is_table
from meq.data.transforms import blank
from meq.devices import chosen_device
from meq.encoders import Encoder, choose_encoders
from meq.encoders.store import FeatureStore
from meq.models.base import FusionModel
from meq.models.iterated import IteratedModel
from meq.models.match import count_flops, match_flops, match_parameters
from meq.objectives import PENALTIES, Objective
from meq.options import nearest
from meq.studies.settings import TABLE
from meq.studies.study import ArmConfig, DataConfig, MatchedSize, Study, StudyError
from meq.training.arms import ARMS, longest, make_model
from meq.training.prepare import prepare
from meq.training.record import Provenance
from meq.training.updates import seed_everything

TOLERANCES = {"model": 0.02, "block": 0.02, "flops": 0.25}
"""How far the best size may be off: sizes are whole numbers, layers above all."""
WIDTH = "dim"
TYPICAL = 200
"""Train examples whose mean number of tokens stands for the data when FLOPs are matched."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things lie on this machine: no part of a study, which can be run elsewhere."""

    data: Path | None = None
    """The data set's folder, or a table."""
    files: Path | None = None
    """The folder that the paths in a table start from."""
    store: Path | FeatureStore | None = None
    """A folder that keeps encoded features."""
    read: Path | None = None
    """The folder of a second data set, which a measure reads."""
    device: str | None = None
    """Where encoders, training and measures compute; the accelerator that is found unless given."""


def places_of(
    data: str | None,
    root: Path | None,
    *,
    store: Path | None = None,
    read: Path | None = None,
    device: str | None = None,
) -> Places:
    """Where data lies that was asked for: a table is a file, whose own paths start from `root`; else that is it."""
    if data is not None and is_table(data):
        return Places(data=Path(data), files=root, store=store, read=read, device=device)
    return Places(data=root, store=store, read=read, device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedData:
    """A data set as features, and what they were made from."""

    data: DataSet
    provenance: Provenance = field(default_factory=Provenance)
    raw: DataSet | None = None
    """Before it was encoded; None for a set that came as features."""
    encoders: Mapping[str, Encoder] = field(default_factory=dict)
    places: Places = field(default_factory=Places)

    def seen_by(self, arm: ArmConfig) -> DataSet:
        """The data as one arm sees it."""
        return blank(self.data, arm.blank) if arm.blank else self.data


def prepare_data(config: DataConfig, places: Places | None = None) -> PreparedData:
    """The data set as features. Those of pictures and texts are kept in the store, if there is one."""
    places = places or Places()
    raw = open_raw(config, places)
    needed = any(modality.width is None for modality in raw.modalities.values())
    encoders = choose_encoders(raw, config.encoders, device=chosen_device(places.device)) if needed else {}
    numbers = [name for name, modality in raw.modalities.items() if modality.kind == "features"]
    scaled = (numbers or list(raw.modalities)) if config.standardise else None  # where all is encoded, that is
    data, statistics = prepare(raw, encoders, standardised=scaled, store=places.store)
    source = raw if statistics is None or not numbers else statistics.apply(raw)
    provenance = Provenance(
        source_fingerprint=source.fingerprint() if encoders else None,
        standardisation=statistics,
        kinds={name: encoder.kind for name, encoder in encoders.items()},
        specs={name: encoder.spec for name, encoder in encoders.items()},
    )
    return PreparedData(
        data=data, provenance=provenance, raw=raw if encoders else None, encoders=encoders, places=places
    )


def build_model(study: Study, arm: ArmConfig, data: DataSet, seed: int) -> FusionModel:
    """The arm's model with the initial weights of that seed, its size matched, its solver in place."""
    options = sized_options(study, arm, data)
    if options.get("order") == "random":
        drawn: list[Any] = random.Random(seed).sample(list(data.widths), len(data.widths))
        options["order"] = reduce(lambda order, name: (order, name), drawn)  # two first, then the others one by one
    seed_everything(seed)
    model = make_model(arm.model, data, options)
    set_iteration(model, arm)
    return model


def sized_options(study: Study, arm: ArmConfig, data: DataSet) -> dict[str, Any]:
    """The arm's options, with the size that matches another arm."""
    check_arm(study, arm)
    options = dict(arm.options)
    if arm.model == "meq-gmlp":  # read off the data once, not for every size that is tried
        options["max_tokens"] = longest(data)
    if arm.match is None:
        return options
    other = study.arm(arm.match.to)
    if other.match is not None:
        raise StudyError(f"{study.name!r}: {arm.name!r} is matched to {other.name!r}, which is itself matched")
    others = sized_options(study, other, data)
    typical = _typical_shapes(data) if arm.match.part == "flops" else {}
    # a study asks for every run, and studies on one set for the same arms: dozens of models are built to find a size
    asked = (
        arm.model,
        arm.match,
        options,
        other.model,
        others,
        data.widths,
        data.head,
        len(data.labels),
        data.answering,
    )
    key = repr((asked, typical))
    if key not in SIZES:
        SIZES[key] = _matched_sizes(arm, arm.match, options, other, others, data, typical)
    return {**options, **SIZES[key]}


SIZES: dict[str, dict[str, int]] = {}
"""The sizes that were found, by all that they depend on."""


def build_objective(arm: ArmConfig, data: DataSet, floors: Mapping[str, float] | None = None) -> Objective:
    """The task and the arm's penalties; `floors` are those of a cross-floor that another arm's run sets.

    Before that run is over there are none: a floor of 0 stands for them, so that the arm can be built and its needs
    estimated.
    """
    _check_penalties(arm)
    penalties = []
    for name, options in arm.penalties.items():
        known: Any = 0.0 if floors is None else dict(floors)
        extra = {"floors": known} if name == "cross-floor" and arm.floor_from else {}
        penalties.append(PENALTIES.get(name)(**options, **extra))
    return Objective(task=data.head, penalties=tuple(penalties))


def check_arm(study: Study, arm: ArmConfig) -> None:
    """What can be said of an arm before there is any data: whether there is such a model, solver and penalty."""
    if arm.model not in ARMS:
        raise StudyError(
            f"the arm {arm.name!r} of {study.name!r}: there is no model {arm.model!r}: {nearest(arm.model, ARMS)}"
        )
    known = ARMS[arm.model].options
    for name in arm.options:
        if name not in known:
            raise StudyError(f"the arm {arm.name!r}: {arm.model!r} has no option {name!r}: {nearest(name, known)}")
    _check_penalties(arm)
    _iteration(arm)


def set_iteration(model: FusionModel, arm: ArmConfig) -> None:
    """The solver and the backward that the arm asks for; they are saved with the model from then on."""
    for what, made in _iteration(arm).items():
        if not isinstance(model, IteratedModel):
            raise StudyError(f"the arm {arm.name!r}: {arm.model!r} does not iterate, it has no {what}")
        setattr(model, what, made)


def _iteration(arm: ArmConfig) -> dict[str, Solver | Backward | None]:
    """The solver and the backward that an arm names; an error if there are none such."""
    made: dict[str, Solver | Backward | None] = {}
    try:
        if arm.solver is not None:  # damped is the model's own iteration
            made["solver"] = None if arm.solver == "damped" else made_solver({"name": arm.solver})
        if arm.backward is not None:
            made["backward"] = made_backward({"name": arm.backward})
    except ValueError as error:
        raise StudyError(f"the arm {arm.name!r}: {error}") from error
    if (arm.backward, arm.solver or "damped", arm.options.get("damping")) == ("implicit", "damped", "learned"):
        raise StudyError(
            f"the arm {arm.name!r} learns its damping, on which the equilibrium does not depend: with the backward "
            "'implicit' it would have no gradient. Give a constant damping, or the backward unrolled, checkpointed or "
            "phantom"
        )
    return made


def open_raw(config: DataConfig, places: Places) -> DataSet:
    """A study's data before it is encoded."""
    if config.name != TABLE:
        data = open_data(config.name, places.data, **config.options)
    elif places.data is None:
        raise StudyError("the study runs on a table of which it does not know the place: say which file")
    else:
        columns = {each.name for each in dataclasses.fields(DataRequest)}
        named = {name: value for name, value in config.options.items() if name in columns}
        rest = {name: value for name, value in config.options.items() if name not in columns}
        data = DataRequest(data=str(places.data), root=places.files, options=rest, **named).open()
    if config.limit is None:
        return data
    return replace(data, splits={name: split[: config.limit] for name, split in data.splits.items()})


def _check_penalties(arm: ArmConfig) -> None:
    for name in arm.penalties:
        if name not in PENALTIES:
            raise StudyError(f"the arm {arm.name!r}: there is no penalty {name!r}: {nearest(name, PENALTIES)}")


def _matched_sizes(
    arm: ArmConfig,
    match: MatchedSize,
    options: dict[str, Any],
    other: ArmConfig,
    others: dict[str, Any],
    data: DataSet,
    typical: Mapping[str, list[int]],
) -> dict[str, int]:
    """The options that are chosen, by name."""

    def build(size: int, name: str = match.size, **more: int) -> FusionModel:
        return make_model(arm.model, data, {**options, name: size, **more})

    def target(_: int) -> FusionModel:
        return make_model(other.model, data, {**others, **({"tol": 0.0} if match.part == "flops" else {})})

    tolerance = TOLERANCES[match.part]
    if match.part == "flops":
        features = {name: torch.zeros(1, *typical[name], width) for name, width in data.widths.items()}
        wanted = count_flops(target, 0, features)
        return {match.size: match_flops(build, wanted, features, tolerance=tolerance).size}
    with torch.device("meta"):
        wanted = target(0).count_parameters(match.part)
    if match.size != WIDTH:
        return {match.size: match_parameters(build, wanted, part=match.part, tolerance=tolerance).size}
    heads = options.get("heads", 1)
    near = match_parameters(lambda size: build(size * heads), wanted, part=match.part, tolerance=1.0)
    width = heads * (near.size - (near.reached > wanted))
    inner = match_parameters(lambda size: build(width, hidden=size), wanted, part=match.part, tolerance=tolerance)
    return {WIDTH: width, "hidden": inner.size}


def _typical_shapes(data: DataSet) -> dict[str, list[int]]:
    few = list(data.splits["train"][:TYPICAL])
    return {name: _typical_shape(few, name) for name in data.widths}


def _typical_shape(examples: Sequence[Example], name: str) -> list[int]:
    """What stands before the width: [tokens], [] for one vector, [choices, tokens] where there are choices."""
    contents = [content for each in examples if (content := each.content.get(name)) is not None]
    found = [x for content in contents for x in tensors_of(content)]
    if not found:
        raise StudyError(f"none of the first {len(examples)} train examples has the modality {name!r}: it has no size")
    tokens = round(sum(len(x) if x.ndim > 1 else 0 for x in found) / len(found))
    choices = next((len(content) for content in contents if isinstance(content, tuple)), None)
    if choices is not None:
        return [choices, max(1, tokens)]
    return [tokens] if tokens else []
