"""What is kept of a run at its end: answers, and beside the weights what is needed to put new questions to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meq.data.contract import DataSet
from meq.data.standardise import Standardisation
from meq.models.hub import WEIGHTS
from meq.training.files import sha256, write_bytes
from meq.training.plain import SINCE, FormatError, dumps, loads, typed
from meq.training.predictions import Predictions, write_predictions
from meq.training.record import EncoderFacts, HashedFile, Provenance, RunRecord

TASK, CARD = "task.json", "README.md"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the model was trained for, and what is done to an example before the model sees it."""

    schema: int
    data: str
    data_fingerprint: str
    source_fingerprint: str | None
    labels: tuple[str, ...]
    head: str
    metric: str
    widths: Mapping[str, int]
    encoders: Mapping[str, EncoderFacts]
    standardisation: Standardisation | None
    weights_sha256: str
    kinds: Mapping[str, str] = field(default_factory=dict, metadata=SINCE)
    """By modality that was encoded: image, regions, text or audio; nothing where that is not known."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=SINCE)
    """By modality: the columns of the table it was read from; nothing for data that is no table."""
    label: str | None = field(default=None, metadata=SINCE)
    """The table's column of labels."""


def bundled(
    record: RunRecord, folder: Path, data: DataSet, provenance: Provenance, answers: Mapping[str, Predictions]
) -> RunRecord:
    """Write answers, task and model card; the record with their hashes."""
    for split, predictions in answers.items():
        write_predictions(folder / "predictions" / f"{split}.parquet", predictions)
    files = {split: _hashed(folder, f"predictions/{split}.parquet") for split in answers}
    checkpoint = _hashed(folder, f"model/{WEIGHTS}")
    task = Task(
        schema=SCHEMA,
        data=data.name,
        data_fingerprint=record.data.fingerprint,
        source_fingerprint=provenance.source_fingerprint,
        labels=tuple(data.labels),
        head=data.head,
        metric=data.metric.name,
        widths=data.widths,
        encoders=record.data.encoders,
        standardisation=provenance.standardisation,
        weights_sha256=checkpoint.sha256,
        kinds=provenance.kinds,
        columns={name: tuple(columns) for name, columns in data.facts.get("columns", {}).items()},
        label=data.facts["label"] if "columns" in data.facts else None,
    )
    write_bytes(folder / "model" / CARD, card(task, record).encode())
    write_bytes(folder / "model" / TASK, dumps(task).encode())
    return replace(record, predictions=files, checkpoint=checkpoint)


def read_task(path: Path) -> Task:
    """A `task.json`; a field that is missing, unknown or of another type is an error that names it."""
    value = loads(path.read_bytes(), str(path))
    schema = value.get("schema") if isinstance(value, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise FormatError(f"{path}: written in format {schema}, this version of meq reads up to {SCHEMA}; upgrade meq")
    return typed(Task, value, str(path))


def check_weights(task: Task, weights: Path) -> None:
    if sha256(weights) != task.weights_sha256:
        raise FormatError(f"{weights} is not the file that was saved with {TASK}: its SHA-256 differs")


def card(task: Task, record: RunRecord) -> str:
    """What somebody who finds the model on the Hub has to know."""
    shown = ", ".join(task.labels[:12]) + (f", ... ({len(task.labels)} in all)" if len(task.labels) > 12 else "")
    inputs = [f"- `{name}`: {width} numbers per token{_made_by(task, name)}" for name, width in task.widths.items()]
    scores = [f"| {split} | {found[task.metric]:.4f} |" for split, found in record.metrics.items()]
    lines = [
        "---\nlibrary_name: meq\ntags:\n- multimodal\n- deep-equilibrium\n---",
        f"# {record.model['model']}, trained on {task.data}",
        "```python\nfrom meq.experiments import load_run\n\n"
        'run = load_run("this folder, or the name of this repository")\nanswers = run.predict(examples)\n```',
        f"Answers: {shown or 'a number'}. Trainable parameters: {record.parameters:,}.",
        "\n".join(["Inputs:", "", *inputs]),
        "\n".join([f"| split | {task.metric} |", "|---|---:|", *scores]),
        f"Weights of the {record.selected.by} epoch on {record.selected.split}, one run (seed {record.seed}).",
    ]
    return "\n\n".join(lines) + "\n"


def _made_by(task: Task, modality: str) -> str:
    encoder = task.encoders.get(modality)
    scaled = task.standardisation is not None and modality in task.standardisation.mean
    by = f", by `{encoder.name}` ({encoder.revision}, SHA-256 {encoder.sha256[:12]}...)" if encoder else ""
    return by + (", standardised" if scaled else "")


def _hashed(folder: Path, file: str) -> HashedFile:
    return HashedFile(file=file, sha256=sha256(folder / file))
