"""The engine on problems whose answer is known: every solver against the exact equilibrium, every way of taking
gradients against the exact gradient. Run it with `make demo`.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import meq

BATCH = 8
SHAPES = {"image": (6, 8), "text": (4, 8), "audio": (16,)}
SOLVERS = {"Damped": meq.Damped(step=0.5), "Anderson": meq.Anderson(), "Broyden": meq.Broyden()}
MODES = {
    "Unrolled": meq.Unrolled(),
    "Checkpointed": meq.Checkpointed(),
    "Implicit": meq.Implicit(tol=1e-10, steps=200),
    "Phantom(1)": meq.Phantom(1),
    "Phantom(20)": meq.Phantom(20),
}


class Affine(meq.Operator):
    """T(z) = J z + b over three modalities, b the input: its equilibrium is (I - J)^-1 b.

    J = outer @ inner passes through a wide hidden layer, so that a step has insides worth not keeping.
    """

    def __init__(self, jacobian: Tensor) -> None:
        super().__init__()
        size = len(jacobian)
        wide = torch.linalg.qr(torch.randn(8 * size, size, dtype=jacobian.dtype)).Q
        self.inner, self.outer = torch.nn.Parameter(wide), torch.nn.Parameter(jacobian @ wide.T)

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
        return split(flat(state) @ self.inner.T @ self.outer.T + flat(inputs))

    def equilibrium(self, inputs: dict[str, Tensor]) -> meq.State:
        jacobian = self.outer @ self.inner
        eye = torch.eye(len(jacobian), dtype=jacobian.dtype)
        return split(torch.linalg.solve(eye - jacobian, flat(inputs).T).T)


def flat(state: meq.State) -> Tensor:
    return torch.cat([state[name].flatten(1) for name in SHAPES], dim=1)


def split(entries: Tensor) -> meq.State:
    parts = entries.split([torch.Size(shape).numel() for shape in SHAPES.values()], dim=1)
    return {name: part.unflatten(1, shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def with_spectrum(eigenvalues: Tensor) -> Affine:
    """A map with the given real eigenvalues, seen in a random basis so that the modalities are all coupled."""
    basis = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), dtype=torch.float64)).Q
    return Affine(basis @ eigenvalues.diag() @ basis.T)


def make_problems() -> dict[str, Affine]:
    size = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    random = torch.randn(size, size, dtype=torch.float64)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    return {
        "contraction": Affine(0.8 * random / torch.linalg.eigvals(random).abs().max()),
        "rotation": Affine(0.9 * torch.block_diag(*[turn] * (size // 2))),
        "stiff": with_spectrum(torch.tensor([0.999, 0.5, -0.5, 0.1], dtype=torch.float64).repeat(size // 4)),
        "expansive": with_spectrum(torch.tensor([-2.0, 3.0, 0.3, 0.1], dtype=torch.float64).repeat(size // 4)),
    }


def relative_error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def solver_rows(problems: dict[str, Affine], inputs: dict[str, Tensor]) -> list[list[str]]:
    rows = []
    for problem, operator in problems.items():
        radius = ""
        for solver, how in SOLVERS.items():
            progress(f"{problem} by {solver}")
            with torch.no_grad():
                solution = meq.solve(operator, inputs, solver=how, steps=300, tol=1e-8)
                error = relative_error(flat(solution.state), flat(operator.equilibrium(inputs)))
            why = ", ".join(f"{count} {stop.name.lower()}" for stop, count in Counter(solution.stop).items())
            residual = max(rows.max().item() for rows in solution.final_residual.values())
            # of an affine map it is the same everywhere, so once will do
            radius = radius or f"{meq.spectral_radius(operator, solution).max().item():.3f}"
            steps = f"{solution.steps.min()} to {solution.steps.max()}"
            rows.append([problem, solver, why, steps, f"{residual:.1e}", f"{error:.1e}", radius])
    return rows


def backward_rows(operator: Affine, inputs: dict[str, Tensor]) -> list[list[str]]:
    def gradient(state: meq.State) -> Tensor:
        return torch.autograd.grad(sum(z.square().sum() for z in state.values()), operator.outer)[0]

    exact, rows = gradient(operator.equilibrium(inputs)), []
    for name, mode in MODES.items():
        progress(f"gradients by {name}")
        with PeakBytes() as memory:
            solution = meq.solve(operator, inputs, solver=meq.Damped(step=0.5), steps=300, tol=1e-10, backward=mode)
            found = gradient(solution.state)
        rows.append([name, f"{relative_error(found, exact):.1e}", f"{memory.peak / 2**20:.2f}"])
    return rows


class PeakBytes(TorchDispatchMode):
    """The peak of live tensor bytes inside the block, by storage."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        del self._known[key]
        self.live -= size


def progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{words} ...", end="", file=sys.stderr, flush=True)


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}\n")
    for row in (header, ["-" * width for width in widths], *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    began = time.perf_counter()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the problems are tiny, and threads that wait for each other cost more than they give
    problems = make_problems()
    inputs = {name: torch.randn(BATCH, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    header = ["problem", "solver", "stopped", "steps", "residual", "error", "spectral radius"]
    show(f"{BATCH} samples of three coupled modalities, float64", header, solver_rows(problems, inputs))
    header = ["backward", "gradient error", "peak MB"]
    show("The gradient of the contraction's equilibrium", header, backward_rows(problems["contraction"], inputs))
    print(
        f"\nThis was the equilibrium engine on closed-form problems, {time.perf_counter() - began:.0f} seconds of it; "
        "training on data is not part of it yet."
    )


if __name__ == "__main__":
    main()
