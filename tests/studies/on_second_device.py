"""Run as a program: studies trained and measured on a device that shares nothing with the CPU but its results."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from second_device import DEVICE, NAME, install

LIBRARY = install()

from studies.shrinking import shrunk  # noqa: E402

from meq.devices import chosen_device  # noqa: E402
from meq.records import plain  # noqa: E402
from meq.studies import Study, make_study  # noqa: E402
from meq.studies.build import Places, prepare_data  # noqa: E402
from meq.studies.measures import staircase, take_measure  # noqa: E402
from meq.studies.one_run import load_trained  # noqa: E402
from meq.studies.remeasure import differences  # noqa: E402
from meq.studies.runner import run_study  # noqa: E402
from meq.training.record import read_record  # noqa: E402

staircase.FAR = ()  # hundreds of steps would take minutes on a device in Python
# "gradient" would ask autograd for zeros where nothing depends on an input, which no device in Python can make
MAPS = {"limit": 2, "horizon": 4, "methods": ["grad-cam", "rollout"]}


def studies() -> list[Study]:
    pictures = shrunk(make_study("robustness", "scenes", quick=True))
    more = {name: shrunk(make_study(name, "scenes", quick=True)).measures for name in ("steps", "fixed-point")}
    measures = {**pictures.measures, **more["steps"], **more["fixed-point"], "coupling": {"samples": 8}}
    trails = shrunk(make_study("anytime", "relay", quick=True))
    few = {"staircase": {"limit": 2}, "stopping": {**trails.measures["stopping"], "splits": ["dev"], "most": 3}}
    return [
        replace(pictures, measures={**measures, "grounding": MAPS}),
        replace(trails, measures=few),
    ]


def main(folder: Path) -> None:
    try:
        torch.zeros(2, device=DEVICE) + torch.zeros(2)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the second device takes tensors of the CPU")
    assert chosen_device() == DEVICE, "an accelerator is found without being named"
    for number, study in enumerate(studies()):
        place = folder / str(number)
        prepared = [prepare_data(study.data, Places(device=device)) for device in ("cpu", DEVICE)]
        run_study(study, place, console=Console(quiet=True), places=Places(device=DEVICE))
        for run in study.runs():
            record = read_record(place / "runs" / run[0] / f"seed-{run[1]}")
            assert record.error is None, record.error
            assert record.sessions[0].hardware.device == NAME, record.sessions[0].hardware
            for name in study.measures:
                trained = [load_trained(study, place, run, each) for each in prepared]
                found = [plain(take_measure(name, study, each).found) for each in trained]
                assert not list(differences(*found)), (study.name, run, name)
                assert "ACCELERATE_TORCH_DEVICE" not in os.environ, "what is started later is not told"
                print(study.name, *run, name, "nothing" if not found[0] else "the same")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
