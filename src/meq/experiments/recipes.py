"""The studies by name: what each asks, on which data sets it makes sense, and how it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from meq.core.options import nearest
from meq.data.request import DataRequest
from meq.data.table_files import is_table
from meq.experiments.arms import trials
from meq.experiments.laboratory import ablations, behaviour, comparisons, machinery
from meq.experiments.settings import FULL, TABLE, Setting, setting_for
from meq.experiments.study import Study, StudyError
from meq.experiments.untrained import UNTRAINED

FACTORS = (1.0, 1 / 3, 3.0, 0.1, 10.0)
"""Learning rates that are tried, as multiples of an arm's own, nearest first."""
TINY = "statements-tiny"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A study before it is told what to run on."""

    make: Callable[[Setting], Study]
    on: tuple[str, ...] = tuple(FULL)
    """The data sets it makes sense for; the first is the default."""

    @property
    def text(self) -> str:
        """What it asks, and what is in it."""
        return inspect.cleandoc(self.make.__doc__ or "")


def _first(name: str, *others: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((name, *others)))


_EVERY = _first("scenes", *FULL, TABLE)
_PICTURES = tuple(name for name in _EVERY if name not in ("mosei", "statements"))
_TOKENS = tuple(name for name in _EVERY if name not in ("mosei", TABLE))

STUDIES: Mapping[str, Recipe] = {
    "main": Recipe(make=comparisons.main, on=_EVERY),
    "ablation": Recipe(make=ablations.ablation, on=_EVERY),
    "mixer": Recipe(make=comparisons.mixer, on=_TOKENS),
    "readout": Recipe(make=comparisons.readout, on=_TOKENS),
    "state-design": Recipe(make=comparisons.state_design, on=_EVERY),
    "modality": Recipe(make=ablations.modality, on=_EVERY),
    "residual-penalty": Recipe(make=ablations.residual_penalty, on=_EVERY),
    "safeguards": Recipe(make=ablations.safeguards, on=_EVERY),
    "jacobian-range": Recipe(make=ablations.jacobian_range, on=_EVERY),
    "solvers": Recipe(make=ablations.solvers, on=_EVERY),
    "robustness": Recipe(make=behaviour.robustness, on=_PICTURES),
    "cod10k": Recipe(make=comparisons.cod10k, on=_EVERY),
    "fixed-point": Recipe(make=behaviour.fixed_point, on=_EVERY),
    "steps": Recipe(make=behaviour.steps, on=_EVERY),
    "grounding": Recipe(make=behaviour.grounding, on=("scenes", "snli-ve")),
    "tree-order": Recipe(make=comparisons.tree_order, on=(TABLE, "mosei")),
    "hops": Recipe(make=behaviour.hops, on=("scenes",)),
    "demo": Recipe(make=comparisons.demo, on=_EVERY),
}


def make_study(
    name: str,
    data: str | DataRequest | None = None,
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    rates: int = 1,
) -> Study:
    """The study of that name on a data set, or on a table; `rates` learning rates are tried for every arm."""
    if name == TINY:
        return machinery.statements_tiny()
    found = find_recipe(name)
    data = data or found.on[0]
    asked = data.data if isinstance(data, DataRequest) else data
    if (TABLE if is_table(asked) else asked) not in found.on:
        raise StudyError(f"the study {name!r} makes no sense on {asked!r}; it runs on {', '.join(found.on)}")
    setting = setting_for(data, quick=quick, seeds=seeds)
    study = replace(found.make(setting), name="-".join([name, setting.data.name, *(["quick"] if quick else [])]))
    return study if rates == 1 else _with_trials(study, rates)


def find_recipe(name: str) -> Recipe:
    if name not in STUDIES:
        raise StudyError(f"there is no study {name!r}: {nearest(name, [*STUDIES, *UNTRAINED, TINY])}")
    return STUDIES[name]


def describe(name: str) -> str:
    """What a study says of itself."""
    if name in UNTRAINED:
        return UNTRAINED[name]
    if name == TINY:
        return inspect.cleandoc(machinery.statements_tiny.__doc__ or "")
    return find_recipe(name).text


def _with_trials(study: Study, rates: int) -> Study:
    """The same number of learning rates for every arm; the best on dev of each arm stands for it."""
    if not 1 <= rates <= len(FACTORS):
        raise StudyError(f"a study tries 1 to {len(FACTORS)} learning rates for every arm, not {rates}")
    if any(arm.floor_from for arm in study.arms):
        raise StudyError(f"{study.name!r} takes values from one arm into another: try one learning rate")
    arms, groups = trials(study.arms, study.train.learning_rate, FACTORS[:rates])
    groups |= {name: tuple(one for arm in members for one in groups[arm]) for name, members in study.groups.items()}
    reference = groups[study.reference][0]
    return replace(study, name=f"{study.name}-{rates}-rates", arms=arms, groups=groups, reference=reference)
