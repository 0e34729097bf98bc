"""The studies that train nothing: what the iteration costs, and the paper's descriptive tables.

Data sets, encoders and hyperparameters are described from the code that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meq.data.contract import DataSet
from meq.data.findings import DataError
from meq.data.request import DATA_SETS, open_data
from meq.encoders.catalogue import ENCODERS, default_encoders
from meq.options import nearest
from meq.records import alone, remove, write_bytes
from meq.studies import paper
from meq.studies.settings import FULL, Setting
from meq.studies.study import STUDY, TABLES, StudyError
from meq.tables import Cell, Table, as_files, as_text
from meq.training.arms import ARMS

SPLITS = ("train", "dev", "test")
NOT_HERE = "not here"
PUBLISHED = "paper (published)"
PRETRAINED_WIDTHS = {"clip": 768, "bert": 768, "wav2vec2": 768, "minilm": 384, "cnn": 1280}
"""Numbers per token, known without loading the weights."""


def datasets_table(roots: Mapping[str, Path] | None = None, settings: Mapping[str, Setting] = FULL) -> Table:
    """What can be read and how much of it is here: generated sets always, others from the folders in `roots`."""
    roots = roots or {}
    for name in roots:
        if name not in DATA_SETS:
            raise DataError(f"there is no data set {name!r}: {nearest(name, DATA_SETS)}")
    return Table.of(
        "datasets: what is learned from",
        [_data_row(name, roots.get(name), settings.get(name)) for name in DATA_SETS],
        titles={
            "data": "data set",
            "paper_counts": f"{PUBLISHED}: train / val / test",
            "paper_classes": "its classes",
        },
        notes=(
            "Counted in the data that is here, with the options that studies use; a split without labels is not "
            f"counted. {PUBLISHED}: not counted here; its splits are not all the official ones.",
        ),
    )


def encoders_table(settings: Mapping[str, Setting] = FULL) -> Table:
    """Which encoder reads which modality unless another is named, and what it is."""
    return Table.of(
        "encoders: who reads what",
        [row for name, setting in settings.items() for row in _encoder_rows(name, setting)],
        keys=("data", "modality", "encoder", "reads", "width", "what", "needs", "paper"),
        titles={"data": "data set", "reads": "can read", "what": "what it is", "paper": PUBLISHED},
        notes=("All encoders are frozen. Of a set that comes as features nothing is encoded.",),
    )


def hyperparameters_table(
    settings: Mapping[str, Setting] = FULL,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    beside: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Table:
    """One column per data set, one row per hyperparameter, as training takes them.

    `names` are titles of columns that differ from the names of the sets; `beside` is what the paper has for them.
    """
    shown: dict[str, Mapping[str, Cell]] = {}
    for data, setting in settings.items():
        shown[data] = _hyperparameters(setting)
        if data in beside:
            shown[f"{data} (paper)"] = beside[data]
    rows = list(next(iter(shown.values()))) if shown else []
    return Table.of(
        "hyperparameters: what every arm is trained with",
        [{"hyperparameter": row, **{key: values.get(row) for key, values in shown.items()}} for row in rows],
        keys=("hyperparameter", *shown),
        titles={
            "hyperparameter": "",
            **names,
            **{f"{key} (paper)": f"{title} (paper)" for key, title in names.items()},
        },
        notes=(
            "AdamW. sigma(d): a learned scalar through a sigmoid, for models that iterate; lambda_j, lambda_f and "
            "probes belong to their objective. An arm may differ where its study says so.",
        ),
    )


def _data_row(name: str, root: Path | None, setting: Setting | None) -> dict[str, Cell]:
    data = _opened(name, root, {} if setting is None else setting.data.options)
    row: dict[str, Cell] = {"data": name, "task": DATA_SETS[name].summary, "metric": DATA_SETS[name].metric}
    if data is None:
        row |= dict.fromkeys((*SPLITS, "classes"), NOT_HERE)
    else:
        row |= {split: len(data.splits[split]) if split in data.splits else "-" for split in SPLITS}
        row["classes"] = len(data.labels) or "a number"
    counts, classes = paper.DATA_COUNTS.get(name, (None, None))
    return {**row, "paper_counts": counts, "paper_classes": classes}


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


def _encoder_rows(name: str, setting: Setting) -> list[dict[str, Cell]]:
    named = {modality: _named(encoder) for modality, encoder in setting.data.encoders.items()}
    known = {**_built_in(setting), **named}
    none: dict[str, Cell] = {"encoder": "none", "what": "features that come with the data", "needs": "nothing"}
    modalities = [*known, *(each for each in setting.modalities if each not in known)]
    rows: list[dict[str, Cell]] = [
        {"data": name, "modality": modality, **known.get(modality, none)} for modality in modalities
    ]
    rows[0]["paper"] = paper.ENCODERS.get(name)
    return rows


def _named(encoder: str) -> dict[str, Cell]:
    if encoder not in ENCODERS:
        needs = "pip install 'meq[encoders]', and its weights"
        return {"encoder": encoder, "what": "a model of transformers", "needs": needs}
    entry = ENCODERS.get(encoder)
    row: dict[str, Cell] = {"encoder": encoder, "reads": " or ".join(entry.classes)}
    return {**row, "width": PRETRAINED_WIDTHS.get(encoder), "what": entry.summary, "needs": entry.needs}


SOME = 108
"""Examples of a generated set that are enough to know who reads it; so many can be balanced in every set."""


def _built_in(setting: Setting) -> dict[str, dict[str, Cell]]:
    """What encodes the modalities of a generated set for which no encoder is named."""
    config = setting.data
    if config.name not in DATA_SETS:
        return {}
    few = {split: SOME for split in SPLITS if split in DATA_SETS[config.name].options}  # whoever reads one reads all
    data = _opened(config.name, None, {**config.options, **(few if DATA_SETS[config.name].embedded else {})})
    if data is None or all(modality.width is not None for modality in data.modalities.values()):
        return {}
    rows: dict[str, dict[str, Cell]] = {}
    for modality, encoder in default_encoders(data).items():
        entry = ENCODERS.get(encoder.spec["encoder"])
        rows[modality] = {"encoder": encoder.name, "reads": encoder.kind, "width": encoder.width}
        rows[modality] |= {"what": entry.summary, "needs": entry.needs}
    return rows


def _hyperparameters(setting: Setting) -> dict[str, Cell]:
    train = setting.train
    model = {name: option.default for name, option in ARMS["meq"].options.items()} | dict(setting.shape)
    shown: dict[str, Any] = {
        "learning rate": train.learning_rate,
        "epochs": train.epochs,
        "batch size": train.batch_size,
        "weight decay": train.weight_decay,
        "lambda_j": setting.lambda_j,
        "lambda_f": setting.lambda_f,
        "Hutchinson probes": setting.probes,
        "damping beta": "sigma(d)" if model["damping"] == "learned" else model["damping"],
        "warmup": f"{train.warmup:.0%}",
        "decay": train.decay,
        "steps K": model["steps"],
        "tolerance": model["tol"],
        "width": model["dim"],
        "heads": model["heads"],
        "mixer": model["mixer"],
        "seeds": ", ".join(map(str, setting.seeds)),
    }
    return {name: _short(value) for name, value in shown.items()}


def _short(value: float | str) -> str:
    """1e-4 for 0.0001, as papers write it."""
    if isinstance(value, str):
        return value
    if value == 0 or abs(value) >= 1e-2:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


# -- the studies themselves --------------------------------------------------------------------------------------------

COST = "cost"
DESCRIPTIONS: Mapping[str, tuple[str, Callable[[], Table]]] = {
    "datasets": ("Which data sets there are, with their sizes, beside the paper's.", datasets_table),
    "hyperparameters": ("What each benchmark is trained with, from the settings that train it.", hyperparameters_table),
    "encoders": ("Which encoder reads what.", encoders_table),
}
UNTRAINED: Mapping[str, str] = {
    COST: "What does an iteration cost, in time, FLOPs and memory, beside single-pass arms of the same size?",
    **{name: text for name, (text, _) in DESCRIPTIONS.items()},
}


def run_untrained(
    name: str,
    folder: Path | None = None,
    *,
    quick: bool = False,
    device: str | None = None,
    measured: Mapping[str, Any] | None = None,
) -> str:
    """Measure or describe, and return the tables as text; they are written to the folder in every form.

    `measured` are options of `cost_study`: batch, passes, rounds, encoders.
    """
    if name != COST and measured:
        raise StudyError(f"`{next(iter(measured))}` is an option of the study {COST!r}: {name} measures nothing")
    if name == COST:
        from meq.studies.cost_study import cost_study, cost_tables, write_cost

        folder = folder or Path("studies") / COST
        with _held(folder):
            if (folder / STUDY).exists():
                raise StudyError(f"{folder} holds another study already: choose another folder for the study of costs")
            report = cost_study(quick=quick, device=device, **(measured or {}))
            write_cost(folder, report)
        return "\n".join(as_text(table) for table in cost_tables(report, paper=not quick).values())
    if name not in DESCRIPTIONS:
        raise StudyError(f"there is no table {name!r}: {nearest(name, UNTRAINED)}")
    table = DESCRIPTIONS[name][1]()
    if folder is not None:
        with _held(folder):
            for file, content in as_files({name: table}).items():
                write_bytes(folder / file, content)
    return as_text(table)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, made before anything is measured, for one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, f"another process is at work in {folder}: wait until it has finished, or choose another folder"):
        remove([*folder.glob(".*.writing"), *folder.glob(f"{TABLES}/.*.writing")])
        yield
