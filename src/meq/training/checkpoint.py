"""Checkpoints: everything needed to go on, in safetensors and JSON, written whole or not at all.

A checkpoint is a folder `step-00000120` that is written under another name and renamed when all its files and their
hashes are on disk, so that a killed process leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from meq.files import is_full, room_in_words, sha256, sync, write_json
from meq.training.seeds import rng_state, set_rng_state

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
            save_file(_optimiser_tensors(optimiser), staging / OPTIMISER)
            write_json(staging / STATE, {"step": step, "progress": progress, "rng": rng_state()})
            for name in (MODEL, OPTIMISER):  # safetensors makes files that only their owner can read
                os.chmod(staging / name, (staging / STATE).stat().st_mode)
            write_json(staging / MANIFEST, {name: sha256(staging / name) for name in (MODEL, OPTIMISER, STATE)})
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
        self._prune()
        return final

    def load(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, say: Callable[[str], None]
    ) -> tuple[int, dict[str, Any]] | None:
        """Restore the newest good one; damaged ones are named. None if there is none at all."""
        damaged: list[str] = []
        for path in self._all():
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
        return next((path for path in self._all() if _fault(path) is None), None)

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"), reverse=True)

    def _prune(self) -> None:
        for path in self._all()[self.keep :]:
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob(".writing-*"):
            shutil.rmtree(path, ignore_errors=True)


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        changed = [name for name in (MODEL, OPTIMISER, STATE) if sha256(path / name) != manifest[name]]
    except (OSError, ValueError, KeyError) as error:
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
    saved = json.loads((path / STATE).read_text(encoding="utf-8"))
    set_rng_state(saved["rng"])
    return saved["step"], saved["progress"]


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return _plain({f"{index}.{key}": x for index, entry in state.items() for key, x in entry.items()})


def _plain(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(x).detach().contiguous().cpu() for name, x in tensors.items()}
