"""What was run, in words: data, encoders, model, objective, training, machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meq.experiments import RunRecord
from meq.experiments.runs.files import RunFiles
from meq.viz.report.markup import Html, Part, code, facts, join, paragraph, tag

MODELS = {
    "MutualEquilibrium": "a mutual equilibrium: every modality has a state of its own, and each step changes every "
    "state by its input, by itself and by the other states, so that they come to agree",
    "EquilibriumTree": "a tree of mutual equilibria: modalities come to agree in pairs, and what they agree on with "
    "the next one",
    "SingleState": "an equilibrium with one state for all modalities together",
    "FeatureSum": "an equilibrium over the sum of the modalities' features",
    "Concat": "a single pass that joins the pooled modalities, without any exchange before that",
    "SelfAttention": "a single pass of self-attention over the tokens of all modalities",
    "CrossAttention": "a single pass in which the modalities attend to each other",
    "LowRankFusion": "a single pass that multiplies the modalities in a low-rank form",
}
TASKS = {
    "classes": "one of several classes",
    "labels": "any of several labels",
    "choices": "one of several choices",
    "score": "a number",
    "ordinal": "one of several classes that have an order",
}
NOT_SHOWN = ("encoders", "features", "truncated", "not encoded", "columns")
"""Facts of a data set that are said elsewhere, or meant for programs."""


def summary(files: RunFiles) -> list[Part]:
    """The run in three sentences."""
    record = files.record
    kind = MODELS.get(str(record.model["model"]), f"a model of the class {record.model['model']}")
    trained = f"{record.data.splits.get('train', 0):,} examples of {record.data.name}"
    read = f" Its answer is read after K = {files.steps} steps." if files.steps is not None else ""
    first = paragraph(
        f"This run trained {kind}. It has {record.parameters:,} parameters, learned from {trained}, and answers with "
        f"{_task(files)}.{read}"
    )
    return [tag("div", first, of={"class": "lead"}), paragraph(_outcome(record))]


def what_was_run(files: RunFiles) -> Html:
    """Everything that made the run, as its record has it."""
    record = files.record
    return join(
        tag("h3", "Data"),
        facts(_data(record, files.labels)),
        tag("h3", "Model and objective"),
        facts(_model(files)),
        tag("h3", "Training"),
        facts(_training(record)),
        tag("h3", "Software and machine"),
        facts(_environment(record)),
    )


def _task(files: RunFiles) -> str:
    words = TASKS.get(files.head, files.head)
    return words.replace("several", str(len(files.labels))) if files.labels and files.head != "choices" else words


def _outcome(record: RunRecord) -> str:
    if record.error is not None:
        return f"It failed: {record.error.kind}: {' '.join(record.error.message.split())}"
    if not record.scored:
        return f"It is not over, its record says: {record.status}. What follows is what is known so far."
    scores = [
        f"{found[record.metric]:.4g} on {split}" for split, found in record.metrics.items() if record.metric in found
    ]
    alarms = f"{len(record.alarms)} alarms were raised" if record.alarms else "no alarm was raised"
    ended = "stopped by an alarm" if "alarm" in record.status else "trained to its end"
    return f"It was {ended} and scores, by {record.metric}: {', '.join(scores)}. While training, {alarms}."


def _data(record: RunRecord, labels: Sequence[str]) -> list[tuple[str, Part]]:
    data = record.data
    sizes = ", ".join(f"{name} {count:,}" for name, count in data.splits.items())
    widths = record.model["options"].get("widths", {})
    found: list[tuple[str, Part]] = [("data set", data.name), ("examples", sizes)]
    if labels:
        shown = ", ".join(labels[:12]) + (f" and {len(labels) - 12:,} more" if len(labels) > 12 else "")
        found.append(("labels" if record.objective.task != "score" else "answers with", shown))
    for name, width in widths.items():
        encoder = data.encoders.get(name)
        words = (
            f"comes as numbers, {width} per token"
            if encoder is None
            else f"encoded by {encoder.name}, revision {encoder.revision}, {width} numbers per token"
        )
        found.append((f"modality {name}", words))
    told = {key: value for key, value in data.facts.items() if key not in NOT_SHOWN}
    found += [(key, _plain(value)) for key, value in told.items() if key not in data.splits and value not in (None, {})]
    return found


def _model(files: RunFiles) -> list[tuple[str, Part]]:
    record = files.record
    options = {key: value for key, value in record.model["options"].items() if key != "widths"}
    penalties = "; ".join(record.objective.penalties) or "none"
    found: list[tuple[str, Part]] = [
        ("class", code(str(record.model["model"]))),
        ("parameters", f"{record.parameters:,}, of which {record.block_parameters:,} in the part that fuses"),
    ]
    if files.steps is not None:
        damping = options.get("damping", "its default")
        found.append(("iteration", f"K = {files.steps} steps are read, each damped by {damping}"))
    found += [
        ("options", ", ".join(f"{key} {_plain(value)}" for key, value in options.items())),
        ("task", _task(files)),
        ("penalties", penalties),
    ]
    return found


def _training(record: RunRecord) -> list[tuple[str, Part]]:
    config, chosen = record.config, record.selected
    recipe = (
        f"{config['epochs']} epochs of batches of {config['batch_size']}, AdamW, learning rate "
        f"{config['learning_rate']:g}, weight decay {config['weight_decay']:g}, {config['warmup']:.0%} warmup, "
        f"{config['decay']} decay"
    )
    found: list[tuple[str, Part]] = [
        ("recipe", recipe),
        ("seed", str(record.seed)),
        ("weights that were kept", _selection(record)),
        ("length", f"{record.steps:,} updates in {_duration(record.wall_seconds)}, {record.processes} process(es)"),
    ]
    if chosen.by == "best" and chosen.split in record.metrics:
        found.append(
            (
                f"reading the {chosen.split} score",
                f"{chosen.split} chose the weights, so its score is a little too good",
            )
        )
    if record.study is not None:
        found.insert(0, ("part of", f"the study {record.study}, arm {record.arm}"))
    return found


def _selection(record: RunRecord) -> str:
    chosen = record.selected
    if chosen.epoch is None:
        return "none yet"
    value = "" if chosen.value is None else f" ({chosen.value:.4g})"
    if chosen.by == "best":
        return f"those of epoch {chosen.epoch}, counted from 0: the best by {chosen.metric} on {chosen.split}{value}"
    return f"those of the last epoch, {chosen.epoch}, counted from 0"


def _environment(record: RunRecord) -> list[tuple[str, Part]]:
    if not record.sessions:
        return [("sessions", "none is recorded")]
    first, last = record.sessions[0], record.sessions[-1]
    commit = "not from a working copy"
    if last.commit is not None:
        commit = last.commit.sha + (" with changes that were not committed" if last.commit.dirty else "")
    machine = last.hardware
    found: list[tuple[str, Part]] = [
        ("begun", first.started),
        ("versions", ", ".join(f"{name} {version}" for name, version in last.versions.items())),
        ("commit", code(commit)),
        (
            "machine",
            f"{machine.name}, {machine.processors} processors, {machine.threads} used, {machine.device}, "
            f"{machine.system}",
        ),
    ]
    if len(record.sessions) > 1:
        times = ", ".join(f"at update {each.step:,}" for each in record.sessions[1:])
        found.append(("resumed", times))
    return found


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
