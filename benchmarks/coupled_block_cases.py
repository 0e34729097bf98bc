"""The engine on the coupled block of the comparison harness: the same work as its hand-written loops.

The harness (`coupled_block.py`) defines the block, the loops written by hand and TorchDEQ's cases, and runs them
round-robin with ours: `python coupled_block.py --extra coupled_block_cases`. `make bench` does all of it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import meq


class CoupledOperator(meq.Operator):
    """The harness's block as an operator, started from zero as its loops are."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        x, y = self.block(inputs["x"], inputs["y"], state["x"], state["y"])
        return {"x": x, "y": y}


def cases(block: torch.nn.Module, x: Tensor, y: Tensor, cfg: Any) -> dict[str, Any]:
    harness = sys.modules.get("coupled_block", sys.modules["__main__"])
    operator, inputs = CoupledOperator(block), {"x": x, "y": y}
    damped = meq.Damped(step=cfg.tau)
    as_long_as_theirs = meq.Anderson(history=5)  # TorchDEQ keeps six states, which have five differences
    adjoint = {"solver": meq.Damped(step=1.0), "steps": cfg.KB, "tol": 0.0}

    def forward(solver: meq.Solver) -> Any:
        def run() -> meq.Solution:
            with torch.no_grad():
                return meq.solve(operator, inputs, solver=solver, steps=cfg.K, tol=0.0)

        return harness.Case(run, "fwd", "plain/fwd", note="per-sample residuals included")

    def training(backward: meq.Backward, base: str, solver: meq.Solver = damped) -> Any:
        def run() -> None:
            solution = meq.solve(operator, inputs, solver=solver, steps=cfg.K, tol=0.0, backward=backward)
            harness.loss_of(solution.state["x"], solution.state["y"]).backward()

        return harness.Case(run, "train", base, True)

    def implicit(solver: meq.Solver) -> meq.Implicit:
        return meq.Implicit(**{**adjoint, "solver": solver})

    return {
        "meq/fwd damped": forward(damped),
        "meq/fwd anderson": forward(meq.Anderson()),
        "meq/fwd anderson 5": forward(as_long_as_theirs),
        "meq/fwd broyden": forward(meq.Broyden()),
        "meq/unrolled": training(meq.Unrolled(), "plain/unrolled"),
        "meq/checkpointed": training(meq.Checkpointed(), "plain/unrolled"),
        "meq/phantom 1": training(meq.Phantom(1), "plain/pg1"),
        "meq/implicit": training(meq.Implicit(**adjoint), "plain/ift"),
        "meq/implicit anderson": training(implicit(as_long_as_theirs), "plain/ift", as_long_as_theirs),
        "meq/implicit broyden": training(implicit(meq.Broyden()), "plain/ift", meq.Broyden()),
    }
