"""u: what the modalities bring into the iteration, as something that can be changed and differentiated by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from meq.core.operator import Inputs
from meq.core.solution import Solution
from meq.core.state import Masks, State, detach


@dataclass(frozen=True, eq=False)
class Sources:
    """Tensors by modality, and the operator's inputs made from them."""

    values: State
    rebuild: Callable[[State], Inputs]
    masks: Masks


def find_sources(operator: Any, solution: Solution) -> Sources:
    """The sources of a solution: an operator's `sources`, or inputs that are a dictionary of modalities.

    An operator whose inputs look otherwise has a method `sources(inputs) -> State` and its inverse
    `with_sources(inputs, state) -> inputs`. The models of meq do: their sources are the injections f(x).
    """
    inputs = solution.inputs
    if hasattr(operator, "sources") and hasattr(operator, "with_sources"):
        values = operator.sources(inputs)
        return Sources(detach(values), lambda new: operator.with_sources(inputs, new), _masks_of(values, solution))
    if isinstance(inputs, dict) and all(isinstance(inputs.get(name), Tensor) for name in solution.state):
        values = {name: inputs[name] for name in solution.state}
        return Sources(detach(values), lambda new: {**inputs, **new}, _masks_of(values, solution))
    raise TypeError(
        f"it is not known what the modalities bring in: give {type(operator).__name__} the methods sources(inputs) and "
        f"with_sources(inputs, sources), or inputs that are a dictionary with {sorted(solution.state)}"
    )


def _masks_of(values: State, solution: Solution) -> Masks:
    """A source is hidden where its state is, as far as their tokens correspond."""
    return {
        name: mask
        for name, mask in solution.masks.items()
        if name in values and values[name].shape[: mask.ndim] == mask.shape
    }
