"""A run under torchrun for `test_processes.py`: argv is folder, batch size, accumulate, number format or "tokens"."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from training.small import train_small
from training.token_set import train_tokens

from meq.records import BusyError

BUSY = 17
"""How a process ends that was refused, so that it cannot be taken for another failure."""

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, batch_size, accumulate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    try:
        if sys.argv[4] == "tokens":
            train_tokens(folder, epochs=2, batch_size=batch_size, accumulate=accumulate)
        else:
            train_small(folder, dtype=getattr(torch, sys.argv[4]), batch_size=batch_size, accumulate=accumulate)
    except BusyError as error:
        print(f"refused: {error}", flush=True)
        sys.exit(BUSY)
