"""A report of a study: its question, its arms, what they scored, and its best run in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meq.experiments.bootstrap import answers_of, intervals
from meq.experiments.compare import (
    CALLED,
    NOT_CALLED,
    TOO_FEW,
    ArmLine,
    Records,
    compare,
    compare_groups,
    scored_pairs,
)
from meq.experiments.manifest import MANIFEST, read_manifest
from meq.experiments.measures import measured_of
from meq.experiments.measures.contract import Values
from meq.experiments.runs.files import open_run_files
from meq.experiments.runs.reported import best_run
from meq.experiments.study import ArmConfig, Study, read_study, run_place
from meq.experiments.tables import RUNS_TABLE, make_tables, records_of
from meq.experiments.verify import Verification, verify
from meq.viz.report.markup import Html, Part, bullets, facts, grid, join, note, paragraph, table, tag, warning
from meq.viz.report.page import Section, make_page
from meq.viz.report.run_page import fitting_showcase, run_lead, run_sections
from meq.viz.report.run_results import alarms
from meq.viz.report.study_figures import arms, looks_along_k, residuals, scores_along_k, training_of_arms

CALLED_MEANS = (
    "A difference between two arms is called when its absolute value exceeds twice the sample standard deviation of "
    "the differences paired by seed; anything else is not called, which does not mean that the arms are alike. With "
    "fewer than three seeds nothing is called. In brackets: the middle 95 % of the difference over draws of the "
    "examples, a paired bootstrap."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyFiles:
    """A study as it lies on disk."""

    folder: Path
    study: Study
    records: Records
    measured: Mapping[str, Values]
    verification: Verification


def open_study_files(folder: Path) -> StudyFiles:
    study = read_study(folder)
    return StudyFiles(
        folder=folder,
        study=study,
        records=records_of(folder, study),
        measured=measured_of(folder, study),
        verification=verify(folder),
    )


def study_page(folder: Path, looks: Path | None, *, footer: str) -> str:
    """The whole page; `looks` is where the best run was looked at, if not in its own folder."""
    files = open_study_files(folder)
    sections = [
        Section(anchor="comparison", title="The comparison", content=_comparison(files)),
        *_steps(files),
        *_grounding(files),
        Section(anchor="tables", title="Tables", content=_tables(files)),
        Section(anchor="training", title="Training of the arms", content=_training(files)),
        Section(anchor="study", title="What was run", content=_what(files)),
        Section(anchor="verification", title="Verification and hashes", content=_verification(files)),
        *_detail(files, looks),
    ]
    title = f"Study: {files.study.name}"
    return make_page(title, _lead(files), sections, footer=footer)


# -- the parts ---------------------------------------------------------------------------------------------------------


def _lead(files: StudyFiles) -> list[Part]:
    study, records = files.study, files.records
    runs = len(study.arms) * len(study.seeds)
    over = f"{len(records)} of {runs} runs are over"
    parts: list[Part] = [
        tag("p", study.question, of={"class": "lead"}),
        paragraph(
            f"{len(study.arms)} arms with {len(study.seeds)} seeds each on {study.data.name}; {over}. The arms are "
            f"compared with {study.reference}. {_answer(files)}"
        ),
        paragraph(CALLED_MEANS),
    ]
    if len(records) < runs:
        parts.append(warning("The study is not complete: comparisons of arms with missing runs say so."))
    if not files.verification.ok:
        parts.append(warning(f"The study does NOT verify: {len(files.verification.faults)} faults, listed below."))
    return parts


def _answer(files: StudyFiles) -> str:
    """What the main metric says, in a sentence."""
    main = _main_pair(files)
    if main is None:
        return "There are no scores yet."
    lines = _lines(files, *main)
    reference = next(line for line in lines if line.arm == files.study.reference)
    if reference.mean is None:
        return f"{files.study.reference} has no score yet."
    spread = "" if reference.spread is None else f" (spread {reference.spread:.2g})"
    words = f"On {main[0]} it has a mean {main[1]} of {reference.mean:.4g}{spread}."
    over = _over_examples(files, *main)
    for verdict in (CALLED, NOT_CALLED, TOO_FEW):
        named = [
            f"{line.arm} {line.difference:+.3g}{over.get(line.arm, '')}"
            for line in lines
            if line.verdict == verdict and line.difference is not None
        ]
        if named:
            words += f" {verdict.capitalize()}: {', '.join(named)}."
    return words


def _over_examples(files: StudyFiles, split: str, metric: str) -> dict[str, str]:
    """By arm: the interval of its difference to the reference, in brackets."""
    found = intervals(files.study, files.records, answers_of(files.folder), split=split, metrics=[metric])[metric]
    return {each.arm: f" ({each.low:+.3g} to {each.high:+.3g})" for each in found if None not in (each.low, each.high)}


def _comparison(files: StudyFiles) -> Html:
    main = _main_pair(files)
    if main is None:
        return warning("No run has a score yet.")
    pairs = [main, *(pair for pair in scored_pairs(files.records.values()) if pair != main)]
    chance = _chance(files)
    return join(
        arms(_lines(files, split, metric), metric=metric, split=split, chance=chance if metric == "accuracy" else None)
        for split, metric in pairs
    )


def _steps(files: StudyFiles) -> list[Section]:
    values = files.measured.get("steps", {})
    figures: list[Part] = list(scores_along_k(files.study, values, chance=_chance(files))) if values else []
    if not figures:
        return []
    figures.append(residuals(files.study, values, files.study.reference))
    content = tag("div", figures, of={"class": "pair"})
    return [Section(anchor="steps", title="The answer along the iteration", content=content)]


def _grounding(files: StudyFiles) -> list[Section]:
    values = files.measured.get("grounding", {})
    figures: list[Part] = list(looks_along_k(files.study, values)) if values else []
    return [Section(anchor="grounding", title="Where it looks", content=join(figures))] if figures else []


def _tables(files: StudyFiles) -> Html:
    made = make_tables(files.study, files.records, files.measured, answers=answers_of(files.folder))
    runs = made.pop(RUNS_TABLE)
    prefix = f"{files.study.name}: "
    shown = [
        replace(each, title=_capital(each.title.removeprefix(prefix), files.study)) for each in (*made.values(), runs)
    ]
    return join(table(each) for each in shown)


def _training(files: StudyFiles) -> Html:
    records = {run: record for run, record in files.records.items() if record.curves}
    failed = [
        f"{arm}, seed {seed}: {record.error.kind}: {' '.join(record.error.message.split())}"
        for (arm, seed), record in files.records.items()
        if record.error is not None
    ]
    raised: list[Part] = []
    for (arm, seed), record in files.records.items():
        if record.alarms:
            raised += [tag("h4", f"{arm}, seed {seed}"), alarms(record)]
    return join(
        training_of_arms(files.study, records) if records else None,
        tag("h3", "Failed runs"),
        bullets(failed) if failed else paragraph("None."),
        tag("h3", "Alarms"),
        raised or paragraph("None was raised in any run."),
    )


def _what(files: StudyFiles) -> Html:
    study = files.study
    train = study.train
    used = next((record.data.encoders for record in files.records.values()), {})
    encoders = ", ".join(f"{name} by {encoder.name}" for name, encoder in used.items())
    options = ", ".join(f"{key} {_plain(value)}" for key, value in study.data.options.items())
    limit = "" if study.data.limit is None else f"the first {study.data.limit:,} examples of each split"
    about: list[tuple[str, Part]] = [
        ("data set", study.data.name),
        ("its options", options or "its defaults"),
        ("encoders", encoders or "none: the data comes as numbers"),
        *([("limit", limit)] if limit else []),
        ("seeds", ", ".join(map(str, study.seeds))),
        (
            "training of all arms",
            f"{train.epochs} epochs of batches of {train.batch_size}, learning rate {train.learning_rate:g}, "
            f"{train.decay} decay; the {train.select} epoch is kept"
            + (" by its score on dev" if train.select == "best" else ""),
        ),
    ]
    rows = [_arm_row(arm, files) for arm in study.arms]
    head = ["arm", "model", "parameters", "options", "penalties", "differs in"]
    made = grid(head, rows, caption="Arms", right=[False, False, True, False, False, False])
    return join(facts(about), made)


def _arm_row(arm: ArmConfig, files: StudyFiles) -> list[Part]:
    counts = {record.parameters for (name, _), record in files.records.items() if name == arm.name}
    differs = [f"{key} {_plain(value)}" for key, value in arm.train.items()]
    if arm.match is not None:
        differs.append(f"{arm.match.size} chosen to match the {arm.match.part} of {arm.match.to}")
    differs += [f"{name} is zero" for name in arm.blank]
    differs += [f"{what} {name}" for what, name in (("solver", arm.solver), ("backward", arm.backward)) if name]
    differs += [f"floors from {arm.floor_from}"] if arm.floor_from else []
    penalties = [f"{name} ({_plain(options)})" for name, options in arm.penalties.items()]
    name = f"{arm.name} (reference)" if arm.name == files.study.reference else arm.name
    return [
        name,
        arm.model,
        f"{counts.pop():,}" if len(counts) == 1 else "",
        _plain(arm.options),
        "; ".join(penalties) or "none",
        "; ".join(differs),
    ]


def _verification(files: StudyFiles) -> Html:
    found = files.verification
    checked = f"{found.hashes} files rehashed, {found.metrics} metrics recomputed, {found.tables} tables rebuilt"
    verdict = (
        tag("p", f"The study verified when this report was made: {checked}.", of={"class": "good"})
        if found.ok
        else warning(f"The study does NOT verify; {checked}.")
    )
    parts: list[Part] = [verdict]
    parts.append(bullets([f"{fault.file}: {fault.message}" for fault in found.faults]) if found.faults else None)
    told = [f"{name}: not there, so not verified" for name in found.unverified] + found.notes
    parts.append(bullets(told) if told else None)
    if any(fault.file == MANIFEST for fault in found.faults):
        return join(parts)
    manifest = read_manifest(files.folder)
    rows = [["the whole study (its seal)", tag("span", manifest.seal, of={"class": "hash"})]]
    rows += [
        [name, tag("span", entry.sha256, of={"class": "hash"})]
        for name, entry in manifest.files.items()
        if name.endswith(("record.json", "study.json", ".safetensors"))
    ]
    parts.append(grid(["what", "SHA-256"], rows, caption="Seal and hashes", right=[False, False]))
    parts.append(note("The seal is a hash over the hashes of all files: if it is the same, so is every file."))
    return join(parts)


def _detail(files: StudyFiles, looks: Path | None) -> list[Section]:
    """The best run of the reference arm, as in a report of its own."""
    run = best_run(files.folder, files.study, files.records)
    if run is None:
        return []
    place = run_place(*run)
    opened = open_run_files(files.folder / place)
    showcase = fitting_showcase(opened, opened.folder if looks is None else looks / place)
    name = f"{run[0]}, seed {run[1]}"
    lead = join(
        paragraph(f"Of the runs of {run[0]} whose weights are here, this one did best on dev."),
        run_lead(opened, showcase),
    )
    parts = tuple(run_sections(opened, showcase, prefix="best-"))
    return [Section(anchor="best", title=f"One run in detail: {name}", content=lead, parts=parts)]


def _main_pair(files: StudyFiles) -> tuple[str, str] | None:
    """Test where it is labelled, else dev, by what weights are selected by."""
    pairs = scored_pairs(files.records.values())
    metric = next((record.metric for record in files.records.values()), "")
    wanted = [("test", metric), ("dev", metric), *pairs]
    return next((pair for pair in wanted if pair in pairs), None)


def _lines(files: StudyFiles, split: str, metric: str) -> list[ArmLine]:
    found = compare(files.study, files.records, split=split, metric=metric)
    return [*found, *compare_groups(files.study, files.records, split=split, metric=metric)]


def _chance(files: StudyFiles) -> float | None:
    """Of a guess among the classes, where all runs answer with one of them."""
    for run, record in files.records.items():
        if record.objective.task in ("classes", "ordinal") and record.metric == "accuracy" and record.scored:
            labels = open_run_files(files.folder / run_place(*run)).labels
            return 1 / len(labels) if labels else None
    return None


def _capital(words: str, study: Study) -> str:
    """A large letter at the beginning, unless an arm's name stands there."""
    named = any(words.startswith(f"{arm.name} ") for arm in study.arms)
    return words if named else words[:1].upper() + words[1:]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
