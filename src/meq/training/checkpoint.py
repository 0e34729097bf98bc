"""What is written while a run is trained: its checkpoints, in a folder that one process holds.

A checkpoint is a folder `step-00000120` of safetensors and JSON files, written under another name and renamed when all
its files and their hashes are on disk, so that a killed process leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors
from torch import Tensor, nn

from meq.records import (
    BusyError,
    NoSpaceError,
    alone,
    free_bytes,
    in_bytes,
    is_full,
    parse_json,
    remove,
    room_in_words,
    same_place,
    sha256,
    sync,
    write_bytes,
)

MODEL, OPTIMISER, STATE, MANIFEST = "model.safetensors", "optimiser.safetensors", "state.json", "manifest.json"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be read; the message says what to do."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path
    keep: int = 2
    """How many of the newest stay on disk."""

    def save(self, step: int, model: nn.Module, optimiser: torch.optim.Optimizer, progress: dict[str, Any]) -> Path:
        """Write one; an error names the last good one, which is untouched."""
        final = self.folder / f"step-{step:08d}"
        staging = self.folder / f".writing-{final.name}-{os.getpid()}"
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            save_file(_plain(model.state_dict()), staging / MODEL)
            state = optimiser.state_dict()["state"]
            tensors = {f"{index}.{key}": x for index, entry in state.items() for key, x in entry.items()}
            save_file(_plain(tensors), staging / OPTIMISER)
            _write_json(staging / STATE, {"step": step, "progress": progress, "rng": rng_state()})
            for name in (MODEL, OPTIMISER):  # safetensors makes files that only their owner can read
                os.chmod(staging / name, (staging / STATE).stat().st_mode)
            _write_json(staging / MANIFEST, {name: sha256(staging / name) for name in (MODEL, OPTIMISER, STATE)})
            for name in (MODEL, OPTIMISER):
                sync(staging / name)
            if final.exists():  # a resumed run comes by again
                shutil.rmtree(final)
            os.rename(staging, final)
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            good = self.newest()
            why = room_in_words(final) if is_full(error) else error
            raise CheckpointError(
                f"could not write the checkpoint {final}: {why}. "
                + (
                    f"The last good one is {good}; make room and resume from it"
                    if good
                    else "None was written before; make room and resume"
                )
            ) from error
        for path in (*self.all()[self.keep :], *self.folder.glob(".writing-*")):
            shutil.rmtree(path, ignore_errors=True)
        return final

    def load(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, say: Callable[[str], None]
    ) -> tuple[int, dict[str, Any]] | None:
        """Restore the newest good one; damaged ones are named. None if there is none at all."""
        damaged: list[str] = []
        for path in self.all():
            fault = _fault(path)
            if fault is None:
                if damaged:
                    say(f"{'; '.join(damaged)}. Going on from the last good checkpoint, {path}")
                return _restore(path, model, optimiser)
            damaged.append(f"the checkpoint {path} is damaged ({fault})")
        if damaged:
            raise CheckpointError(f"{'; '.join(damaged)}, and no good one is left: start again in a new folder")
        return None

    def newest(self) -> Path | None:
        """The newest checkpoint whose files match their hashes."""
        return next((path for path in self.all() if _fault(path) is None), None)

    def all(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("step-*"), reverse=True)


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        manifest = parse_json((path / MANIFEST).read_bytes())
        changed = [name for name in (MODEL, OPTIMISER, STATE) if sha256(path / name) != manifest[name]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{', '.join(changed)} changed since it was written" if changed else None


def _restore(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, dict[str, Any]]:
    model.load_state_dict(load_file(path / MODEL))
    kept = load_file(path / OPTIMISER)
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in kept.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = x
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    saved = parse_json((path / STATE).read_bytes(), constants=True)  # a loss may have been NaN
    set_rng_state(saved["rng"])
    return saved["step"], saved["progress"]


def rng_state() -> dict[str, Any]:
    """The global generators, as plain values that JSON can hold."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [state.numpy().tobytes().hex() for state in torch.cuda.get_rng_state_all()],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_bytes(each) for each in state["cuda"]])


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def _write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content) + "\n").encode())  # with an indent Python would spell out every number


def _plain(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(x).detach().contiguous().cpu() for name, x in tensors.items()}


SMALL_FILE = 2**26
"""Bytes up to which tensors are copied for writing."""
KNOWN_TO_NUMPY = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool}


def save_file(tensors: dict[str, Tensor], path: Path) -> None:
    """The same file by either: what safetensors does per tensor of torch takes longer than to write a small one."""
    size = sum(x.nbytes for x in tensors.values())
    if size <= SMALL_FILE and all(x.dtype in KNOWN_TO_NUMPY for x in tensors.values()):
        save_arrays({name: x.numpy() for name, x in tensors.items()}, path)
    else:
        save_tensors(tensors, path)


# -- the run's folder --------------------------------------------------------------------------------------------------


LEFT_OVER = (".*.writing", "model/.*.writing", "model/.saving-*", "predictions/.*.writing", "checkpoints/.writing-*")
"""What a killed process may leave half-written."""
CHECKPOINT_SIZE = 3
"""In weights: those of the model, and two numbers per weight for AdamW."""


class GoneError(FileNotFoundError):
    """What belongs to the run was removed while it was under way."""


class RunFolder:
    """The folder of a run that is about to be trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = Checkpoints(folder / "checkpoints")
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

    def refuse_too_little_room(self, accelerator: Accelerator, model: nn.Module) -> None:
        """An error before any work, where the disk cannot hold the run's checkpoints and its weights."""
        checkpoints = self.checkpoints
        weights = sum(x.numel() * x.element_size() for x in model.state_dict().values())
        # one more than are kept, since the oldest goes when the newest is there; and the kept weights, old and new
        needed = weights * (CHECKPOINT_SIZE * max(1, checkpoints.keep + 1 - len(checkpoints.all())) + 2)
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

    def full_error(self) -> NoSpaceError:
        checkpoint = self.checkpoints.newest()
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
