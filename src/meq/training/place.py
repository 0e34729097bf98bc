"""A run's folder while it is trained in: held by one process, with room for what is to come, and still there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn

from meq.files import BusyError, NoSpaceError, alone, free_bytes, in_bytes, remove, room_in_words, same_place
from meq.training.checkpoint import Checkpoints

LEFT_OVER = (".*.writing", "model/.*.writing", "model/.saving-*", "predictions/.*.writing", "checkpoints/.writing-*")
"""What a killed process may leave half-written."""
CHECKPOINT_SIZE = 3
"""In weights: those of the model, and two numbers per weight for AdamW."""


class GoneError(FileNotFoundError):
    """What belongs to the run was removed while it was under way."""


class RunPlace:
    """The folder of a run that is about to be trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.found: os.stat_result | None = None
        """The folder as it was when it was taken hold of."""

    @contextmanager
    def held(self, accelerator: Accelerator) -> Iterator[None]:
        """No other run may be trained here meanwhile. Of one launch, the first process holds it for all of them."""
        with ExitStack() as stack:
            problem: Exception | None = None
            if accelerator.is_main_process:
                try:
                    stack.enter_context(alone(self.folder, busy(self.folder)))
                except BusyError as error:
                    problem = error
            _raise_everywhere(accelerator, problem)
            self.found = self.folder.stat()
            yield

    def clean(self) -> None:
        """Remove what a killed run left half-written; only for who holds the folder."""
        for pattern in LEFT_OVER:
            remove(self.folder.glob(pattern))

    def refuse_too_little_room(self, accelerator: Accelerator, model: nn.Module, checkpoints: Checkpoints) -> None:
        """An error before any work, where the disk cannot hold the run's checkpoints and its weights."""
        weights = sum(x.numel() * x.element_size() for x in model.state_dict().values())
        there = len(list(checkpoints.folder.glob("step-*")))
        # one more than are kept, since the oldest goes when the newest is there; and the kept weights, old and new
        needed = weights * (CHECKPOINT_SIZE * max(1, checkpoints.keep + 1 - there) + 2)
        free = free_bytes(self.folder)
        problem = NoSpaceError(
            f"the run needs about {in_bytes(needed)} for weights and checkpoints, and {in_bytes(free)} are free on the "
            f"disk of {self.folder}: make room, or choose a folder on another disk"
        )
        _raise_everywhere(accelerator, problem if free < needed else None)

    def gone(self) -> bool:
        """Whether the folder was removed, or another one has taken its place."""
        return self.found is not None and not same_place(self.folder, self.found)

    def refuse_gone(self) -> None:
        """A run that made its folder anew would end well, with a part of its files."""
        if self.gone():
            raise self.gone_error()

    def gone_error(self) -> GoneError:
        return GoneError(
            f"{self.folder} was removed, or replaced by another folder, while the run was trained in it: what it had "
            "written is lost. Train again, in a folder that stays"
        )

    def full_error(self, checkpoint: Path | None) -> NoSpaceError:
        good = f"The last good checkpoint is {checkpoint}" if checkpoint else "It had not come to its first checkpoint"
        return NoSpaceError(
            f"the run in {self.folder} could not be kept: {room_in_words(self.folder / 'x')}. {good}; the run is not "
            "lost: make room and resume it"
        )


def busy(folder: Path) -> str:
    return f"another process is at work on the run in {folder}: wait until it has finished, or train in another folder"


def refuse_busy(folder: Path) -> None:
    """A BusyError if a run is being trained in the folder: worth asking before data is read."""
    if folder.is_dir():
        with alone(folder, busy(folder)):
            pass


def _raise_everywhere(accelerator: Accelerator, problem: Exception | None) -> None:
    """What the first process says holds for all: one alone that gave up would leave the others waiting."""
    if accelerator.num_processes > 1:
        problem = broadcast_object_list([problem])[0]
    if problem is not None:
        raise problem
