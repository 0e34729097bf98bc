"""From a study's plain values to data, models and objectives."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meq.core.backward import Backward
from meq.core.options import nearest
from meq.core.registry import BACKWARDS, SOLVERS
from meq.core.solvers import Solver
from meq.data.blanking import blank
from meq.data.contract import DataSet, Example, tensors_of
from meq.data.registry import open_data
from meq.data.request import DataRequest
from meq.data.standardise import standardise
from meq.data.table_files import is_table
from meq.encoders import Encoder, choose_encoders, encode
from meq.experiments.settings import TABLE
from meq.experiments.study import ArmConfig, DataConfig, Matched, Study, StudyError
from meq.models.base import FusionModel
from meq.models.iterated import Iterated
from meq.models.match import count_flops, match_flops, match_parameters
from meq.objectives import CrossFloor, JacobianRange, Objective, ResidualCorrection
from meq.objectives.penalty import Penalty
from meq.training.recipes import ARMS, longest, make_model
from meq.training.record import Provenance
from meq.training.seeds import seed_everything

PENALTIES: Mapping[str, Callable[..., Penalty]] = {
    "jacobian-range": JacobianRange,
    "residual-correction": ResidualCorrection,
    "cross-floor": CrossFloor,
}
TOLERANCES = {"model": 0.02, "block": 0.02, "flops": 0.25}
"""How far the best size may be off: sizes are whole numbers, layers above all."""
TYPICAL = 200
"""Train examples whose mean number of tokens stands for the data when FLOPs are matched."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things lie on this machine: no part of a study, which can be run elsewhere."""

    data: Path | None = None
    """The data set's folder, or a table."""
    files: Path | None = None
    """The folder that the paths in a table start from."""
    store: Path | None = None
    """A folder that keeps encoded features."""
    read: Path | None = None
    """The folder of a second data set, which a measure reads."""


def places_of(
    request: DataRequest | None, root: Path | None, *, store: Path | None = None, read: Path | None = None
) -> Places:
    """Where a request's data lies: a table is a file, whose own paths start from `root`; else `root` is the folder."""
    if request is not None and is_table(request.data):
        return Places(data=Path(request.data), files=root, store=store, read=read)
    return Places(data=root, store=store, read=read)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
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


def prepare_data(config: DataConfig, places: Places | None = None) -> Prepared:
    """The data set as features. Those of pictures and texts are kept in the store, if there is one."""
    places = places or Places()
    data = open_raw(config, places)
    raw, encoders, source = None, {}, None
    if any(modality.width is None for modality in data.modalities.values()):
        raw, source, encoders = data, data.fingerprint(), choose_encoders(data, config.encoders)
        data = encode(data, encoders, store=places.store)
    statistics = None
    if config.standardise:
        data, statistics = standardise(data)
    kinds = {name: encoder.kind for name, encoder in encoders.items()}
    provenance = Provenance(source_fingerprint=source, standardisation=statistics, kinds=kinds)
    return Prepared(data=data, provenance=provenance, raw=raw, encoders=encoders, places=places)


def build_model(study: Study, arm: ArmConfig, data: DataSet, seed: int) -> FusionModel:
    """The arm's model with the initial weights of that seed, its size matched, its solver in place."""
    options = sized_options(study, arm, data)
    if options.get("order") == "random":
        options["order"] = _drawn_order(list(data.widths), seed)
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
    return {
        **options,
        arm.match.size: _matched_size(arm, arm.match, options, other, sized_options(study, other, data), data),
    }


def build_objective(arm: ArmConfig, data: DataSet, floors: Mapping[str, float] | None = None) -> Objective:
    """The task and the arm's penalties; `floors` are those of a cross-floor that another arm's run sets."""
    _check_penalties(arm)
    penalties = []
    for name, options in arm.penalties.items():
        extra = {"floors": dict(floors or {})} if name == "cross-floor" and arm.floor_from else {}
        penalties.append(PENALTIES[name](**options, **extra))
    return Objective(task=data.head, penalties=tuple(penalties))


def check_arm(study: Study, arm: ArmConfig) -> None:
    """What can be said of an arm before there is any data: whether there is such a model, solver and penalty."""
    _check_options(study, arm)
    _check_penalties(arm)
    _check_iteration(arm)


def set_iteration(model: FusionModel, arm: ArmConfig) -> None:
    """The solver and the backward that the arm asks for; they are saved with the model from then on."""
    _check_iteration(arm)
    for what, name, known in (("solver", arm.solver, solvers()), ("backward", arm.backward, backwards())):
        if name is None:
            continue
        if not isinstance(model, Iterated):
            raise StudyError(f"the arm {arm.name!r}: {arm.model!r} does not iterate, it has no {what}")
        setattr(model, what, known[name]())


def solvers() -> dict[str, Callable[[], Solver | None]]:
    """By the names of a study, in small letters; "damped" is the model's own iteration."""
    return {**{name.lower(): cls for name, cls in SOLVERS.items()}, "damped": lambda: None}


def backwards() -> dict[str, Callable[[], Backward]]:
    return {name.lower(): cls for name, cls in BACKWARDS.items()}


def open_raw(config: DataConfig, places: Places) -> DataSet:
    """A study's data before it is encoded."""
    data = _opened(config, places)
    if config.limit is None:
        return data
    return replace(data, splits={name: split[: config.limit] for name, split in data.splits.items()})


def _opened(config: DataConfig, places: Places) -> DataSet:
    if config.name != TABLE:
        return open_data(config.name, places.data, **config.options)
    if places.data is None:
        raise StudyError("the study runs on a table of which it does not know the place: say which file")
    columns = {each.name for each in dataclasses.fields(DataRequest)}
    named = {name: value for name, value in config.options.items() if name in columns}
    rest = {name: value for name, value in config.options.items() if name not in columns}
    return DataRequest(data=str(places.data), root=places.files, options=rest, **named).open()


def _check_options(study: Study, arm: ArmConfig) -> None:
    if arm.model not in ARMS:
        raise StudyError(
            f"the arm {arm.name!r} of {study.name!r}: there is no model {arm.model!r}: {nearest(arm.model, ARMS)}"
        )
    build, fixed = ARMS[arm.model]
    known = [name for name in inspect.signature(build).parameters if name not in ("widths", "classes", "head", *fixed)]
    for name in arm.options:
        if name not in known:
            raise StudyError(f"the arm {arm.name!r}: {arm.model!r} has no option {name!r}: {nearest(name, known)}")


def _check_penalties(arm: ArmConfig) -> None:
    for name in arm.penalties:
        if name not in PENALTIES:
            raise StudyError(f"the arm {arm.name!r}: there is no penalty {name!r}: {nearest(name, PENALTIES)}")


def _check_iteration(arm: ArmConfig) -> None:
    for what, given, known in (("solver", arm.solver, solvers()), ("backward", arm.backward, backwards())):
        if given is not None and given not in known:
            raise StudyError(f"the arm {arm.name!r}: there is no {what} {given!r}: {nearest(given, known)}")
    if (arm.backward, arm.solver or "damped", arm.options.get("damping")) == ("implicit", "damped", "learned"):
        raise StudyError(
            f"the arm {arm.name!r} learns its damping, on which the equilibrium does not depend: with the backward "
            "'implicit' it would have no gradient. Give a constant damping, or the backward unrolled, checkpointed or "
            "phantom"
        )


def _matched_size(
    arm: ArmConfig, match: Matched, options: dict[str, Any], other: ArmConfig, others: dict[str, Any], data: DataSet
) -> int:
    def build(size: int) -> FusionModel:
        return make_model(arm.model, data, {**options, match.size: size})

    def target(_: int) -> FusionModel:
        return make_model(other.model, data, {**others, **({"tol": 0.0} if match.part == "flops" else {})})

    tolerance = TOLERANCES[match.part]
    if match.part == "flops":
        features = _typical(data)
        wanted = count_flops(target, 0, features)
        return match_flops(build, wanted, features, tolerance=tolerance).size
    with torch.device("meta"):
        wanted = target(0).count_parameters(match.part)
    return match_parameters(build, wanted, part=match.part, tolerance=tolerance).size


def _typical(data: DataSet) -> dict[str, Tensor]:
    """One sample with the mean number of tokens of each modality."""
    few = list(data.splits["train"][:TYPICAL])
    return {name: torch.zeros(1, *_typical_shape(few, name), width) for name, width in data.widths.items()}


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


def _drawn_order(modalities: list[str], seed: int) -> Any:
    """A random merge order: two of the modalities first, then the others one by one."""
    first, *rest = random.Random(seed).sample(modalities, len(modalities))
    order: Any = first
    for name in rest:
        order = (order, name)
    return order
