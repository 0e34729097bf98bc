"""Cases for `test_survival.py`, run in a fresh interpreter: children are forked, killed and resumed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # AdamW imports it; here it is done once, before the forks
from safetensors.torch import load_file
from training.small import train_small


def killed_anywhere_ends_with_the_same_weights(root: str, trials: str) -> None:
    """SIGKILL at uniformly random moments of the run, from its first line to its last."""
    torch.set_num_threads(1)
    folder = Path(root)
    started = time.monotonic()
    _wait(_fork(folder / "whole", resume=False))
    duration = time.monotonic() - started
    expected = _weights(folder / "whole")
    moments, killed = random.Random(11), 0
    for trial in range(3 * int(trials)):
        place = folder / f"trial-{trial}"
        child = _fork(place, resume=False)
        time.sleep(moments.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            continue  # it had finished before; only real kills count
        _wait(_fork(place, resume=True))
        got = _weights(place)
        assert got.keys() == expected.keys()
        for name, x in expected.items():
            assert torch.equal(got[name], x), f"trial {trial}: {name} differs after kill and resume"
        killed += 1
        if killed == int(trials):
            return
    raise AssertionError(f"only {killed} runs could be killed before they finished")


def _fork(folder: Path, *, resume: bool) -> int:
    child = os.fork()
    if child:
        return child
    try:
        train_small(folder, resume=resume)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _wait(child: int) -> None:
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0, f"a child ended with {os.waitstatus_to_exitcode(status)}"


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    kept = {f"kept {name}": x for name, x in load_file(folder / "model" / "model.safetensors").items()}
    return kept | load_file(last / "model.safetensors") | load_file(last / "optimiser.safetensors")
