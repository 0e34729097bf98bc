"""The map T over named states whose fixed point is sought, and how a model is held still while it is measured."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from meq.core.state import State, under_autocast
from meq.options import nearest

Inputs = Any
"""A tensor, or dicts, lists and tuples of tensors, every one batch-first."""


class Operator(nn.Module):
    """T: subclass it, or hand `solve` any object with `start(inputs)` that is called as `T(state, inputs)`.

    Samples of a batch must not see each other: what T does to one row may not depend on the rows beside it.

    >>> class Halfway(meq.Operator):
    ...     def start(self, inputs):
    ...         return {name: torch.zeros_like(x) for name, x in inputs.items()}  # B D each
    ...     def forward(self, state, inputs):
    ...         return {"a": state["b"] / 2 + inputs["a"], "b": state["a"] / 2 + inputs["b"]}
    >>> solution = meq.solve(Halfway(), {"a": torch.ones(1, 1), "b": torch.zeros(1, 1)}, steps=60, tol=1e-6)
    >>> [round(solution.state[name].item(), 3) for name in ("a", "b")]  # a = b / 2 + 1, b = a / 2
    [1.333, 0.667]
    """

    rows_leave = False
    """May samples that are done leave the batch, where no gradient is taken? True if all that is a sample's own lies in
    its state and its inputs, and not in the operator."""

    @abstractmethod
    def start(self, inputs: Inputs) -> State:
        """z(0), one tensor per modality: tokens (B N D) or vectors (B D)."""

    @abstractmethod
    def forward(self, state: State, inputs: Inputs) -> State:
        """T(z): the same modalities with the same shapes, every one computed from the old state."""


@runtime_checkable
class HasModules(Protocol):
    """A module, as far as its parts are asked for."""

    def modules(self) -> Iterator[nn.Module]: ...


class RestartedOperator(Operator):
    """The operator, starting from a given state."""

    def __init__(self, operator: Any, state: State) -> None:
        super().__init__()
        self.operator, self.state = operator, state
        self.rows_leave = bool(getattr(operator, "rows_leave", False))

    def start(self, inputs: Inputs) -> State:
        return dict(self.state)

    def forward(self, state: State, inputs: Inputs) -> State:
        return self.operator(state, inputs)


@contextmanager
def held_still(*models: HasModules) -> Iterator[None]:
    """Eval mode, so dropout is off, while measuring; afterwards, after errors too, every part is in its own mode."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def evaluate(operator: Any, state: State, inputs: Inputs) -> State:
    """T(z), checked: a map that changes names, shapes, dtypes or devices has no fixed point to look for."""
    image = operator(state, inputs)
    if not isinstance(image, dict) or image.keys() != state.keys():
        raise ValueError(_wrong_modalities(operator, image, state))
    for name, z in state.items():
        new = image[name]
        if not isinstance(new, Tensor):
            raise TypeError(f"{_label(operator)} returned {type(new).__name__} for {name!r}, not a tensor")
        if new.shape != z.shape:
            raise ValueError(
                f"{_label(operator)} changed the shape of {name!r} from {tuple(z.shape)} to {tuple(new.shape)}"
            )
        if new.device != z.device:
            raise ValueError(f"{_label(operator)} moved {name!r} from {z.device} to {new.device}")
        if new.dtype != z.dtype:
            if not under_autocast(z):
                raise ValueError(
                    f"{_label(operator)} changed the dtype of {name!r} from {z.dtype} to {new.dtype}: "
                    "cast inside the operator, or let start() return the dtype it computes in"
                )
            image = {**image, name: new.to(z.dtype)}  # autocast computes low, the state stays as precise as it was
    return image


def _wrong_modalities(operator: Any, image: object, state: State) -> str:
    if not isinstance(image, dict):
        return f"{_label(operator)} must return a dict of modalities, got {type(image).__name__}"
    dropped = [name for name in state if name not in image]
    added = [name for name in image if name not in state]
    parts = [f"dropped the modality {name!r}" for name in dropped]
    parts += [f"returned the modality {name!r} that start() does not have: {nearest(name, state)}" for name in added]
    return f"{_label(operator)} {' and '.join(parts)}"


def _label(operator: Any) -> str:
    return f"the operator {type(operator).__name__}"
