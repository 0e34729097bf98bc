"""The descriptive tables: data sets, encoders and hyperparameters, made from the code that uses them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.findings import DataError
from meq.data.registry import DATA_SETS, open_data
from meq.encoders.builtin import default_encoders
from meq.encoders.catalogue import ENCODERS
from meq.encoders.efficientnet import WIDTH as CELL_WIDTH
from meq.experiments.render import Cell, Column, Table
from meq.experiments.settings import FULL, Setting
from meq.models import MutualEquilibrium

SPLITS = ("train", "dev", "test")
NOT_HERE = "not here"
PUBLISHED = "paper (published)"
PAPER_COUNTS: Mapping[str, tuple[str, str]] = {
    "snli-ve": ("533K / 9.6K / 9.6K", "3"),
    "hateful-memes": ("8,500 / 500 / 1,000", "2"),
    "vqa-v2": ("193K / 21K / -", "3,129"),
    "vcr": ("212K / 26K / 25K", "4"),
    "mosei": ("16K / 2K / 5K", "7"),
}
"""Train / val / test, and classes, as the paper gives them; none of them was counted here."""
PAPER_ENCODERS: Mapping[str, str] = {
    "snli-ve": "CLIP image; BERT-base",
    "hateful-memes": "CLIP image; BERT-base",
    "vqa-v2": "CLIP image; BERT-base",
    "vcr": "CLIP image + RoI features; BERT-base",
    "mosei": "COVAREP (audio), FACET (visual); BERT-base",
}
PRETRAINED_WIDTHS = {"clip": 768, "bert": 768, "wav2vec2": 768, "minilm": 384, "cnn": CELL_WIDTH}
"""Numbers per token, known without loading the weights."""


def datasets_table(roots: Mapping[str, Path] | None = None, settings: Mapping[str, Setting] = FULL) -> Table:
    """What can be read and how much of it is here: generated sets always, others from the folders in `roots`."""
    roots = roots or {}
    for name in roots:
        if name not in DATA_SETS:
            raise DataError(f"there is no data set {name!r}: {nearest(name, DATA_SETS)}")
    columns = (
        Column(key="data", title="data set"),
        Column(key="task", title="task"),
        Column(key="metric", title="metric"),
        *(Column(key=split, title=split) for split in SPLITS),
        Column(key="classes", title="classes"),
        Column(key="paper_counts", title=f"{PUBLISHED}: train / val / test"),
        Column(key="paper_classes", title="its classes"),
    )
    return Table(
        title="datasets: what is learned from",
        columns=columns,
        rows=tuple(_data_row(name, roots.get(name), settings.get(name)) for name in DATA_SETS),
        notes=(
            "Counted in the data that is here, with the options that studies use; a split without labels is not "
            f"counted. {PUBLISHED}: not counted here; its splits are not all the official ones.",
        ),
    )


def encoders_table(settings: Mapping[str, Setting] = FULL) -> Table:
    """Which encoder reads which modality unless another is named, and what it is."""
    columns = (
        Column(key="data", title="data set"),
        Column(key="modality", title="modality"),
        Column(key="encoder", title="encoder"),
        Column(key="reads", title="can read"),
        Column(key="width", title="width"),
        Column(key="what", title="what it is"),
        Column(key="needs", title="needs"),
        Column(key="paper", title=PUBLISHED),
    )
    rows = [row for name, setting in settings.items() for row in _encoder_rows(name, setting)]
    note = "All encoders are frozen. Of a set that comes as features nothing is encoded."
    return Table(title="encoders: who reads what", columns=columns, rows=tuple(rows), notes=(note,))


def hyperparameters_table(settings: Mapping[str, Setting] = FULL) -> Table:
    """One column per data set, one row per hyperparameter, as training takes them."""
    shown = {name: _hyperparameters(setting) for name, setting in settings.items()}
    rows = list(next(iter(shown.values()))) if shown else []
    return Table(
        title="hyperparameters: what every arm is trained with",
        columns=(Column(key="hyperparameter", title=""), *(Column(key=name, title=name) for name in shown)),
        rows=tuple((row, *(values[row] for values in shown.values())) for row in rows),
        notes=(
            "AdamW. sigma(d): a learned scalar through a sigmoid, for models that iterate; lambda_j, lambda_f and "
            "probes belong to their objective. An arm may differ where its study says so.",
        ),
    )


def _data_row(name: str, root: Path | None, setting: Setting | None) -> tuple[Cell, ...]:
    options = {} if setting is None else setting.data.options
    entry, data = DATA_SETS[name], _opened(name, root, options)
    counts: Sequence[Cell] = [NOT_HERE] * len(SPLITS)
    if data is not None:
        counts = [len(data.splits[split]) if split in data.splits else "-" for split in SPLITS]
    return (name, entry.summary, entry.metric, *counts, _classes(data), *PAPER_COUNTS.get(name, (None, None)))


def _opened(name: str, root: Path | None, options: Mapping[str, Any]) -> DataSet | None:
    """The data set; None where it is not here. A folder that is wrong is an error."""
    if not DATA_SETS[name].embedded:
        return None if root is None else open_data(name, root, **options)
    try:
        return open_data(name, root, **options)
    except DataError:
        if root is not None:
            raise
        return None  # it comes with a package that is not installed


def _classes(data: DataSet | None) -> Cell:
    if data is None:
        return NOT_HERE
    return len(data.labels) or "a number"


def _encoder_rows(name: str, setting: Setting) -> list[tuple[Cell, ...]]:
    published = PAPER_ENCODERS.get(name)
    named = {modality: _named(encoder) for modality, encoder in setting.data.encoders.items()}
    cells = {**_built_in(setting), **named}
    rows = []
    for place, modality in enumerate([*cells, *(each for each in setting.modalities if each not in cells)]):
        described = cells.get(modality, ("none", None, None, "features that come with the data", "nothing"))
        rows.append((name, modality, *described, published if place == 0 else None))
    return rows


def _named(encoder: str) -> tuple[Cell, ...]:
    if encoder not in ENCODERS:
        return encoder, None, None, "a model of transformers", "pip install 'meq[encoders]', and its weights"
    entry = ENCODERS[encoder]
    return encoder, " or ".join(entry.make), PRETRAINED_WIDTHS.get(encoder), entry.summary, entry.needs


def _built_in(setting: Setting) -> dict[str, tuple[Cell, ...]]:
    """What encodes the modalities of a generated set for which no encoder is named."""
    config = setting.data
    data = _opened(config.name, None, config.options) if config.name in DATA_SETS else None
    if data is None or all(modality.width is not None for modality in data.modalities.values()):
        return {}
    rows: dict[str, tuple[Cell, ...]] = {}
    for modality, encoder in default_encoders(data).items():
        kind = next(name for name, entry in ENCODERS.items() if encoder.name.startswith(name))
        entry = ENCODERS[kind]
        rows[modality] = (encoder.name, encoder.kind, encoder.width, entry.summary, entry.needs)
    return rows


def _hyperparameters(setting: Setting) -> dict[str, Cell]:
    train = setting.train
    return {
        "learning rate": _short(train.learning_rate),
        "epochs": _short(train.epochs),
        "batch size": _short(train.batch_size),
        "weight decay": _short(train.weight_decay),
        "lambda_j": _short(setting.lambda_j),
        "lambda_f": _short(setting.lambda_f),
        "Hutchinson probes": _short(setting.probes),
        "damping beta": "sigma(d)" if _option(setting, "damping") == "learned" else _short(_option(setting, "damping")),
        "warmup": f"{train.warmup:.0%}",
        "decay": train.decay,
        "steps K": _short(_option(setting, "steps")),
        "tolerance": _short(_option(setting, "tol")),
        "width": _short(_option(setting, "dim")),
        "heads": _short(_option(setting, "heads")),
        "mixer": str(_option(setting, "mixer")),
        "seeds": ", ".join(map(str, setting.seeds)),
    }


def _option(setting: Setting, name: str) -> Any:
    """An option of the model: the setting's, else the model's own default."""
    return setting.shape.get(name, inspect.signature(MutualEquilibrium).parameters[name].default)


def _short(value: float) -> str:
    """1e-4 for 0.0001, as papers write it."""
    if value == 0 or abs(value) >= 1e-2:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
