"""Measurements in a process of their own: they take seconds to minutes, and meanwhile the page answers others.

What differentiates the map twice chooses how attention is computed for its whole process, and figures change settings
of matplotlib; in the page's own process both would have to wait for every look, and every look for them. The process is
started when something is measured first, loads the fusion model alone (what the encoders made of a pair is sent to it),
and ends with the page. Questions go to it through a pipe, panels come back: those of the tabs that take seconds.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor

from meq.data.contract import Batch
from meq.runs.load import load_run
from meq.runs.pairs import diagnosis_of_pair, spectrum_of_pair
from meq.viz.app.panels import panel
from meq.viz.templating import data_uri

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG = logging.getLogger(__name__)
MOST_SECONDS = 600.0
"""A measurement that takes longer is given up."""
COMMAND = "from meq.viz.app.measuring import main; main()"
PUSHED = "Equilibrium of a row, pushed at a column: size of (I - J)^-1"
MOVED = "Share by which it changes when an input changes by its own size"
NICE = 10
"""Lower priority than the page's own process, in which people wait for a look."""
Question = tuple[dict[str, Any], dict[str, Tensor]]


class MeasuringError(RuntimeError):
    """A measurement that came to nothing; the message is meant for the person who asked."""


class MeasuringProcess:
    """The process, and the pipe to it; one measurement at a time."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of a trained run."""
        self._folder = folder
        self._one_at_a_time = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def measure(self, which: str, batch: Batch, caption: str) -> str:
        """The panel `which` for the pair in the batch, as HTML."""
        tensors = {f"features {name}": x for name, x in batch.features.items()}
        tensors |= {f"masks {name}": x for name, x in batch.masks.items()}
        content = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
        question = {"which": which, "caption": caption, "bytes": len(content)}
        with self._one_at_a_time:
            process = self._running()
            timer = threading.Timer(MOST_SECONDS, process.kill)
            timer.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(question).encode() + b"\n" + content)
                process.stdin.flush()
                answer = dict(json.loads(process.stdout.readline()))  # an empty line if it is gone: an error
            except (OSError, ValueError) as error:  # its end of the pipe is gone, whatever ended it
                self._end()
                LOG.error("the process that measures ended with %s", process.returncode)
                raise MeasuringError(
                    "The measurement broke off: it took too long, or memory was short. Try it on a smaller model."
                ) from error
            finally:
                timer.cancel()
        if "bug" in answer:
            LOG.error("a measurement failed:\n%s", answer["bug"])
            raise MeasuringError("The measurement failed: this is a bug in meq, please report what the server printed.")
        return str(answer["panel"])

    def close(self) -> None:
        """End the process, whatever it is doing, and start no other."""
        self._closed = True
        self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise MeasuringError("The page is being closed.")
        if self._process is None or self._process.poll() is not None:
            self._end()
            here = str(Path(__file__).parents[3])
            paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what was written to a process that is gone
                        pipe.close()


# -- in the other process ----------------------------------------------------------------------------------------------


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
        named = [name.partition(" ") for name in tensors]
        features, masks = (
            {name: tensors[f"{kind} {name}"] for kind, _, name in named if kind == wanted}
            for wanted in ("features", "masks")
        )
        return {"panel": PANELS[asked["which"]](model, features, masks, asked["caption"])}
    except Exception:
        return {"bug": traceback.format_exc()}


def influence_panel(model: Any, features: dict[str, Tensor], masks: dict[str, Tensor], caption: str) -> str:
    """Both tables of the diagnosis as heat maps, and its verdict with the numbers that led to it."""
    from meq.viz.equilibrium import influence_map  # matplotlib, which the page itself does not load

    found = diagnosis_of_pair(model, features, masks)
    about = {"verdict": found.verdict.value, "evidence": found.evidence}
    if found.singular or not found.influence:
        lines = ["I - J is singular, or nearly, so there is no table of influence."]
        return panel("measure", caption, [], lines=lines, **about)
    moved = _shown(influence_map(found.inputs, title=MOVED, columns="input of"), MOVED)
    pushed = _shown(influence_map(found.influence, title=PUSHED), PUSHED)
    return panel("measure", caption, [moved, pushed], **about)


def spectrum_panel(model: Any, features: dict[str, Tensor], masks: dict[str, Tensor], caption: str) -> str:
    """The leading eigenvalues in the complex plane, and what their largest modulus means."""
    from meq.viz.equilibrium import eigenvalue_plane

    found = spectrum_of_pair(model, features, masks)
    figures = []
    if found.found:
        plane = eigenvalue_plane(found.values, damping=found.damping)
        figures = [_shown(plane, "leading eigenvalues in the complex plane")]
    return panel("measure", caption, figures, lines=found.in_words())


PANELS = {"influence": influence_panel, "spectrum": spectrum_panel}


def _shown(figure: Figure, alt: str) -> dict[str, str]:
    from meq.viz.style import as_svg

    return {"uri": data_uri(as_svg(figure), "image/svg+xml"), "alt": alt}


def _questions(pipe: IO[bytes]) -> queue.Queue[Question]:
    """The questions as they come through the pipe. When the page is gone, this process ends at once."""
    waiting: queue.Queue[Question] = queue.Queue()

    def listen() -> None:
        while line := pipe.readline():
            asked = json.loads(line)
            waiting.put((asked, safetensors.torch.load(pipe.read(asked["bytes"]))))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return waiting
