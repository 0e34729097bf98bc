"""All pictures of one explanation, in a folder."""

from __future__ import annotations

from pathlib import Path

from meq.core.options import nearest
from meq.experiments.runs.explanation import Contrast, Explanation
from meq.viz.animation import FORMS, animate
from meq.viz.curves import probability_along_k
from meq.viz.grid import explanation_grid
from meq.viz.style import save


def check_form(form: str) -> None:
    """An error for an animation that cannot be written, before anything is computed."""
    if f".{form}" not in FORMS:
        raise ValueError(f"there is no animation {form!r}: {nearest(form, [suffix[1:] for suffix in FORMS])}")


def draw_explanation(found: Explanation | Contrast, folder: Path, *, form: str = "gif") -> list[Path]:
    """The grid as explanation.png and .svg, the animation, and for a contrast its curves; the files, in that order."""
    check_form(form)
    shown = [found.matched, found.mismatched] if isinstance(found, Contrast) else [found]
    files = [*save(explanation_grid(shown), folder / "explanation"), animate(shown[0], folder / f"explanation.{form}")]
    if isinstance(found, Contrast) and found.matched.probabilities is not None:
        files += save(probability_along_k(found), folder / "contrast")
    return files
