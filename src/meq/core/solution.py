"""What a solve returns: the state that was read, how the iteration went, and why it stopped."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from meq.core.operator import Inputs, evaluate
from meq.core.state import Masks, State, detach, sound_norm


class Stop(enum.Enum):
    """Why a sample's iteration stopped.

    >>> print(meq.Stop.BUDGET)
    budget: all steps were taken before the tolerance was reached
    """

    SETTLED = "settled: the residual of every modality reached the tolerance"
    BUDGET = "budget: all steps were taken before the tolerance was reached"
    DIVERGED = "diverged: the next state was not finite; the last finite one is kept"
    READ = "read: the stopping rule was satisfied"

    @property
    def code(self) -> int:
        return _CODES[self]

    def __str__(self) -> str:
        return self.value


_STOPS = tuple(Stop)
_CODES = {stop: code for code, stop in enumerate(_STOPS)}


def reasons(codes: Int[Tensor, " B"]) -> list[Stop]:
    return [_STOPS[code] for code in codes.tolist()]


@dataclass
class Adjoint:
    """How the adjoint equation v = J^T v + g of an implicit backward was solved; filled when backward runs.

    One entry per sample whose forward solve did not diverge.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> model.backward = meq.Implicit(steps=30)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> out.logits.sum().backward()
    >>> out.solution.adjoint.steps.shape  # B
    torch.Size([2])
    """

    residuals: dict[str, Float[Tensor, "K B"]] | None = None
    steps: Int[Tensor, " B"] | None = None
    stop: list[Stop] | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """The state read at the end of a solve. Tensors are per sample; B is the batch, K the step budget.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, steps=10)
    >>> solution = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).solution
    >>> solution.state["image"].shape, solution.residuals["text"].shape  # B N D and K B
    (torch.Size([2, 5, 16]), torch.Size([10, 2]))
    >>> solution.stop[0] in (meq.Stop.SETTLED, meq.Stop.BUDGET)
    True
    """

    state: State
    """z at the step where each sample stopped."""
    residuals: dict[str, Float[Tensor, "K B"]]
    """|z(k) - T(z(k))| / |z(k)| of the undamped map, k = 0 .. K-1; NaN after a sample stopped and where a modality
    is absent. Not the length of a damped step."""
    steps: Int[Tensor, " B"]
    """The step each sample's state was read at."""
    stop_codes: Int[Tensor, " B"]
    inputs: Inputs
    masks: Masks
    trajectory: dict[int, State] | None = None
    """The states asked for, by step; a sample that stopped earlier repeats the state it stopped at."""
    adjoint: Adjoint | None = None
    operator: Any = field(default=None, repr=False)
    solver: Any = field(default=None, repr=False)
    """How the steps were taken: what the read state depends on and an equilibrium does not."""

    @property
    def stop(self) -> list[Stop]:
        """Why each sample stopped, in words."""
        return reasons(self.stop_codes)

    @cached_property
    def final_residual(self) -> dict[str, Float[Tensor, " B"]]:
        """|z - T(z)| / |z| at the state that was read: one more operator call, made on first use."""
        with torch.no_grad():
            state = detach(self.state)
            image = evaluate(self.operator, state, self.inputs)
            return {name: residual(image[name] - z, z, self.masks.get(name)) for name, z in state.items()}

    def detach(self) -> Solution:
        """The same solution without its graph, for keeping, copying or saving."""
        trajectory = self.trajectory and {k: detach(state) for k, state in self.trajectory.items()}
        return replace(self, state=detach(self.state), trajectory=trajectory, solver=_without_graph(self.solver))

    def in_a_line(self) -> str:
        """How many samples stopped why, after how many steps, at what residuals."""
        if self.stop_codes.device.type == "meta":
            return "not computed, on the meta device"
        last = {name: _last_row(rows).nanmedian().item() for name, rows in self.residuals.items()}
        steps = " to ".join(map(str, sorted({self.steps.min().item(), self.steps.max().item()})))
        residuals = ", ".join(f"{name} {value:.1e}" for name, value in last.items())
        return f"{self._counted()}; steps {steps}; last residuals (medians) {residuals}"

    def _counted(self) -> str:
        counts = Counter(stop.name.lower() for stop in self.stop)
        return f"{len(self.stop_codes)} samples: {', '.join(f'{n} {name}' for name, n in counts.items())}"

    def __str__(self) -> str:
        lines = [self._counted()]
        lines += [f"{'modality':<12} {'shape':<16} {'first residual':>14} {'last residual':>14}"]
        for name, rows in self.residuals.items():
            shape = "x".join(map(str, self.state[name].shape[1:]))
            first, last = rows[0].nanmedian().item(), _last_row(rows).nanmedian().item()
            lines.append(f"{name:<12} {shape:<16} {first:>14.2e} {last:>14.2e}")
        lines.append(f"steps taken: {self.steps.min().item()} to {self.steps.max().item()}; residuals are medians")
        return "\n".join(lines)


def residual(move: Tensor, state: Tensor, mask: Tensor | None) -> Float[Tensor, " B"]:
    """|T(z) - z| / |z|; where |z| = 0: inf if T(z) != 0, else 0; NaN where the modality is absent."""
    return relative(sound_norm(move, mask), sound_norm(state, mask), mask)


def relative(gap: Tensor, size: Tensor, mask: Tensor | None) -> Tensor:
    """gap / size with 0 / 0 = 0; both `... B`. NaN marks samples that lack the modality altogether."""
    ratio = torch.where(gap == 0, 0, gap / size)
    return ratio if mask is None else torch.where(mask.flatten(1).any(1) if mask.ndim > 1 else mask, ratio, torch.nan)


def _without_graph(solver: Any) -> Any:
    """A solver with a learned step holds a tensor of a model's graph."""
    fields = vars(solver).items() if is_dataclass(solver) else ()
    learned = {name: value.detach() for name, value in fields if isinstance(value, Tensor)}
    return replace(solver, **learned) if learned else solver


def _last_row(rows: Float[Tensor, "K B"]) -> Float[Tensor, " B"]:
    """Each sample's residual at the last step it took part in."""
    last = (~rows.isnan()).long().cumsum(0).argmax(0)
    return rows.gather(0, last[None])[0]
