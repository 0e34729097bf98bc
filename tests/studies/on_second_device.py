"""Run as a program: studies trained and measured on a device that shares nothing with the CPU but its results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from second_device import DEVICE, NAME, install

LIBRARY = install()

from studies.shrinking import shrunk  # noqa: E402

from meq.devices import chosen_device, device_of  # noqa: E402
from meq.encoders import Encoder, Tokens, register_encoder  # noqa: E402
from meq.records import plain  # noqa: E402
from meq.studies import Study, make_study  # noqa: E402
from meq.studies.build import Places, prepare_data  # noqa: E402
from meq.studies.cost_study import cost_study  # noqa: E402
from meq.studies.measures import staircase, take_measure  # noqa: E402
from meq.studies.one_run import load_trained  # noqa: E402
from meq.studies.remeasure import differences  # noqa: E402
from meq.studies.runner import run_study  # noqa: E402
from meq.studies.study import DataConfig  # noqa: E402
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


@register_encoder("lengths")
class Lengths(Encoder):
    """One token per text: its length through a layer of a network."""

    kind, revision, name, width = "text", "1", "lengths-1", 4
    weight_hash = "0" * 64

    def __init__(self, *, device: str = "cpu") -> None:
        self.network = torch.nn.Linear(1, self.width)
        torch.nn.init.constant_(self.network.weight, 0.5)
        torch.nn.init.zeros_(self.network.bias)
        self.network.to(device)

    @torch.no_grad()
    def __call__(self, contents: Sequence[Any]) -> list[Tokens]:
        lengths = torch.tensor([[float(len(str(each)))] for each in contents])
        made = self.network(lengths.to(device_of(self.network))).cpu()
        return [Tokens(features=row[None], spans=torch.tensor([[0, 1]])) for row in made]


def encoders() -> None:
    """Networks that read for a study; those of transformers do not know a device in Python."""
    options = dict.fromkeys(("train", "dev", "test"), 18)
    config = DataConfig(name="scenes", options=options, encoders={"text": "lengths"}, limit=2)
    here, there = (prepare_data(config, Places(device=device)) for device in ("cpu", DEVICE))
    read = there.encoders["text"]
    assert isinstance(read, Lengths)
    assert device_of(read.network).type == NAME
    for one, other in zip(here.data.splits["train"], there.data.splits["train"], strict=True):
        assert torch.equal(one.content["text"], other.content["text"])
    print("encoders agree")


def costs() -> None:
    torch.accelerator.synchronize = lambda device=None: None  # no device in Python has streams to wait for
    report = cost_study(arms=("concat",), depths=(), passes=1, batch=1, device=DEVICE)
    assert report.measured.hardware.device == NAME
    counted = cost_study(arms=("concat",), depths=(), batch=1, device="meta")
    assert [cost.flops for cost in report.costs.arms] == [cost.flops for cost in counted.costs.arms]
    print("costs agree")


def main(folder: Path) -> None:
    try:
        torch.zeros(2, device=DEVICE) + torch.zeros(2)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the second device takes tensors of the CPU")
    assert chosen_device() == DEVICE, "an accelerator is found without being named"
    encoders()
    costs()
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
