"""Measurements in a process of their own: they take seconds to minutes, and meanwhile the page answers others.

What differentiates the map twice chooses how attention is computed for its whole process, and figures change settings
of matplotlib; in the page's own process both would have to wait for every look, and every look for them. The process is
started when something is measured first, loads the fusion model alone (what the encoders made of a pair is sent to it),
and ends with the page.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import safetensors.torch
from torch import Tensor

from meq.data.contract import Batch

LOG = logging.getLogger(__name__)
MOST_SECONDS = 600.0
"""A measurement that takes longer is given up."""
COMMAND = "from meq.viz.app.measuring_process import main; main()"


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
        with self._one_at_a_time:
            process = self._running()
            timer = threading.Timer(MOST_SECONDS, process.kill)
            timer.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                send(process.stdin, {"which": which, "caption": caption}, tensors_of(batch))
                answer = dict(
                    json.loads(process.stdout.readline())
                )  # of a process that is gone an empty line: an error
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


def send(pipe: IO[bytes], question: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """A line of JSON that says how many bytes follow, and these."""
    content = safetensors.torch.save(dict(tensors))
    pipe.write(json.dumps({**question, "bytes": len(content)}).encode() + b"\n" + content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """What `send` sent; None where the other end is gone."""
    line = pipe.readline()
    if not line:
        return None
    question = json.loads(line)
    return question, safetensors.torch.load(pipe.read(question.pop("bytes")))


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """Features and masks under names that say which is which."""
    named = {f"features {name}": x for name, x in batch.features.items()}
    named |= {f"masks {name}": x for name, x in batch.masks.items()}
    return {name: x.detach().cpu().contiguous() for name, x in named.items()}
