"""Run by test_waiting_for_a_device.py in a process of its own: how often a forward would wait for an accelerator."""

from __future__ import annotations

import json
from typing import Any

import second_device
import torch
from second_device import DEVICE, WAITS

import meq

library = second_device.install()
torch.manual_seed(0)
SHAPE: dict[str, Any] = {"dim": 8, "heads": 2, "head_width": 8}
x = {"a": torch.randn(3, 4, 5), "b": torch.randn(3, 2, 6)}
masks = {"b": torch.tensor([[True, True], [True, False], [False, False]])}


def waits(model: meq.MutualEquilibrium, *, gradients: bool) -> int:
    model = model.to(DEVICE)
    there, real = ({name: each.to(DEVICE) for name, each in given.items()} for given in (x, masks))
    WAITS.clear()
    with torch.set_grad_enabled(gradients):
        model(there, real)
    return len(WAITS)


def made(steps: int, **options: Any) -> meq.MutualEquilibrium:
    return meq.MutualEquilibrium({"a": 5, "b": 6}, 3, steps=steps, **SHAPE, **options).eval()


print(
    json.dumps(
        {
            "forward": [waits(made(steps), gradients=False) for steps in (2, 10)],
            "with gradients": [waits(made(steps), gradients=True) for steps in (2, 10)],
            "last steps": [waits(made(steps, backward=meq.Phantom(2)), gradients=True) for steps in (4, 10)],
            "Anderson": [waits(made(steps, solver=meq.Anderson()), gradients=False) for steps in (2, 10)],
            "long": waits(made(100), gradients=False),
            "settled": waits(made(1000, tol=0.5), gradients=False),
        }
    )
)
