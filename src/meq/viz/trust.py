"""Figures of what can be relied on: confidence beside the share of right answers, and what the answers rest on."""

from __future__ import annotations

from collections.abc import Sequence

import meq.viz.needs  # noqa: F401

# isort: split
from matplotlib.figure import Figure

from meq.analysis.answers import Estimate
from meq.analysis.importance import PartImportance
from meq.analysis.probabilities import Reliability
from meq.analysis.tables import number
from meq.runs.importance import Importance, read_importance
from meq.runs.probabilities import CheckedProbabilities, checked_probabilities
from meq.runs.words import WordImportance
from meq.viz.colours import BLUE, FAINT, LOST, ORANGE
from meq.viz.run_figures import ReportedRun
from meq.viz.style import MOST_OF_NAME, Drawing, new_figure, plain, styled

MOST_BARS = 24
ROW = 0.26
"""Inches per bar."""


def reliability_figure(found: CheckedProbabilities) -> Figure:
    """Confidence against the share that is right, raw and with the temperature; on the diagonal they agree."""
    with styled():
        figure = new_figure(4.6, 4.4)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=LOST, linewidth=1.0, linestyle=":", label="as sure as right")
        lines: list[tuple[str, Reliability | None, str, str]] = [
            ("raw", found.before, ORANGE, "o"),
            ("with its temperature", found.after, BLUE, "s"),
        ]
        for name, each, colour, marker in lines:
            if each is not None:
                label = f"{name}, error {each.error:.3f}"
                axes.plot(each.confidence, each.right, color=colour, marker=marker, label=label)
        axes.set(xlim=(0, 1.01), ylim=(-0.01, 1.02), xlabel="confidence", ylabel="share of right answers")
        axes.set_title("How often answers are right that are so sure")
        axes.legend(loc="upper left")
    return figure


def importance_figure(parts: Sequence[PartImportance], *, score_name: str, title: str) -> Figure:
    """What the score loses, a row per part: shuffled as bars with their interval, removed as marks."""
    with styled():
        figure = new_figure(6.4, 1.1 + ROW * len(parts))
        axes = figure.add_subplot()
        rows = range(len(parts))
        values = [each.shuffled.value for each in parts]
        below = [max(0.0, each.shuffled.value - each.shuffled.low) for each in parts]
        above = [max(0.0, each.shuffled.high - each.shuffled.value) for each in parts]
        axes.barh(rows, values, color=BLUE, alpha=0.75, xerr=[below, above], ecolor=FAINT, label="shuffled")
        taken = [(row, each.removed.value) for row, each in enumerate(parts) if each.removed is not None]
        if taken:
            axes.plot([x for _, x in taken], [y for y, _ in taken], "D", color=ORANGE, label="removed")
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.set_yticks(list(rows), [plain(each.name, MOST_OF_NAME) for each in parts])
        axes.invert_yaxis()
        axes.set_xlabel(f"{score_name} lost")
        axes.set_title(title)
        axes.legend(loc="lower right")
    return figure


def words_figure(words: Sequence[WordImportance], *, lost: str) -> Figure:
    """What is lost without a word, a row per word with its interval and the number of examples that have it."""
    with styled():
        figure = new_figure(6.4, 1.1 + ROW * len(words))
        axes = figure.add_subplot()
        rows = range(len(words))
        found = [each.lost for each in words]
        below, above = ([max(0.0, x) for x in side] for side in zip(*_sides(found), strict=True))
        axes.barh(rows, [each.value for each in found], color=BLUE, alpha=0.75, xerr=[below, above], ecolor=FAINT)
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.set_yticks(list(rows), [f"{plain(each.word, MOST_OF_NAME)} ({each.found:,})" for each in words])
        axes.invert_yaxis()
        axes.set_xlabel(f"{lost} lost without the word")
        axes.set_title("What single words count")
    return figure


def _sides(found: Sequence[Estimate]) -> list[tuple[float, float]]:
    return [(each.value - each.low, each.high - each.value) for each in found]


# -- of a run's files --------------------------------------------------------------------------------------------------


def importance_of(run: ReportedRun) -> Importance | None:
    """What `meq importance` kept of these weights."""
    checkpoint = run.files.record.checkpoint
    return None if checkpoint is None else read_importance(run.files.folder, checkpoint.sha256)


def reliability_diagram(run: ReportedRun) -> list[Drawing]:
    """Confidence beside the share of right answers, on the split that is reported."""
    found = checked_probabilities(run.files)
    if found is None:
        return []
    after = "" if found.after is None else f", {found.after.error:.3f} with its temperature"
    return [
        Drawing(
            figure=reliability_figure(found),
            alt=f"Reliability diagram of {found.rows:,} answers to {found.split}: expected calibration error "
            f"{found.before.error:.3f} raw{after}.",
            caption=f"Answers to {found.split} in bins of confidence. Below the diagonal the model is too sure. The "
            "expected calibration error is the mean distance from it.",
        )
    ]


def importance_bars(run: ReportedRun) -> list[Drawing]:
    """What counts: modalities, columns and tokens, each in a figure of its own."""
    found = importance_of(run)
    if found is None:
        return []
    made = []
    titles = {"modality": "What each modality counts", "column": "What columns count", "token": "What tokens count"}
    for kind, title in titles.items():
        shown = found.ranked(kind)[:MOST_BARS]
        if shown:
            words = [f"{each.name} {number(each.shuffled.value)}" for each in shown[:6]]
            made.append(
                Drawing(
                    figure=importance_figure(shown, score_name=found.score_name, title=title),
                    alt=f"{title}, {found.score_name} lost when shuffled: {', '.join(words)}.",
                    caption=f"{title} on {found.origin.split}: {found.score_name} that is lost when it is shuffled "
                    "across the examples (bars, with 95 % intervals) and when it is removed (marks)."
                    + ("" if len(shown) < MOST_BARS else f" The {MOST_BARS} that count most."),
                )
            )
    return [*made, *_words_bars(found)]


def _words_bars(found: Importance) -> list[Drawing]:
    shown = found.words[:MOST_BARS]
    if not shown:
        return []
    lost = found.score_name if shown[0].probability is None else "probability of the true answer"
    said = [f"{each.word} {number(each.lost.value)}" for each in shown[:6]]
    return [
        Drawing(
            figure=words_figure(shown, lost=lost),
            alt=f"What single words count, {lost} lost when a word is left out: {', '.join(said)}.",
            caption=f"Frequent words of the texts of {found.origin.split}, each left out of those that have it (how "
            f"many is in brackets): {lost} that is lost, with 95 % intervals."
            + ("" if len(found.words) <= MOST_BARS else f" The {MOST_BARS} that count most."),
        )
    ]
