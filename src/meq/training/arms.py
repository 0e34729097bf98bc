"""The models that can be trained by name, and their training with the penalties of the paper.

Listing them imports none: torch and what needs it are imported by the functions that build or train.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meq.core.registry import made_backward, made_solver
from meq.data.request import check_option_values
from meq.registry import Registry, imported
from meq.training.config import TrainConfig

if TYPE_CHECKING:
    from meq.data.contract import DataSet
    from meq.models.base import FusionModel
    from meq.objectives.penalties import Penalty
    from meq.training.record import Provenance, RunRecord

Model = TypeVar("Model", bound="type[FusionModel]")
GIVEN = ("widths", "classes", "head", "answering")
"""What every model is told by the data."""
PAPER: Mapping[str, Mapping[str, Any]] = {"jacobian-range": {"weight": 0.5}, "residual-correction": {"weight": 0.3}}
"""The penalties of the paper, by name, with their options."""


@dataclass(frozen=True)
class Arm:
    """A model, and the options that its name stands for."""

    source: str | type[FusionModel]
    """The class, or "module:name" of it, which is imported when a model is built."""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Callable[..., FusionModel]:
        found: Callable[..., FusionModel] = imported(self.source)
        return found

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """What can be set: neither what the data tells nor what the name fixes."""
        parameters = inspect.signature(self.model).parameters
        return {name: each for name, each in parameters.items() if name not in (*GIVEN, *self.fixed)}

    def check(self, options: Mapping[str, Any], label: str) -> None:
        """An error for an option that the model does not have, or whose value is of another kind."""
        read: Any = self.model
        check_option_values(options, read.__init__, label, without=("self", *GIVEN, *self.fixed))


ARMS: Registry[Arm] = Registry(
    "arm",
    {
        "meq": Arm("meq.models:MutualEquilibrium"),
        "meq-gmlp": Arm("meq.models:MutualEquilibrium", {"mixer": "gmlp"}),
        "tree": Arm("meq.models:EquilibriumTree"),
        "concat": Arm("meq.models:Concat"),
        "self-attention": Arm("meq.models:SelfAttention"),
        "cross-attention": Arm("meq.models:CrossAttention"),
        "low-rank": Arm("meq.models:LowRankFusion"),
        "single-state": Arm("meq.models:SingleState"),
        "single-vector": Arm("meq.models:SingleVector"),
        "feature-sum": Arm("meq.models:FeatureSum"),
    },
)
SHAPE: Mapping[str, Any] = {"dim": 64, "heads": 4, "steps": 8, "dropout": 0.0}
"""The size of a model that nobody has given another size."""


def register_arm(name: str, **fixed: Any) -> Callable[[Model], Model]:
    """Let a fusion model be trained by a name, with `meq train --arm NAME` or in a study; `fixed` are options of it."""

    def decorate(model: Model) -> Model:
        ARMS.add(name, Arm(model, fixed))
        return model

    return decorate


def model_options(
    arm: str, parts: Mapping[str, Mapping[str, Any]], *, solver: str | None = None, backward: str | None = None
) -> dict[str, Any]:
    """Options of an arm as its model takes them, or an error.

    `parts` has plain values: those of the "model" itself, of its "solver" and of its "backward", which have names.
    """
    made = dict(parts.get("model", {}))
    if solver is not None or "solver" in parts:
        made["solver"] = made_solver({"name": solver or "Damped", **parts.get("solver", {})})
    if backward is not None or "backward" in parts:
        made["backward"] = made_backward({"name": backward or "Unrolled", **parts.get("backward", {})})
    ARMS[arm].check(made, f"the arm {arm!r}")
    return made


def make_penalties(penalties: Mapping[str, Mapping[str, Any]]) -> tuple[Penalty, ...]:
    """Penalties by name, with their options."""
    from meq.objectives import PENALTIES

    for name, options in penalties.items():
        check_option_values(options, PENALTIES.get(name), f"the penalty {name!r}")
    return tuple(PENALTIES.get(name)(**options) for name, options in penalties.items())


def check_recipe(arm: str, shape: Mapping[str, Any], penalties: Mapping[str, Mapping[str, Any]] = PAPER) -> None:
    """An error if no model of that arm and shape can be built, whatever the data. No memory is taken for it."""
    import torch

    make_penalties(penalties)
    any_two = {"image": 1, "text": 1}
    lengths = {"max_tokens": any_two} if _needs_lengths(arm, shape) else {}
    with torch.device("meta"):
        _build(arm, any_two, {**shape, **lengths}, classes=2)


def _needs_lengths(arm: str, shape: Mapping[str, Any]) -> bool:
    return ARMS[arm].fixed.get("mixer") == "gmlp" and "max_tokens" not in shape


def make_model(arm: str, data: DataSet, shape: Mapping[str, Any]) -> FusionModel:
    """An arm for a data set; of `shape` it takes the options it has."""
    if _needs_lengths(arm, shape):
        shape = {**shape, "max_tokens": longest(data)}
    told = {"head": data.head, "answering": tuple(data.answering) or None}
    return _build(arm, dict(data.widths), {**shape, **told}, classes=len(data.labels))


def _build(arm: str, widths: Mapping[str, int], shape: Mapping[str, Any], *, classes: int) -> FusionModel:
    """A tree that was told no order merges modality after modality, in the order of the data."""
    build, fixed = ARMS[arm].model, ARMS[arm].fixed
    known = inspect.signature(build).parameters
    options = {name: value for name, value in {**shape, **fixed}.items() if name in known}
    if "order" in known and "order" not in options:
        order, *others = widths
        for name in others:  # [["a", "b"], "c"]
            order = [order, name]  # type: ignore[assignment]
        options["order"] = order
    return build(widths, classes, **options)


FITTED = ("epochs", "batch_size", "patience", "least_updates")
"""Options that follow from the data, or from the run that is resumed, unless somebody gives them."""
UPDATES_PER_EPOCH, LEAST_BATCH = 4, 8
"""Of a small train split: how many updates an epoch should have, and the batch that is not made smaller for it."""


def fitted_to(config: TrainConfig, data: DataSet, *, given: Collection[str] = ()) -> TrainConfig:
    """The recipe for a train split of this size, but for the options that were `given`.

    A small table is no reason to fail, nor to make a handful of updates: the batch is made smaller, so that an epoch
    has several updates, and epochs are added until there are `least_updates`.
    """
    sharing = int(os.environ.get("WORLD_SIZE", "1")) * config.accumulate
    most = len(data.splits["train"]) // sharing
    if "batch_size" not in given:
        wanted = min(config.batch_size, max(LEAST_BATCH, most // UPDATES_PER_EPOCH))
        config = replace(config, batch_size=max(1, min(wanted, most)))
    updates = max(1, most // config.batch_size)
    needed = -(-config.least_updates // updates)
    return config if "epochs" in given or needed <= config.epochs else replace(config, epochs=needed)


def fixed_by(config: TrainConfig | None, epochs: int | None) -> tuple[str, ...]:
    """The options that `fitted_to` leaves alone, where somebody gave a whole recipe, or a number of epochs."""
    return FITTED if config is not None else () if epochs is None else ("epochs",)


def fitted_in_words(config: TrainConfig, fitted: TrainConfig) -> str | None:
    """What `fitted_to` has changed about the epochs; None where it has not."""
    if fitted.epochs == config.epochs:
        return None
    return (
        f"a small train split: {fitted.epochs} epochs instead of {config.epochs}, which make at least "
        f"{config.least_updates} updates with batches of {fitted.batch_size}"
    )


def resumed(config: TrainConfig, folder: Path, *, given: Collection[str] = ()) -> TrainConfig:
    """The recipe with what the run in this folder was begun with, but for the options that were `given`."""
    from meq.training.config import PLAIN
    from meq.training.record import read_record

    began = read_record(folder).config
    return replace(config, **{x: began.get(x, getattr(PLAIN, x)) for x in FITTED if x not in given})


def train_arm(
    data: DataSet,
    arm: str,
    folder: Path,
    config: TrainConfig,
    shape: Mapping[str, Any],
    *,
    penalties: Mapping[str, Mapping[str, Any]] = PAPER,
    resume: bool = False,
    provenance: Provenance | None = None,
    device: str | None = None,
) -> RunRecord | None:
    """Train; the record on the first process, None on the others. A model that does not iterate has no penalties."""
    from meq.objectives import Objective
    from meq.training.fit import Training
    from meq.training.updates import seed_everything

    seed_everything(config.seed)
    model = make_model(arm, data, shape)
    iterates = model.operator is not None
    objective = Objective(task=data.head, penalties=make_penalties(penalties) if iterates else ())
    training = Training(model, data, objective, folder, config, provenance=provenance, device=device)
    record = training.run(resume=resume)
    return record if training.main else None


def longest(data: DataSet) -> dict[str, int]:
    """The most tokens that an example has, by modality; of encoded ones nothing is read but the index."""
    from meq.data.contract import Rows, tensors_of

    lengths = dict.fromkeys(data.widths, 0)
    for split in data.splits.values():
        known: set[str] = set()
        if isinstance(split, Rows) and split.lengths is not None and len(split):
            for row in split.rows:
                for name, count in split.lengths(row).items():
                    known.add(name)
                    lengths[name] = max(lengths[name], count)
        unknown = [name for name in lengths if name not in known]
        for example in split if unknown else ():
            for name in unknown:
                counts = [len(x) if x.ndim > 1 else 1 for x in tensors_of(example.content.get(name))]
                lengths[name] = max(lengths[name], *counts, 0)
    return lengths
