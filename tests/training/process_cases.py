"""A run under torchrun for `test_processes.py`: argv is folder, batch size, accumulate."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from training.small import train_small

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, batch_size, accumulate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    train_small(folder, dtype=torch.float64, batch_size=batch_size, accumulate=accumulate)
