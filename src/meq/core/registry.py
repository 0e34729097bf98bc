"""Solvers and ways of taking gradients by name: how a saved model says by what it is run.

A class of your own joins them with one line, `@register_solver` or `@register_backward` above a dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from meq.core.backward import Backward, Checkpointed, Implicit, Phantom, Unrolled
from meq.core.options import nearest
from meq.core.solvers import Anderson, Broyden, Damped, Solver

AnySolver = TypeVar("AnySolver", bound=type[Solver])
AnyBackward = TypeVar("AnyBackward", bound=type[Backward])

SOLVERS: dict[str, type[Solver]] = {each.__name__: each for each in (Damped, Anderson, Broyden)}
BACKWARDS: dict[str, type[Backward]] = {each.__name__: each for each in (Unrolled, Checkpointed, Implicit, Phantom)}
PLAIN = (bool, int, float, str, type(None))
"""What an option may be so that JSON keeps it; a solver within a backward is kept by name."""


def register_solver(cls: AnySolver) -> AnySolver:
    """Let models that use this solver be saved by its name; the class is a dataclass of plain options."""
    _register(SOLVERS, cls, "solver")
    return cls


def register_backward(cls: AnyBackward) -> AnyBackward:
    """Let models that use this way of taking gradients be saved by its name."""
    _register(BACKWARDS, cls, "backward")
    return cls


def described(part: Solver | Backward) -> dict[str, Any]:
    """{"name": "Anderson", "history": 3, "step": 1.0}: what `made_solver` and `made_backward` read back."""
    known: Mapping[str, type] = SOLVERS if isinstance(part, Solver) else BACKWARDS
    name = type(part).__name__
    if known.get(name) is not type(part) or not dataclasses.is_dataclass(part):
        kind = "solver" if isinstance(part, Solver) else "backward"
        raise ValueError(
            f"{name} cannot be saved by name: put @meq.core.register_{kind} above its class, which must be a dataclass"
        )
    options = {each.name: _plain(getattr(part, each.name), f"{name}({each.name})") for each in dataclasses.fields(part)}
    return {"name": name, **options}


def made_solver(value: Any) -> Solver:
    """The solver that `described` wrote."""
    return _made(SOLVERS, value, "solver")


def made_backward(value: Any) -> Backward:
    """The backward that `described` wrote."""
    return _made(BACKWARDS, value, "backward")


def _register(known: dict[str, Any], cls: type, kind: str) -> None:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"the {kind} {cls.__name__} must be a dataclass, so that its options can be saved")
    if cls.__name__ in known:
        raise ValueError(f"there is a {kind} {cls.__name__} already: choose another name")
    known[cls.__name__] = cls


def _plain(value: Any, label: str) -> Any:
    if isinstance(value, Solver | Backward):
        return described(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad:
        return value.item()
    if not isinstance(value, PLAIN):
        learned = ": a learned step is saved with a model whose damping='learned'" if isinstance(value, Tensor) else ""
        raise ValueError(f"{label} cannot be saved: it is no plain value but {type(value).__name__}{learned}")
    return value


def _made(known: Mapping[str, Any], value: Any, kind: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"the {kind} must be saved as its name and options, got {value!r:.80}")
    options = {name: option for name, option in value.items() if name != "name"}
    if value["name"] not in known:
        raise ValueError(f"there is no {kind} {value['name']!r}: {nearest(value['name'], known)}")
    cls = known[value["name"]]
    fields = [each.name for each in dataclasses.fields(cls)]
    for name in options:
        if name not in fields:
            raise ValueError(f"the {kind} {value['name']} has no option {name!r}: {nearest(name, fields)}")
    return cls(**{name: _unplain(option) for name, option in options.items()})


def _unplain(option: Any) -> Any:
    """A solver within a backward; everything else is as it was written."""
    return made_solver(option) if isinstance(option, dict) else option
