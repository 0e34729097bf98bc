"""What the report of a study shows, as its templates ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meq.runs.showcase import best_run
from meq.studies.compare import CALLED, NOT_CALLED, TOO_FEW, answers_of, intervals
from meq.studies.study import ArmConfig, run_place
from meq.studies.tables import RUNS_TABLE, make_tables
from meq.studies.verify import MANIFEST, Verification, read_manifest, verify
from meq.tables import Table
from meq.viz.figures import STUDY_FIGURES, drawings_of
from meq.viz.report.document import Section, embedded, in_words, make_sections
from meq.viz.report.run import run_context, run_sections
from meq.viz.run_figures import open_reported_run
from meq.viz.study_figures import ReportedStudy


def study_sections(context: Mapping[str, Any], found: ReportedStudy, looks: Path | None) -> list[Section]:
    """The sections of the page; `looks` is where the best run was looked at, if not in its own folder."""
    drawn = context["drawings"]
    titles = {
        "comparison": "The comparison",
        **({"steps": "The answer along the iteration"} if drawn["steps"] else {}),
        **({"grounding": "Where it looks"} if drawn["grounding"] else {}),
        **{"tables": "Tables", "training": "Training of the arms", "about": "What was run"},
        "verification": "Verification and hashes",
    }
    return [*make_sections("study.html", titles, context, about="study"), *_best_run(found, looks)]


def study_context(found: ReportedStudy) -> dict[str, Any]:
    """Everything that the sections of a study show."""
    study, verification = found.study, verify(found.folder)
    encoders = next((record.data.encoders for record in found.records.values()), {})
    return {
        "config": study,
        "records": found.records,
        "runs": len(study.arms) * len(study.seeds),
        "answer": _answer(found),
        "drawings": embedded(drawings_of(STUDY_FIGURES, found)),
        "tables": _tables(found),
        "failed": [
            f"{arm}, seed {seed}: {record.error.kind}: {' '.join(record.error.message.split())}"
            for (arm, seed), record in found.records.items()
            if record.error is not None
        ],
        "alarmed": {run: record for run, record in found.records.items() if record.alarms},
        "options": ", ".join(f"{key} {in_words(value)}" for key, value in study.data.options.items()),
        "encoders": ", ".join(f"{name} by {encoder.name}" for name, encoder in encoders.items()),
        "arms": [_arm_row(arm, found) for arm in study.arms],
        "verification": verification,
        "faults": [f"{fault.file}: {fault.message}" for fault in verification.faults],
        "remarks": [
            *(f"{name}: not there, so not verified" for name in verification.unverified),
            *verification.notes,
        ],
        "hashes": _hashes(found.folder, verification),
    }


def _answer(found: ReportedStudy) -> str:
    """What the main metric says, in a sentence."""
    if not found.pairs:
        return "There are no scores yet."
    split, metric = found.pairs[0]
    lines = found.lines(split, metric)
    reference = next(line for line in lines if line.arm == found.study.reference)
    if reference.mean is None:
        return f"{found.study.reference} has no score yet."
    spread = "" if reference.spread is None else f" (spread {reference.spread:.2g})"
    words = f"On {split} it has a mean {metric} of {reference.mean:.4g}{spread}."
    drawn = intervals(found.study, found.records, answers_of(found.folder), split=split, metrics=[metric])[metric]
    over_examples = {
        each.arm: f" ({each.low:+.3g} to {each.high:+.3g})" for each in drawn if None not in (each.low, each.high)
    }
    for verdict in (CALLED, NOT_CALLED, TOO_FEW):
        named = [
            f"{line.arm} {line.difference:+.3g}{over_examples.get(line.arm, '')}"
            for line in lines
            if line.verdict == verdict and line.difference is not None
        ]
        if named:
            words += f" {verdict.capitalize()}: {', '.join(named)}."
    return words


def _tables(found: ReportedStudy) -> list[Table]:
    """Those of the study, the table of all runs last; a large letter begins a title, unless an arm's name does."""
    study = found.study
    made = make_tables(study, found.records, found.measured, answers=answers_of(found.folder))
    runs = made.pop(RUNS_TABLE)
    shown = []
    for table in (*made.values(), runs):
        title = table.title.removeprefix(f"{study.name}: ")
        if not any(title.startswith(f"{arm.name} ") for arm in study.arms):
            title = title[:1].upper() + title[1:]
        shown.append(replace(table, title=title))
    return shown


def _arm_row(arm: ArmConfig, found: ReportedStudy) -> list[str]:
    counts = {record.parameters for (name, _), record in found.records.items() if name == arm.name}
    differs = [f"{key} {in_words(value)}" for key, value in arm.train.items()]
    if arm.match is not None:
        differs.append(f"{arm.match.size} chosen to match the {arm.match.part} of {arm.match.to}")
    differs += [f"{name} is zero" for name in arm.blank]
    differs += [f"{what} {name}" for what, name in (("solver", arm.solver), ("backward", arm.backward)) if name]
    differs += [f"floors from {arm.floor_from}"] if arm.floor_from else []
    penalties = [f"{name} ({in_words(options)})" for name, options in arm.penalties.items()]
    return [
        f"{arm.name} (reference)" if arm.name == found.study.reference else arm.name,
        arm.model,
        f"{counts.pop():,}" if len(counts) == 1 else "",
        in_words(arm.options),
        "; ".join(penalties) or "none",
        "; ".join(differs),
    ]


def _hashes(folder: Path, verification: Verification) -> list[list[str]]:
    """The seal, and the hashes of the files that matter most; nothing where the manifest itself is at fault."""
    if any(fault.file == MANIFEST for fault in verification.faults):
        return []
    manifest = read_manifest(folder)
    kept = ("record.json", "study.json", ".safetensors")
    files = [[name, entry.sha256] for name, entry in manifest.files.items() if name.endswith(kept)]
    return [["the whole study (its seal)", manifest.seal], *files]


def _best_run(found: ReportedStudy, looks: Path | None) -> list[Section]:
    """The best run of the reference arm, as in a report of its own."""
    run = best_run(found.folder, found.study, found.records)
    if run is None:
        return []
    place = run_place(*run)
    opened = open_reported_run(found.folder / place, None if looks is None else looks / place)
    context = {**run_context(opened), "arm": run[0]}
    title = f"One run in detail: {run[0]}, seed {run[1]}"
    parts = tuple(run_sections(context, prefix="best-"))
    return [Section(anchor="best", title=title, template="study.html", macro="best", context=context, parts=parts)]
