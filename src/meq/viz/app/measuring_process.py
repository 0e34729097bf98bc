"""The process that measures, as `measuring` starts it: questions come in through a pipe, panels go out.

It draws the tabs that take seconds: who moves whom, and the eigenvalues, at the state that is read.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from meq.runs.load import load_run
from meq.runs.pairs import diagnosis_of_pair, has_influence, spectrum_of_pair
from meq.viz.app.measuring import receive
from meq.viz.app.panels import panel
from meq.viz.equilibrium import eigenvalue_plane, influence_map
from meq.viz.style import as_svg
from meq.viz.templating import data_uri

PUSHED = "Equilibrium of a row, pushed at a column: size of (I - J)^-1"
MOVED = "Share by which it changes when an input changes by its own size"
NICE = 10
"""Lower priority than the page's own process, in which people wait for a look."""
Question = tuple[dict[str, Any], dict[str, Tensor]]


def main() -> None:
    """Answer questions until the page closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the page decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    if hasattr(os, "nice"):
        os.nice(NICE)
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    questions = _questions(sys.stdin.buffer)
    model = load_run(Path(sys.argv[1])).model
    while True:
        answers.write(json.dumps(answer(model, questions.get())).encode() + b"\n")
        answers.flush()


def answer(model: Any, question: Question) -> dict[str, str]:
    """The panel, or the traceback of what went wrong: it belongs in the log of the page."""
    asked, tensors = question
    try:
        features, masks = _named("features", tensors), _named("masks", tensors)
        return {"panel": PANELS[asked["which"]](model, features, masks, asked["caption"])}
    except Exception:
        return {"bug": traceback.format_exc()}


def influence_panel(model: Any, features: dict[str, Tensor], masks: dict[str, Tensor], caption: str) -> str:
    """Both tables of the diagnosis as heat maps, and its verdict with the numbers that led to it."""
    found = diagnosis_of_pair(model, features, masks)
    about = {"verdict": found.verdict.value, "evidence": found.evidence}
    if not has_influence(found):
        lines = ["I - J is singular, or nearly, so there is no table of influence."]
        return panel("measure", caption, [], lines=lines, **about)
    moved = _figure(influence_map(found.inputs, title=MOVED, columns="input of"), MOVED)
    pushed = _figure(influence_map(found.influence, title=PUSHED), PUSHED)
    return panel("measure", caption, [moved, pushed], **about)


def spectrum_panel(model: Any, features: dict[str, Tensor], masks: dict[str, Tensor], caption: str) -> str:
    """The leading eigenvalues in the complex plane, and what their largest modulus means."""
    found = spectrum_of_pair(model, features, masks)
    figures = []
    if found.found:
        plane = eigenvalue_plane(found.values, damping=found.damping)
        figures = [_figure(plane, "leading eigenvalues in the complex plane")]
    return panel("measure", caption, figures, lines=found.in_words())


PANELS = {"influence": influence_panel, "spectrum": spectrum_panel}


def _figure(figure: Figure, alt: str) -> dict[str, str]:
    return {"uri": data_uri(as_svg(figure), "image/svg+xml"), "alt": alt}


def _named(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind} "): x for name, x in tensors.items() if name.startswith(f"{kind} ")}


def _questions(pipe: IO[bytes]) -> queue.Queue[Question]:
    """The questions as they come through the pipe. When the page is gone, this process ends at once."""
    waiting: queue.Queue[Question] = queue.Queue()

    def listen() -> None:
        while (question := receive(pipe)) is not None:
            waiting.put(question)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return waiting
