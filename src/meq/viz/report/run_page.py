"""A report of one run."""

from __future__ import annotations

from pathlib import Path

from meq.experiments.runs.files import RunFiles
from meq.experiments.runs.showcase_file import ShowcaseFile, read_showcase
from meq.viz.report.markup import Html, Part, bullets, join, note, paragraph, tag, warning
from meq.viz.report.page import Section
from meq.viz.report.run_equilibrium import along_k, diagnosis, influence, spectrum
from meq.viz.report.run_examples import examples
from meq.viz.report.run_facts import summary, what_was_run
from meq.viz.report.run_results import hashes, scores, training

NOT_LOOKED_AT = (
    "Only the files of the run were read. Examples, diagnosis and the score along k need its model and its data: "
    "`meq report RUN --root FOLDER` computes them where both are at hand."
)


def fitting_showcase(files: RunFiles, folder: Path) -> ShowcaseFile | None:
    """What was seen of the run, kept in that folder; None if there is nothing, or it is of other weights."""
    found, checkpoint = read_showcase(folder), files.record.checkpoint
    fits = found is not None and checkpoint is not None and found.origin.weights_sha256 == checkpoint.sha256
    return found if fits else None


def run_title(files: RunFiles) -> str:
    record = files.record
    name = record.arm or str(record.model["model"])
    return f"{name} on {record.data.name}, seed {record.seed}"


def run_lead(files: RunFiles, showcase: ShowcaseFile | None) -> list[Part]:
    return [*summary(files), *_missing(files, showcase)]


def run_sections(files: RunFiles, showcase: ShowcaseFile | None, *, prefix: str = "") -> list[Section]:
    """All there is to say; `prefix` keeps the places apart where a page holds more than a run."""
    made = [
        Section(anchor=f"{prefix}scores", title="Scores", content=scores(files)),
        *_looked_at(files, showcase, prefix),
        Section(anchor=f"{prefix}training", title="Training", content=training(files)),
        Section(anchor=f"{prefix}run", title="What was run", content=what_was_run(files)),
        Section(anchor=f"{prefix}hashes", title="Hashes", content=hashes(files)),
    ]
    return made


def _looked_at(files: RunFiles, showcase: ShowcaseFile | None, prefix: str) -> list[Section]:
    if showcase is None:
        return []
    made = []
    if showcase.trajectory is not None:
        content = along_k(showcase.trajectory, chance=_chance(files))
        made.append(Section(anchor=f"{prefix}steps", title="The answer along the iteration", content=content))
    if showcase.examples:
        made.append(
            Section(anchor=f"{prefix}examples", title="The worst and the best examples", content=examples(showcase))
        )
    if showcase.diagnosis is not None:
        parts: list[Part] = [diagnosis(showcase.diagnosis)]
        parts += [tag("h3", "Influence"), influence(showcase.diagnosis)]
        if showcase.eigenvalues is not None:
            parts += [tag("h3", "Eigenvalues"), spectrum(showcase.eigenvalues)]
        made.append(
            Section(anchor=f"{prefix}diagnosis", title="Diagnosis of the equilibrium", content=_equilibrium(parts))
        )
    return made


def _equilibrium(parts: list[Part]) -> Html:
    return join(
        paragraph("Measured on a few samples, at the state that the answer is read from, with dropout off."), *parts
    )


def _chance(files: RunFiles) -> float | None:
    """Of a guess among classes that are alike; for other scores there is no such number."""
    plain = files.head in ("classes", "ordinal") and files.record.metric == "accuracy"
    return 1 / len(files.labels) if plain and files.labels else None


def _missing(files: RunFiles, showcase: ShowcaseFile | None) -> list[Part]:
    if showcase is None:
        return [warning(NOT_LOOKED_AT)]
    parts: list[Part] = []
    if showcase.missing:
        parts += [warning("Not everything could be looked at here:"), bullets(showcase.missing)]
    if showcase.reproduced is not None and showcase.origin.same_data:
        found = (
            f"the largest difference of a logit is {showcase.reproduced:.1e}"
            if showcase.reproduced
            else "digit by digit"
        )
        parts.append(
            note(f"Stored answers to {showcase.origin.split} were computed again and came out the same: {found}.")
        )
    elif showcase.reproduced is not None:
        parts.append(
            warning(
                "The data here does not give the answers that were stored at the end of training: it is other data, or "
                "was changed since. What is shown of examples and steps is of the data that is here."
            )
        )
    return parts
