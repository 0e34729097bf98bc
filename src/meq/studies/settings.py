"""What each data set is trained with, and the arms of the paper's comparisons for any such setting.

The full form has the paper's hyperparameters; the quick form is meant for two cores.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from meq.data.request import DATA_SETS, DataRequest
from meq.data.table_columns import modality_named
from meq.data.table_files import is_table
from meq.encoders.catalogue import OFFLINE, offline_is_installed
from meq.options import nearest
from meq.studies.paper import PAPER
from meq.studies.study import ArmConfig, DataConfig, MatchedSize, Study, StudyError
from meq.training.arms import ARMS
from meq.training.config import TrainConfig

TABLE = "table"
IMAGE_AND_TEXT = ("image", "text")
SEEDS = (42, 43, 44)
RESIDUAL, RANGE = "residual-correction", "jacobian-range"
"""The penalties of the paper's objective."""
WIDTH = 768


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set and the recipe by which every arm is trained on it."""

    data: DataConfig
    modalities: tuple[str, ...] = IMAGE_AND_TEXT
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Options of the models; each takes those it has."""
    order: Any = None
    """How a merge tree puts the modalities together; None where the paper couples them directly."""
    lambda_j: float = 0.5
    lambda_f: float = 0.3
    probes: int = 1
    train: TrainConfig = field(default_factory=TrainConfig)
    seeds: tuple[int, ...] = SEEDS
    quick: bool = False
    depth: str = "fixed"
    """How deep the updates of arms that iterate go, see `TrainConfig.depth`."""
    kinds: tuple[str, ...] = ()
    """What its statements are made of, from shallow to deep; empty where examples have no depth."""

    def kind(self, modality: str) -> str:
        """What a modality holds: image, regions, text, audio, or features."""
        if self.data.name != TABLE:
            return "regions" if (self.data.name, modality) == ("vcr", "image") else modality
        columns = {kind: self.data.options.get(f"{kind}s", ()) for kind in ("image", "text", "audio")}
        return next((k for k, names in columns.items() if modality in map(modality_named, names)), "features")

    @property
    def penalties(self) -> dict[str, dict[str, Any]]:
        """Those of the paper's objective that have a weight."""
        jacobian = {RANGE: {"weight": self.lambda_j, "probes": self.probes}} if self.lambda_j else {}
        return {**jacobian, **({RESIDUAL: {"weight": self.lambda_f}} if self.lambda_f else {})}


def setting_for(data: str | DataRequest, *, quick: bool = False, seeds: Sequence[int] | None = None) -> Setting:
    """The setting of a data set by its name, or of a table of the user's."""
    request = data if isinstance(data, DataRequest) else DataRequest(data=data)
    if is_table(request.data):
        found = _table(request, quick)
    elif request.data in FULL:
        found = QUICK[request.data] if quick else FULL[request.data]
    elif request.data in DATA_SETS:  # one of the user's own, which the paper does not train on
        found = Setting(data=DataConfig(name=request.data), shape=SMALL, train=SHORT, quick=quick)
    else:
        raise StudyError(
            f"no study knows the data set {request.data!r}: {nearest(request.data, FULL)} Or give a table of your own."
        )
    if request.options and not is_table(request.data):
        options = {**found.data.options, **request.options}
        found = replace(
            found, data=replace(found.data, options=options), kinds=tuple(options.get("kinds", found.kinds))
        )
    return found if not seeds else replace(found, seeds=tuple(seeds))


READERS = {"image": "clip", "text": "bert"}


def _paper(
    name: str,
    train: TrainConfig,
    *,
    damping: float | str = 0.5,
    encoders: Mapping[str, str] = MappingProxyType(READERS),
    standardise: bool = False,
    **rest: Any,
) -> Setting:
    """Width 768, 8 heads, K = 10: what all of the paper's benchmarks share."""
    data = DataConfig(name=name, options=rest.pop("options", {}), encoders=dict(encoders), standardise=standardise)
    shape = {"dim": WIDTH, "heads": 8, "steps": 10, "damping": damping, **rest.pop("shape", {})}
    return Setting(data=data, shape=shape, train=train, **rest)


SMALL = {"dim": 64, "heads": 4, "steps": 6, "damping": 0.5, "hidden": 128, "head_width": 128}
SHORT = TrainConfig(epochs=12, batch_size=64, learning_rate=1e-3)
DEPTHS = ("existence", "binding")

TRAIL = Setting(
    data=DataConfig(name="duels", options={"train": 28_800, "dev": 360, "test": 270, "deep_test": 270}),
    shape={"dim": 64, "heads": 4, "steps": 8, "damping": 1.0, "gate": False, "hidden": 64, "head_width": 64},
    lambda_j=0.0,
    lambda_f=0.0,
    train=TrainConfig(epochs=1, batch_size=32, learning_rate=2e-3, scale_inputs=2.0),
    depth="settle(2, 8, free=40, tracked=4)",
)
"""Every example is seen once; read where problems of the trained depth need four steps, with as many to spare.

No gate: it opens late, and learning takes longer (docs/log.md)."""

FULL: Mapping[str, Setting] = {
    "snli-ve": _paper("snli-ve", TrainConfig(epochs=10, batch_size=32), damping="learned", probes=5),
    "hateful-memes": _paper("hateful-memes", TrainConfig(epochs=10, batch_size=32)),
    "vcr": _paper("vcr", TrainConfig(epochs=15, batch_size=8), options={"first": 5000}),
    "mosei": _paper(
        "mosei",
        TrainConfig(epochs=8, batch_size=32, learning_rate=2e-5, weight_decay=1e-4),
        damping="learned",
        probes=5,
        # of words where the files have them; what comes as numbers has scales of its own, standardised by train
        encoders={"text": "bert"},
        standardise=True,
        options={"vectors": True, "text": "auto"},
        shape={"mixer": "mlp"},
        modalities=("image", "audio", "text"),
        order=[["image", "audio"], "text"],
    ),
    "vqa-v2": _paper("vqa-v2", TrainConfig(epochs=10, batch_size=32), lambda_f=0.0),
    "cod10k": _paper("cod10k", TrainConfig(epochs=10, batch_size=32)),
    "scenes": Setting(
        data=DataConfig(name="scenes"),
        shape={**SMALL, "steps": 10, "hidden": 256},
        train=replace(SHORT, epochs=20),
        kinds=DEPTHS,
    ),
    "statements": Setting(
        data=DataConfig(name="statements"), shape={**SMALL, "steps": 10, "hidden": 256}, train=replace(SHORT, epochs=20)
    ),
    "duels": TRAIL,
    "relay": replace(TRAIL, data=DataConfig(name="relay", options={**TRAIL.data.options, "train": 19_200})),
    "easy-vqa": Setting(data=DataConfig(name="easy-vqa"), shape={**SMALL, "steps": 10}, train=SHORT),
}
"""The paper's five benchmarks and COD10K with its hyperparameters; sets that it does not have, with ours."""


def _quickened(setting: Setting) -> Setting:
    """The same comparison at a size for two cores: narrow states, few steps, offline encoders, a part of the data."""
    shape = {**setting.shape, **SMALL, "damping": setting.shape["damping"]}
    encoders = {name: OFFLINE[name] for name in setting.data.encoders}
    data = replace(setting.data, encoders=encoders, limit=4800)
    train = replace(setting.train, batch_size=32, epochs=8, learning_rate=1e-3)
    return replace(setting, data=data, shape=shape, train=train, probes=1, quick=True)


QUICK: Mapping[str, Setting] = {
    **{name: _quickened(setting) for name, setting in FULL.items()},
    **{name: replace(FULL[name], quick=True) for name in ("duels", "relay")},
    "scenes": Setting(data=DataConfig(name="scenes"), shape=SMALL, train=SHORT, kinds=DEPTHS, quick=True),
    "statements": Setting(data=DataConfig(name="statements"), shape=SMALL, train=replace(SHORT, epochs=8), quick=True),
}


def read_by(setting: Setting, encoders: Mapping[str, str | None], standardise: bool | None = None) -> Setting:
    """The setting with other encoders, by kind of content, and with numbers standardised or not."""
    found = dict(setting.data.encoders)
    for kind, name in encoders.items():
        if name is None:
            continue
        mine = [modality for modality in setting.modalities if setting.kind(modality) == kind]
        if not mine:
            kinds = ", ".join(dict.fromkeys(map(setting.kind, setting.modalities)))
            raise StudyError(
                f"{setting.data.name} has nothing of the kind {kind!r} that {name!r} could read; it has {kinds}"
            )
        found |= dict.fromkeys(mine, name)
    scaled = setting.data.standardise if standardise is None else standardise
    options = dict(setting.data.options)
    if encoders.get("text") is not None and options.get("text") == "auto":
        options["text"] = "raw"  # who names an encoder of words wants words: files without any are an error
    return replace(setting, data=replace(setting.data, encoders=found, standardise=scaled, options=options))


def _table(request: DataRequest, quick: bool) -> Setting:
    """A user's table: every column is a modality; pictures and texts are read offline, where the extra is installed."""
    columns = {"images": request.images, "texts": request.texts, "audios": request.audios, "vectors": request.vectors}
    modalities = tuple(modality_named(name) for names in columns.values() for name in names)
    if len(modalities) < 2:
        raise StudyError(
            f"{request.data}: a study needs two columns to learn from, got {', '.join(modalities) or 'none'}"
        )
    places = {"label": request.label, "split": request.split, "group": request.group, "task": request.task}
    options = {**{name: list(names) for name, names in columns.items() if names}, **places, **request.options}
    read_by = {"image": request.images, "text": request.texts}
    encoders = {
        modality_named(name): OFFLINE[kind]
        for kind, names in read_by.items()
        for name in names
        if offline_is_installed(kind)
    }
    vectors_only = not (request.images or request.texts or request.audios)
    data = DataConfig(
        name=TABLE,
        options={name: value for name, value in options.items() if value is not None},
        encoders=encoders,
        standardise=vectors_only,
    )
    shape = {**SMALL, "mixer": "mlp"} if vectors_only else {**SMALL, "steps": 6 if quick else 10}
    order = [list(modalities[:2]), modalities[2]] if len(modalities) == 3 else None
    epochs = 12 if quick else 20
    train = TrainConfig(epochs=epochs, batch_size=32, learning_rate=1e-3)
    return Setting(data=data, modalities=modalities, shape=shape, order=order, train=train, quick=quick)


# -- arms --------------------------------------------------------------------------------------------------------------


EQUILIBRIUM = "meq"
WHOLE_MODEL = MatchedSize(to=EQUILIBRIUM)
SHARED = ("dim", "heads", "head_width", "steps", "damping", "gate")
"""What a baseline has from the setting; its inner width is matched."""
ITERATED = ("single-state", "single-vector", "feature-sum")


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
        train=_train_of(setting),
    )


def graph(setting: Setting, name: str = EQUILIBRIUM, **options: Any) -> ArmConfig:
    """All modalities coupled directly, also where the paper has a tree."""
    return replace(equilibrium(replace(setting, order=None), name), options={**setting.shape, **options})


def baseline(
    setting: Setting,
    model: str,
    name: str | None = None,
    *,
    match: MatchedSize | None = WHOLE_MODEL,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> ArmConfig:
    """A baseline, as large as the equilibrium unless told otherwise, with further options of its own."""
    takes = inspect.signature(ARMS[model].model).parameters
    shared = {key: setting.shape[key] for key in SHARED if key in setting.shape and key in takes}
    iterates = model in ITERATED
    return ArmConfig(
        name=name or model,
        model=model,
        options={**shared, **options},
        penalties=setting.penalties if iterates else {},
        train=_train_of(setting) if iterates else {},
        match=match,
    )


def _train_of(setting: Setting) -> dict[str, Any]:
    """What arms that iterate are trained with besides."""
    return {} if setting.depth == "fixed" else {"depth": setting.depth}


def study_of(
    setting: Setting,
    question: str,
    arms: Sequence[ArmConfig],
    *,
    reference: str = EQUILIBRIUM,
    seeds: Sequence[int] | None = None,
    paper: str | None = None,
    groups: Mapping[str, tuple[str, ...]] | None = None,
    measures: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Sequence[str] = (),
) -> Study:
    """A study of these arms on the setting's data, by its recipe; `make_study` gives it its name.

    `paper` is the table of the paper that is shown beside it, on the data sets for which the paper has figures; `notes`
    say which arms this setting cannot have, or has in another form.
    """
    published = f"{paper}/{setting.data.name}"
    return Study(
        name="study",
        question=question,
        data=setting.data,
        arms=tuple(arms),
        seeds=setting.seeds if seeds is None else tuple(seeds),
        reference=reference,
        train=setting.train,
        paper=published if published in PAPER else None,
        groups=groups or {},
        measures=measures or {},
        notes=tuple(notes),
    )


def by_kind(setting: Setting) -> dict[str, Any]:
    """The option of the measure `steps` that tells examples of different depth apart, where there are such."""
    return {"by": "kind"} if setting.kinds else {}


def with_penalty(arm: ArmConfig, name: str, options: Mapping[str, Any]) -> ArmConfig:
    """The arm with one penalty changed or added."""
    return replace(arm, penalties={**arm.penalties, name: dict(options)})


def only(arm: ArmConfig, kept: str, modalities: Sequence[str]) -> ArmConfig:
    """The arm, trained and read with all other modalities zeroed."""
    prefix = "" if arm.name == EQUILIBRIUM else f"{arm.name}-"
    return replace(
        arm, name=f"{prefix}{in_a_name(kept)}-only", blank=tuple(name for name in modalities if name != kept)
    )


def in_a_name(modality: str) -> str:
    """A modality as a part of an arm's name: columns of tables may be called anything."""
    return re.sub(r"[^a-z0-9]+", "-", modality.lower()).strip("-") or "column"
