"""The studies by name: what each asks, on which data sets it makes sense, and how it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meq.data.request import DataRequest
from meq.data.table_files import is_table
from meq.options import nearest
from meq.registry import Registry
from meq.studies import laboratory
from meq.studies.settings import FULL, TABLE, Setting, read_by, setting_for
from meq.studies.study import PAPER, ArmConfig, Study, StudyError
from meq.studies.untrained import UNTRAINED
from meq.tables import Table

FACTORS = (1.0, 1 / 3, 3.0, 0.1, 10.0)
"""Learning rates that are tried, as multiples of an arm's own, nearest first."""
TINY = "statements-tiny"
WHOLE_PAPER = """All studies of the paper on all data sets that are there, and its tables as it prints them.

The argument is a roots file, TOML, which says where each data set lies; folders start from the file's own:

    snli-ve = "data/snli_ve"
    cod10k = "data/COD10K-v3"
    scenes = true                                   # generated, nothing to point at
    vcr = { root = "fixtures/vcr", smoke = true }   # a few updates, to see that everything runs

A set that is not there is named and left out. Runs that several studies ask for are made once. Without a roots file the
quick form runs on the generated sets. Its studies train for half the epochs of their own quick forms.

Command: meq study run paper roots.toml
Duration: days on a GPU in full form, an hour and a half on two cores with --quick and no roots file.
Expect: on the paper's sets, its tables beside ours with `meq study table FOLDER --paper`."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A study without its data set: what it asks, and the sets it can run on."""

    make: Callable[[Setting], Study]
    on: tuple[str, ...] = tuple(FULL)
    """The data sets it makes sense for; the first is the default."""

    @property
    def text(self) -> str:
        """What it asks, and what is in it."""
        return inspect.cleandoc(self.make.__doc__ or "")


_EVERY = tuple(dict.fromkeys(("scenes", *FULL, TABLE)))
"""The first is what a study runs on unless another is named."""
_PICTURES = tuple(name for name in _EVERY if name not in ("mosei", "statements", *laboratory.TRAILS))
_TOKENS = tuple(name for name in _EVERY if name not in ("mosei", TABLE))
_LABELLED_TEST = ("duels", "relay", "scenes", "statements", "easy-vqa", "snli-ve")
"""Sets with one answer, or one per token, and a test split that has its labels."""
_ONE_ANSWER = tuple(name for name in _EVERY if name not in laboratory.TRAILS)
"""Not those with an answer per token, which needs no pooling."""

STUDIES: Registry[Recipe] = Registry(
    "study",
    {
        "main": Recipe(make=laboratory.main, on=_EVERY),
        "ablation": Recipe(make=laboratory.ablation, on=_EVERY),
        "mixer": Recipe(make=laboratory.mixer, on=_TOKENS),
        "readout": Recipe(make=laboratory.readout, on=tuple(name for name in _TOKENS if name in _ONE_ANSWER)),
        "state-design": Recipe(make=laboratory.state_design, on=_ONE_ANSWER),
        "modality": Recipe(make=laboratory.modality, on=_EVERY),
        "residual-penalty": Recipe(make=laboratory.residual_penalty, on=_EVERY),
        "safeguards": Recipe(make=laboratory.safeguards, on=_EVERY),
        "jacobian-range": Recipe(make=laboratory.jacobian_range, on=_EVERY),
        "solvers": Recipe(make=laboratory.solvers, on=_EVERY),
        "gradients": Recipe(make=laboratory.gradients, on=_EVERY),
        "robustness": Recipe(make=laboratory.robustness, on=_PICTURES),
        "cod10k": Recipe(make=laboratory.cod10k, on=_ONE_ANSWER),
        "fixed-point": Recipe(make=laboratory.fixed_point, on=_EVERY),
        "steps": Recipe(make=laboratory.steps, on=_EVERY),
        "grounding": Recipe(make=laboratory.grounding, on=("scenes", "snli-ve")),
        "tree-order": Recipe(make=laboratory.tree_order, on=(TABLE, "mosei")),
        "hops": Recipe(make=laboratory.hops, on=("scenes",)),
        "duels": Recipe(make=laboratory.trail, on=("duels",)),
        "relay": Recipe(make=laboratory.relay, on=("relay",)),
        "depth": Recipe(make=laboratory.depth, on=_EVERY),
        "anytime": Recipe(make=laboratory.anytime, on=_LABELLED_TEST),
        "demo": Recipe(make=laboratory.demo, on=laboratory.TRAILS),
    },
    error=StudyError,
)


def register_study(
    name: str, *, on: Sequence[str]
) -> Callable[[Callable[[Setting], Study]], Callable[[Setting], Study]]:
    """Let a function that makes a study be run by name; `on` are the data sets that it makes sense for."""

    def decorate(make: Callable[[Setting], Study]) -> Callable[[Setting], Study]:
        STUDIES.add(name, Recipe(make=make, on=tuple(on)))
        return make

    return decorate


def make_study(
    name: str,
    data: str | DataRequest | None = None,
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    rates: int = 1,
    measure_on: str | None = None,
    encoders: Mapping[str, str | None] = MappingProxyType({}),
    standardise: bool | None = None,
) -> Study:
    """The study of that name on a data set, or on a table; `rates` learning rates are tried for every arm.

    `encoders`, by kind of content (image, text, regions, audio), and `standardise`, of numbers that come with the data,
    say how the set is read, in place of the setting's own. `measure_on` is the split that measures read: unless given
    dev on the paper's sets, as in its tables, and on others test where that is labelled.
    """
    if name == TINY:
        return laboratory.statements_tiny()
    found = find_recipe(name)
    data = data or found.on[0]
    asked = data.data if isinstance(data, DataRequest) else data
    if (TABLE if is_table(asked) else asked) not in found.on:
        raise StudyError(f"the study {name!r} makes no sense on {asked!r}; it runs on {', '.join(found.on)}")
    setting = read_by(setting_for(data, quick=quick, seeds=seeds), encoders, standardise)
    parts = [name, setting.data.name if setting.data.name != name else "", setting.data.options.get("form", "")]
    study = replace(found.make(setting), name="-".join([*filter(None, parts), *(["quick"] if quick else [])]))
    if measure_on is not None:
        if not any("split" in _options(each) for each in study.measures):
            raise StudyError(f"no measure of the study {study.name!r} reads a split: leave out `measure_on`")
        study = with_measures(study, {"split": measure_on})
    elif setting.data.name in BENCHMARKS:
        chosen = [each for each in study.measures if each != ELSEWHERE and "split" in _options(each)]
        study = replace(
            study, measures={**study.measures, **{each: {"split": "dev", **study.measures[each]} for each in chosen}}
        )
    return study if rates == 1 else _with_trials(study, rates)


BENCHMARKS = ("snli-ve", "hateful-memes", "vqa-v2", "vcr", "mosei", "cod10k")
"""The paper's; its tables are of dev."""
ELSEWHERE = "grounding"
"""The measure that may read another data set than that of training."""


def with_measures(study: Study, options: Mapping[str, Any]) -> Study:
    """The study with other options of those of its measures that have them."""
    known = {name: _options(name) for name in study.measures}
    for option in options:
        if not any(option in names for names in known.values()):
            every = sorted({each for names in known.values() for each in names})
            why = nearest(option, every) if every else "it takes none"
            raise StudyError(f"no measure of the study {study.name!r} has an option {option!r}: {why}")
    changed = {
        name: {**given, **{key: value for key, value in options.items() if key in known[name]}}
        for name, given in study.measures.items()
    }
    return replace(study, measures=changed)


def _options(measure: str) -> list[str]:
    from meq.studies.measures import MEASURES  # with torch, which the lists of studies do without

    return list(inspect.signature(MEASURES.get(measure)).parameters)


def find_recipe(name: str) -> Recipe:
    if name not in STUDIES:
        raise StudyError(f"there is no study {name!r}: {nearest(name, [*STUDIES, *UNTRAINED, PAPER, TINY])}")
    return STUDIES[name]


def describe(name: str) -> str:
    """What a study asks and what is in it, for `meq study list NAME`."""
    if name in UNTRAINED:
        return UNTRAINED[name]
    if name == PAPER:
        return WHOLE_PAPER
    if name == TINY:
        return inspect.cleandoc(laboratory.statements_tiny.__doc__ or "")
    return find_recipe(name).text


def _with_trials(study: Study, rates: int) -> Study:
    """Every arm at the same number of learning rates; the best on dev of each arm stands for it."""
    if not 1 <= rates <= len(FACTORS):
        raise StudyError(f"a study tries 1 to {len(FACTORS)} learning rates for every arm, not {rates}")
    if any(arm.floor_from for arm in study.arms):
        raise StudyError(f"{study.name!r} takes values from one arm into another: try one learning rate")

    def at(arm: ArmConfig, factor: float) -> ArmConfig:
        """The arm at a multiple of its learning rate; it is matched to the other arm's at the same multiple."""
        suffix = f"rate-x{factor:.2g}".replace(".", "-")
        scaled = float(arm.train.get("learning_rate", study.train.learning_rate)) * factor
        match = arm.match and replace(arm.match, to=f"{arm.match.to}-{suffix}")
        return replace(arm, name=f"{arm.name}-{suffix}", train={**arm.train, "learning_rate": scaled}, match=match)

    variants = {arm.name: [at(arm, factor) for factor in FACTORS[:rates]] for arm in study.arms}
    groups = {name: tuple(each.name for each in arms) for name, arms in variants.items()}
    groups |= {name: tuple(one for arm in members for one in groups[arm]) for name, members in study.groups.items()}
    return replace(
        study,
        name=f"{study.name}-{rates}-rates",
        arms=tuple(each for arms in variants.values() for each in arms),
        groups=groups,
        reference=groups[study.reference][0],
    )


def studies_table() -> Table:
    """The studies that can be run by name, and what each of them asks."""
    rows = []
    for name, recipe in STUDIES.items():
        others = [data for data in (*FULL, TABLE) if data not in recipe.on]
        on = ", ".join(recipe.on)
        if len(others) < len(recipe.on):  # the shorter list: those that it does not run on
            on = "any set" + (f" but {', '.join(others)}" if others else "")
        rows.append({"study": name, "asks": recipe.text.splitlines()[0], "on": on})
    rows += [{"study": name, "asks": text, "on": "nothing is trained"} for name, text in UNTRAINED.items()]
    rows.append({"study": PAPER, "asks": WHOLE_PAPER.splitlines()[0], "on": "all sets that a roots file names"})
    return Table.of("Studies; more about one: meq study list NAME", rows)
