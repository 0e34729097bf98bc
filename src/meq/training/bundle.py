"""What a run leaves to be used: its weights with what new data needs, whenever they are the best so far; its answers at
the end."""

from __future__ import annotations

import html
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meq.data.contract import DataSet
from meq.data.transforms import Standardisation
from meq.models.base import FusionModel
from meq.models.hub import CONFIG, STAGING, WEIGHTS
from meq.records import SCHEMA, SEAL, SINCE, FormatError, dumps, read_dataclass, sha256, sync, write_bytes, write_seal
from meq.training.predictions import Predictions, write_predictions
from meq.training.profile import Profile, confidence_of
from meq.training.record import RECORD, REQUEST, EncoderFacts, HashedFile, Provenance, RunRecord, record_text

TASK, CARD = "task.json", "README.md"
SPECIAL = re.compile(r"([\\`*_\[\]|~$#!@:]|(?<=www)\.)")
"""What Markdown may take for markup; HTML is spelled as entities."""
PLAIN_NAME = re.compile(r"[\w.,/@ -]+")


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
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata=SINCE)
    """By modality that was encoded: how to make its encoder again, see `Encoder.spec`."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=SINCE)
    """By modality: the columns of the table it was read from; nothing for data that is no table."""
    label: str | None = field(default=None, metadata=SINCE)
    """The table's column of labels."""
    profile: Profile | None = field(default=None, metadata=SINCE)
    """How the data looked, for comparison with new data; None where that is not known."""


def write_weights(model: FusionModel, folder: Path, record: RunRecord, data: DataSet, provenance: Provenance) -> str:
    """Write the weights that are the best so far, and what is needed to use them; their SHA-256.

    Both are whole on disk before either replaces what was there, so that the run can be used while it goes on. Between
    the two, and there alone, the task speaks of other weights, which whoever loads them is told.
    """
    place = folder / "model"
    for name in (CARD, SEAL):  # they speak of the weights before, and are written at the end
        (place / name).unlink(missing_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=STAGING) as staging:
        made = Path(staging) / "model"
        model.save_pretrained(made)
        (made / WEIGHTS).chmod((made / CONFIG).stat().st_mode)  # safetensors writes for its owner only
        hashed = sha256(made / WEIGHTS)
        write_bytes(made / TASK, dumps(task_of(record, data, provenance, hashed)).encode())
        for name in (CONFIG, WEIGHTS, TASK):
            os.replace(made / name, place / name)
    sync(place)
    return hashed


def task_of(
    record: RunRecord,
    data: DataSet,
    provenance: Provenance,
    weights_sha256: str,
    answers: Mapping[str, Predictions] | None = None,
) -> Task:
    """What these weights were trained for; how sure their answers are, where there are `answers` by now."""
    return Task(
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
        weights_sha256=weights_sha256,
        kinds=provenance.kinds,
        specs=provenance.specs,
        columns={name: tuple(columns) for name, columns in data.facts.get("columns", {}).items()},
        label=data.facts["label"] if "columns" in data.facts else None,
        profile=_profile(provenance.profile, (answers or {}).get(record.selected.split), data.head),
    )


def write_bundle(
    record: RunRecord, folder: Path, data: DataSet, provenance: Provenance, answers: Mapping[str, Predictions]
) -> RunRecord:
    """Write answers, task and model card; the record with their hashes."""
    for split, predictions in answers.items():
        write_predictions(folder / "predictions" / f"{split}.parquet", predictions)
    names = {split: f"predictions/{split}.parquet" for split in answers}
    files = {split: HashedFile(file=name, sha256=sha256(folder / name)) for split, name in names.items()}
    checkpoint = HashedFile(file=f"model/{WEIGHTS}", sha256=sha256(folder / "model" / WEIGHTS))
    task = task_of(record, data, provenance, checkpoint.sha256, answers)
    content = dumps(task).encode()
    write_bytes(folder / "model" / CARD, card(task, record).encode())
    write_seal(folder / "model", (CONFIG, WEIGHTS, CARD), to_come={TASK: content})
    write_bytes(folder / "model" / TASK, content)
    return replace(record, predictions=files, checkpoint=checkpoint)


def _profile(profile: Profile | None, chosen_on: Predictions | None, head: str) -> Profile | None:
    """The profile with how sure the model is of its answers to the split that its weights were chosen on."""
    if profile is None or chosen_on is None:
        return profile
    return replace(profile, confidence=confidence_of(list(chosen_on.logits), head))


def seal_run(folder: Path, record: RunRecord) -> None:
    """The seal of all that the run wrote, the record to come included; the weights stand in the seal of the model."""
    names = [file.file for file in record.predictions.values()]
    names += [name for name in (REQUEST, f"model/{SEAL}") if (folder / name).is_file()]
    write_seal(folder, names, to_come={RECORD: record_text(record).encode()})


def read_task(path: Path) -> Task:
    """A `task.json`; a field that is missing, unknown or of another type is an error that names it."""
    return read_dataclass(Task, path)


def check_weights(task: Task, weights: Path, *, hashed: str | None = None) -> None:
    """Refuse weights that the task does not speak of; `hashed` is their SHA-256 where it is known already."""
    if (hashed or sha256(weights)) != task.weights_sha256:
        raise FormatError(f"{weights} is not the file that was saved with {TASK}: its SHA-256 differs")


def card(task: Task, record: RunRecord) -> str:
    """What somebody who finds the model on the Hub has to know."""
    shown = ", ".join(map(escaped, task.labels[:12])) + (
        f", ... ({len(task.labels)} in all)" if len(task.labels) > 12 else ""
    )
    inputs = [
        f"- {as_code(name)}: {width} numbers per token{_made_by(task, name)}" for name, width in task.widths.items()
    ]
    scores = [f"| {escaped(split)} | {found[task.metric]:.4f} |" for split, found in record.metrics.items()]
    lines = [
        "---\nlibrary_name: meq\ntags:\n- multimodal\n- deep-equilibrium\n---",
        f"# {record.model['model']}, trained on {escaped(task.data)}",
        "```python\nimport meq\n\n"
        'run = meq.load("this folder, or the name of this repository")\nanswers = run.predict(table)\n```',
        f"Answers: {shown or 'a number'}. Trainable parameters: {record.parameters:,}.",
        "\n".join(["Inputs:", "", *inputs]),
        "\n".join([f"| split | {escaped(task.metric)} |", "|---|---:|", *scores]),
        f"Weights of the {record.selected.by} epoch on {record.selected.split}, one run (seed {record.seed}).",
    ]
    return "\n\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Words of the data in one line of Markdown, shown as they are: nothing in them is markup or HTML."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return html.escape(SPECIAL.sub(r"\\\1", line), quote=False)


def as_code(name: str) -> str:
    """A name between backticks; one with odd characters, which cannot be escaped there, as words."""
    return f"`{name}`" if PLAIN_NAME.fullmatch(name) else escaped(name)


def _made_by(task: Task, modality: str) -> str:
    encoder = task.encoders.get(modality)
    scaled = task.standardisation is not None and modality in task.standardisation.mean
    by = (
        f", by {as_code(encoder.name)} ({escaped(encoder.revision)}, SHA-256 {encoder.sha256[:12]}...)"
        if encoder
        else ""
    )
    return by + (", standardised" if scaled else "")
