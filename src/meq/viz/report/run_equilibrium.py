"""The equilibrium of a run: score and residual along k, diagnosis, influence, eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from meq.analysis.collapse import QUESTIONS
from meq.analysis.spectrum import radius_in_words
from meq.analysis.tables import number, spread
from meq.experiments.runs.analysis import DiagnosisFile, Numbers, TrajectoryFile
from meq.experiments.runs.showcase_file import EigenvaluesFile
from meq.viz.curves import Line, residual_along_k, score_along_k
from meq.viz.heatmap import influence_map
from meq.viz.report.markup import Html, Part, grid, join, note, paragraph, tag, warning
from meq.viz.report.pictures import drawing
from meq.viz.spectrum_plane import eigenvalue_plane

VERDICTS = {
    "healthy": "the iteration settles, it has learned, every modality counts for the answers, and they are coupled",
    "identity collapse": "a step changes nothing any more: the states stay where they began, and the small residual is "
    "no agreement",
    "fixed-point collapse": "every input ends in the same state, so the answer cannot depend on it",
    "expansive": "the iteration moves away from what it should settle at",
    "does not settle": "the iteration is not at rest within the steps that were allowed",
    "nothing learned": "its answers are no better than always the same answer, or than chance",
    "modalities not coupled": "the states do not listen to each other",
    "no fault found, but not all was measured": "what was measured is in order, which is not yet healthy",
    "modality ignored": "one of the inputs has no part in the answer",
}
SINGULAR = "there is no table of influence"


def along_k(found: TrajectoryFile, *, chance: float | None) -> Html:
    """What the model would answer if it were read earlier or later."""
    figures: list[Part] = []
    if found.metric is not None:
        line = Line(
            name=f"{found.samples:,} examples of {found.origin.split}", steps=found.steps, values=(found.metric,)
        )
        figures.append(
            drawing(
                score_along_k([line], read=found.read, chance=chance, metric=found.metric_name),
                alt=_in_words(found.metric_name, found.steps, found.metric),
                caption=f"Score of the same weights, read at step k; K = {found.read} is what was trained.",
            )
        )
    if all(not math.isnan(value) for value in found.confidence):
        line = Line(name="median over the examples", steps=found.steps, values=(found.confidence,))
        figures.append(
            drawing(
                score_along_k([line], read=found.read, chance=chance, metric="probability of the answer"),
                alt=_in_words("probability of the answer, median,", found.steps, found.confidence),
                caption="How sure the model is of its answer at step k.",
            )
        )
    residuals = {name: _tensor(values) for name, values in found.residuals.items()}
    if any(bool((values > 0).any()) for values in residuals.values()):
        words = "; ".join(_in_words(f"residual of {name}", found.steps, found.residuals[name]) for name in residuals)
        figures.append(
            drawing(
                residual_along_k(residuals, list(found.steps), read=found.read),
                alt=words,
                caption="Residual |z - T(z)| / |z| of the undamped map, median over the examples: how far one more "
                "whole step would move the state. A straight fall on this scale is steady settling.",
            )
        )
    flips = found.flips[found.steps.index(found.read)] if found.read in found.steps else 0
    drift = ", ".join(f"{name} {number(value)}" for name, value in found.drift.items())
    return join(
        tag("div", figures, of={"class": "pair"}),
        paragraph(
            f"From K = {found.read} to k = {found.steps[-1]}, {flips} of {found.samples:,} answers change, and the "
            f"states move by (relative, median): {drift}."
        ),
        warning(f"{found.diverged} examples diverged.") if found.diverged else None,
    )


def diagnosis(found: DiagnosisFile) -> Html:
    """The verdict, and every number with what it means."""
    old = found.verdict == "healthy" and not found.findings
    verdict = tag(
        "p",
        tag("strong", f"Verdict: {found.verdict}. "),
        f"{VERDICTS.get(found.verdict, '').capitalize()}. Evidence: {found.evidence}.",
        of={"class": "good" if found.verdict == "healthy" and not old else "warning"},
    )
    unknown = (
        note(
            "This diagnosis is of an older version, which did not ask whether the answers are right or need every "
            "modality: run meq analyze again."
        )
        if old
        else None
    )
    rows = [[name, value, meaning] for name, value, meaning in _numbers(found)]
    title = (
        f"{found.measured} of {found.samples} samples of {found.origin.split} were measured, at the state that is read"
    )
    made = grid(["what", "median [min, max]", "what it means"], rows, caption=title, right=[False, True, False])
    return join(verdict, unknown, _findings(found), made)


def _findings(found: DiagnosisFile) -> Html | None:
    """The questions behind the verdict, each with its answer."""
    if not found.findings:
        return None
    said = {True: "yes", False: "no", None: "not measured"}
    rows = [[QUESTIONS.get(name, name) + "?", said[each.holds], each.words] for name, each in found.findings.items()]
    return grid(
        ["question", "answer", "evidence"],
        rows,
        caption="What the verdict rests on; intervals are of 95 %",
        right=[False] * 3,
    )


def influence(found: DiagnosisFile) -> Html:
    """Who moves whom."""
    if SINGULAR in found.page or not found.influence:
        return note("I - J is singular, or nearly, or no sample stayed finite: there is no influence to show.")
    pushed = influence_map(_tensors(found.influence))
    moved = influence_map(
        _tensors(found.inputs), title="Response to the inputs, relative", columns="input of", rows="equilibrium of"
    )
    pairs = [
        drawing(
            pushed, alt=_table_in_words("pushed by", found.influence),
            caption="Row: whose equilibrium moves. Column: who is pushed. Through every path, medians over samples; "
            "the diagonal is a modality's influence on itself.",
        ),
        drawing(
            moved, alt=_table_in_words("input of", found.inputs),
            caption="By what share a state's equilibrium changes when an input changes by its own size, in a random "
            "direction. Off the diagonal: how far one modality's input reaches the other's state.",
        ),
    ]  # fmt: skip
    return tag("div", pairs, of={"class": "pair"})


def spectrum(found: EigenvaluesFile) -> Html:
    """Eigenvalues in the complex plane."""
    values = found.values()
    known = values[~values.abs().isnan()]
    if not len(known):
        return note("No eigenvalue was found to the accuracy that was asked for.")
    largest = float(known.abs().max())
    return drawing(
        eigenvalue_plane(values, damping=found.damping),
        alt=f"{len(known)} leading eigenvalues of {len(values)} samples in the complex plane; the largest modulus is "
        f"{largest:.3f}, the unit circle is drawn.",
        caption="Inside the circle: what is disturbed in that direction dies out from step to step. Eigenvalues off "
        "the real axis turn while they shrink, as modalities do that answer each other.",
    )


def _numbers(found: DiagnosisFile) -> list[tuple[str, str, str]]:
    tensor = _tensor
    steps = tensor(found.further_steps)
    settled = "already there" if bool((steps == 0).all()) else spread(steps)
    rows = [
        ("spectral radius, undamped", _radius(found), "below 1: the map itself would settle nearby"),
        ("spectral radius, as iterated", spread(tensor(found.damped_radius)), "below 1: what is iterated settles; the "
         "distance to 1 is its pace"),
        ("|J|, rms singular value", spread(tensor(found.statistic)), "size of the Jacobian: 1 for a step that changes "
         "nothing; the penalty holds it in a range"),
        ("residual at the read state", spread(tensor(found.residual)), "relative length of one more whole step; the "
         "largest modality"),
        (f"further steps to {found.tol:g}", settled, "predicted from pace and residual"),
        *([("steps until at rest", spread(tensor(found.settling_steps)), "measured, by going on")]
          if found.settling_steps else []),
    ]  # fmt: skip
    rows += [
        (f"cross/self, {name}", spread(tensor(values)), "how much its update listens to the others, over itself")
        for name, values in found.cross_self.items()
    ]
    rows += [
        (f"mean gate, {name}", spread(tensor(values)), "share of a proposed change that is taken")
        for name, values in found.gates.items()
    ]
    rows += [
        (f"answer moved by {name}", spread(tensor(values)), "change of the logits when this input changes by its size")
        for name, values in found.answer.items()
    ]
    return [
        *rows,
        ("states differ by", number(found.spread), "between samples, relative; 0: all inputs end in one state"),
    ]


def _radius(found: DiagnosisFile) -> str:
    if len(found.radius_bounds) != 2:
        return spread(_tensor(found.radius))
    return radius_in_words(_tensor(found.radius), *(_tensor(bound) for bound in found.radius_bounds))


def _tensor(values: Numbers) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _tensors(square: Mapping[str, Mapping[str, Numbers]]) -> dict[str, dict[str, Tensor]]:
    return {a: {b: _tensor(values) for b, values in row.items()} for a, row in square.items()}


def _in_words(name: str, steps: tuple[int, ...], values: Numbers) -> str:
    shown = sorted({0, len(steps) // 4, len(steps) // 2, len(steps) - 1})
    return f"{name} " + ", ".join(f"{number(values[at])} at k = {steps[at]}" for at in shown)


def _table_in_words(by: str, square: Mapping[str, Mapping[str, Numbers]]) -> str:
    cells = [
        f"{a} {by} {b}: {number(float(_tensor(values).nanmedian()))}"
        for a, row in square.items()
        for b, values in row.items()
    ]
    return "; ".join(cells)
