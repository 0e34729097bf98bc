"""Solvers and ways of taking gradients by name: how a saved model says by what it is run.

A class of your own joins them with one line, `@register_solver` or `@register_backward` above a dataclass. It is saved
by the name of the class, or by another one: `@register_solver("Name")`. Listing the names imports nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from meq.options import nearest
from meq.registry import Registry

if TYPE_CHECKING:
    from meq.core.backward import Backward
    from meq.core.solvers import Solver

SOLVERS: Registry[type[Solver]] = Registry(
    "solver", {name: f"meq.core.solvers:{name}" for name in ("Damped", "Anderson", "Broyden")}
)
BACKWARDS: Registry[type[Backward]] = Registry(
    "backward", {name: f"meq.core.backward:{name}" for name in ("Unrolled", "Checkpointed", "Implicit", "Phantom")}
)
PLAIN = (bool, int, float, str, type(None))
"""What an option may be so that JSON keeps it; a solver within a backward is kept by name."""


def register_solver(cls: Any) -> Any:
    """Let models that use this solver be saved by its name; the class is a dataclass of plain options."""
    return _register(SOLVERS, cls)


def register_backward(cls: Any) -> Any:
    """Let models that use this way of taking gradients be saved by its name."""
    return _register(BACKWARDS, cls)


def described(part: Solver | Backward) -> dict[str, Any]:
    """{"name": "Anderson", "history": 3, "step": 1.0}: what `made_solver` and `made_backward` read back."""
    known = _registry_of(part)
    name = known.name_of(type(part))
    if name is None:
        raise ValueError(
            f"{type(part).__name__} cannot be saved by name: put @meq.core.register_{known.kind} above its class, "
            "which must be a dataclass"
        )
    fields = dataclasses.fields(part)  # type: ignore[arg-type]
    return {"name": name, **{each.name: _plain(getattr(part, each.name), f"{name}({each.name})") for each in fields}}


def made_solver(value: Any) -> Solver:
    """The solver that `described` wrote."""
    return _made(SOLVERS, value)


def made_backward(value: Any) -> Backward:
    """The backward that `described` wrote."""
    return _made(BACKWARDS, value)


def _register(known: Registry[Any], value: Any) -> Any:
    """`@register_solver` and `@register_solver("Name")`."""
    if isinstance(value, str):
        return lambda cls: _add(known, value, cls)
    return _add(known, value.__name__, value)


def _add(known: Registry[Any], name: str, cls: type) -> type:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"the {known.kind} {cls.__name__} must be a dataclass, so that its options can be saved")
    if name in known:
        raise ValueError(f"there is a {known.kind} {name!r} already: choose another name")
    known.add(name, cls)
    return cls


def _registry_of(value: Any) -> Registry[Any]:
    from meq.core.solvers import Solver

    return SOLVERS if isinstance(value, Solver) else BACKWARDS


def _plain(value: Any, label: str) -> Any:
    from torch import Tensor

    from meq.core.backward import Backward
    from meq.core.solvers import Solver

    if isinstance(value, Solver | Backward):
        return described(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad:
        return value.item()
    if not isinstance(value, PLAIN):
        learned = ": a learned step is saved with a model whose damping='learned'" if isinstance(value, Tensor) else ""
        raise ValueError(f"{label} cannot be saved: it is no plain value but {type(value).__name__}{learned}")
    return value


def _made(known: Registry[Any], value: Any) -> Any:
    """From {"name": ..., option: value}; names may be written in small letters, as commands and studies do."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"the {known.kind} must be saved as its name and options, got {value!r:.80}")
    name = next((each for each in known if each.lower() == value["name"].lower()), value["name"])
    cls = known.get(name)
    options = {option: given for option, given in value.items() if option != "name"}
    fields = [each.name for each in dataclasses.fields(cls)]
    for option in options:
        if option not in fields:
            raise ValueError(f"the {known.kind} {name} has no option {option!r}: {nearest(option, fields)}")
    for option, given in options.items():
        if isinstance(given, dict):  # a solver within a backward
            options[option] = made_solver(given)
    return cls(**options)
