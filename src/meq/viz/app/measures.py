"""The tabs that take seconds: who moves whom, and the eigenvalues, at the state that is read."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.analysis.spectrum import Eigenvalues, leading_eigenvalues
from meq.viz.heatmap import influence_map
from meq.viz.letters import escaped
from meq.viz.spectrum_plane import eigenvalue_plane
from meq.viz.style import as_svg

SOLVED = 0.1
"""A linear solve that leaves more than this of its right hand side has found nothing."""
PUSHED = "Equilibrium of a row, pushed at a column: size of (I - J)^-1"
MOVED = "Share by which it changes when an input changes by its own size"

Tensors = Mapping[str, Tensor]


def influence_panel(model: Any, features: Tensors, masks: Tensors, caption: str) -> str:
    """Both tables of the diagnosis as heat maps, and its verdict with the numbers that led to it."""
    found = diagnose(model, _output(model, features, masks), samples=1)
    verdict = f"<p><b>{escaped(found.verdict.value)}</b>: {escaped(found.evidence)}.</p>"
    return f'<section class="meq-measure">{_about(caption)}{verdict}{_influence_figures(found)}</section>'


def spectrum_panel(model: Any, features: Tensors, masks: Tensors, caption: str) -> str:
    """The leading eigenvalues in the complex plane, and what their largest modulus means."""
    solution = _output(model, features, masks).solution.detach()
    found = leading_eigenvalues(solution.operator, solution)
    damping = _damping(model, solution.solver)
    said = "".join(f"<p>{escaped(line)}</p>" for line in radius_in_words(found, damping))
    figure = ""
    if not bool(found.values.abs().isnan().all()):
        figure = _figure(eigenvalue_plane(found, damping=damping), "leading eigenvalues in the complex plane")
    return f'<section class="meq-measure">{_about(caption)}{said}{figure}</section>'


def radius_in_words(found: Eigenvalues, damping: float | None) -> list[str]:
    """What the largest modulus says of the iteration, undamped and as it is taken."""
    moduli = found.values.abs()
    if bool(moduli.isnan().all()):
        return ["The eigenvalues were not found: they lie too close to each other for Arnoldi to tell them apart."]
    lines = [_radius_line("The undamped map", float(moduli.nan_to_num(0).max()))]
    if damping is not None and damping != 1:
        # Of the eigenvalues that were found: one that was not is smaller than all of these, and so is not the radius
        # of the undamped map, but 1 - d + d lambda may still be larger. The sentence says so.
        largest = float(found.damped(damping).abs().nan_to_num(0).max())
        lines.append(
            _radius_line(f"As it is iterated, damped by {damping:.3g}", largest)
            + " (Of the eigenvalues shown; damping may bring others forward.)"
        )
    return lines


def _radius_line(what: str, radius: float) -> str:
    begin = f"{what}: the largest modulus is {radius:.3f}, "
    if radius >= 1:
        return begin + "not below 1: near this state the iteration moves away along at least one direction."
    steps = math.ceil(math.log(0.1) / math.log(radius)) if radius > 0 else 1
    return begin + f"below 1: near this state a disturbance shrinks to a tenth in about {steps:,} steps."


def _output(model: Any, features: Tensors, masks: Tensors) -> Any:
    """The model's own output for the pair, in eval mode as the run was loaded."""
    with torch.no_grad():
        return model(dict(features), dict(masks))


def _damping(model: Any, solver: Any) -> float | None:
    """That of the model's own damped iteration; None where it was given another solver."""
    own = model.damped()
    return float(own.step) if type(solver) is type(own) else None


def _influence_figures(found: Diagnosis) -> str:
    if not found.influence or not bool((found.solve_residual <= SOLVED).all()):
        return "<p>I - J is singular, or nearly, so there is no table of influence.</p>"
    moved = influence_map(found.inputs, title=MOVED, columns="input of")
    pushed = influence_map(found.influence, title=PUSHED)
    return _figure(moved, MOVED) + _figure(pushed, PUSHED)


def _about(caption: str) -> str:
    return f'<p class="about">For the picture and the caption “{escaped(caption)}”, at the state that is read.</p>'


def _figure(figure: Figure, alternative: str) -> str:
    data = base64.b64encode(as_svg(figure)).decode()
    return f'<img class="figure" src="data:image/svg+xml;base64,{data}" alt="{escaped(alternative)}">'
