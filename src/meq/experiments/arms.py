"""The arms of the paper's comparisons, for any setting."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meq.experiments.settings import Setting
from meq.experiments.study import ArmConfig, Matched
from meq.training.recipes import ARMS

EQUILIBRIUM = "meq"
WHOLE_MODEL = Matched(to=EQUILIBRIUM)


def equilibrium(setting: Setting, name: str = EQUILIBRIUM, *, without: Sequence[str] = (), **options: Any) -> ArmConfig:
    """The mutual equilibrium as the setting has it, some options changed; `without` names penalties that are left out.

    Where the paper merges modalities by a tree, so does this arm.
    """
    penalties = {key: value for key, value in setting.penalties.items() if key not in without}
    tree = {"order": setting.order} if setting.order is not None else {}
    return ArmConfig(
        name=name,
        model="tree" if tree else "meq",
        options={**setting.shape, **tree, **options},
        penalties=penalties,
    )


def graph(setting: Setting, name: str = EQUILIBRIUM, **options: Any) -> ArmConfig:
    """All modalities coupled directly, also where the paper has a tree."""
    return replace(equilibrium(replace(setting, order=None), name), options={**setting.shape, **options})


def baseline(
    setting: Setting, model: str, name: str | None = None, *, match: Matched | None = WHOLE_MODEL
) -> ArmConfig:
    """A baseline, as large as the equilibrium unless told otherwise."""
    takes = inspect.signature(ARMS[model][0]).parameters
    options = {key: setting.shape[key] for key in SHARED if key in setting.shape and key in takes}
    penalties = setting.penalties if model in ITERATED else {}
    return ArmConfig(name=name or model, model=model, options=options, penalties=penalties, match=match)


SHARED = ("dim", "heads", "head_width", "steps", "damping")
"""What a baseline has from the setting; its inner width is matched."""
ITERATED = ("single-state", "feature-sum")


def with_penalty(arm: ArmConfig, name: str, options: Mapping[str, Any]) -> ArmConfig:
    """The arm with one penalty changed or added."""
    return replace(arm, penalties={**arm.penalties, name: dict(options)})


def without_options(arm: ArmConfig, *names: str) -> ArmConfig:
    return replace(arm, options={key: value for key, value in arm.options.items() if key not in names})


def only(arm: ArmConfig, kept: str, modalities: Sequence[str]) -> ArmConfig:
    """The arm, trained and read with all other modalities zeroed."""
    prefix = "" if arm.name == EQUILIBRIUM else f"{arm.name}-"
    slug = kept.lower().replace("_", "-")
    return replace(arm, name=f"{prefix}{slug}-only", blank=tuple(name for name in modalities if name != kept))


def trials(
    arms: Sequence[ArmConfig], rate: float, factors: Sequence[float]
) -> tuple[tuple[ArmConfig, ...], dict[str, tuple[str, ...]]]:
    """Every arm with several learning rates, and the groups of which the best on dev is shown."""
    made = {arm.name: [_slower(arm, rate, factor) for factor in factors] for arm in arms}
    groups = {name: tuple(each.name for each in variants) for name, variants in made.items()}
    return tuple(each for variants in made.values() for each in variants), groups


def _slower(arm: ArmConfig, rate: float, factor: float) -> ArmConfig:
    """The arm at a multiple of its learning rate; it is matched to the other arm's at the same multiple."""
    suffix = f"rate-x{factor:.2g}".replace(".", "-")
    scaled = float(arm.train.get("learning_rate", rate)) * factor
    match = arm.match and replace(arm.match, to=f"{arm.match.to}-{suffix}")
    return replace(arm, name=f"{arm.name}-{suffix}", train={**arm.train, "learning_rate": scaled}, match=match)
