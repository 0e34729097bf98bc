"""The process that measures, as `measuring` starts it: questions come in through a pipe, panels go out."""

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
from torch import Tensor

from meq.experiments.runs.load import load_run
from meq.viz.app.measures import influence_panel, spectrum_panel
from meq.viz.app.measuring import receive

PANELS = {"influence": influence_panel, "spectrum": spectrum_panel}
NICE = 10
"""Whoever waits for a look comes first."""
Question = tuple[dict[str, Any], dict[str, Tensor]]


def main() -> None:
    """Answer until the pipe ends, and with it the page."""
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


def _named(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind} "): x for name, x in tensors.items() if name.startswith(f"{kind} ")}


def _questions(pipe: IO[bytes]) -> queue.Queue[Question]:
    """What comes through the pipe. When its other end is gone, nobody waits for an answer: all of this ends at once."""
    waiting: queue.Queue[Question] = queue.Queue()

    def listen() -> None:
        while (question := receive(pipe)) is not None:
            waiting.put(question)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return waiting
