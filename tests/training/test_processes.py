from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from plain import TESTS
from safetensors.torch import load_file

CASES = Path(__file__).with_name("process_cases.py")


def launch(folder: Path, *, processes: int, batch_size: int, accumulate: int = 1) -> dict[str, torch.Tensor]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-addr=127.0.0.1"]
    command = [
        sys.executable,
        *torchrun,
        f"--master-port={port}",
        str(CASES),
        str(folder),
        str(batch_size),
        str(accumulate),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}", "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return load_file(last / "model.safetensors")


def test_two_processes_train_to_the_same_result_as_one_with_the_doubled_batch(tmp_path: Path) -> None:
    two = launch(tmp_path / "two", processes=2, batch_size=4)
    one = launch(tmp_path / "one", processes=1, batch_size=8)
    accumulated = launch(tmp_path / "accumulated", processes=1, batch_size=4, accumulate=2)
    for name, x in one.items():
        torch.testing.assert_close(two[name], x, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(accumulated[name], x, rtol=1e-8, atol=1e-10)
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("one", "two")]
    assert [record["processes"] for record in records] == [1, 2]
    for ours, theirs in zip(records[0]["curves"], records[1]["curves"], strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert abs(ours["dev_loss"] - theirs["dev_loss"]) < 1e-6
