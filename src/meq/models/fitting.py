"""A config from somewhere, held against the weights beside it before a model of its size is made.

Both may come from strangers. The header of a safetensors file says which tensors there are; the model is first built on
the meta device, where a width of a million costs nothing, and only one that has these tensors is built for good.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from meq.core.options import nearest

LARGEST_CONFIG = 1 << 20
"""Bytes: a config names a few dozen options."""
SHOWN = 3
"""How many tensors that do not fit are named."""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Stored(NamedTuple):
    """A tensor as the header of its file describes it."""

    shape: tuple[int, ...]
    dtype: str


class Header(NamedTuple):
    file: str
    tensors: dict[str, Stored]


def read_config(path: Path) -> dict[str, Any]:
    """{"model": class, "options": {...}}; whatever else the file holds is an error that says so."""
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{path} is {path.stat().st_size:,} bytes long: it is not the config of a model of meq")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested without end
        raise ValueError(f"{path} is damaged, it is not JSON: {error!s:.200}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model"), str) or "options" not in config:
        raise ValueError(f"{path} does not name a model and its options: it was not written by meq")
    if not isinstance(config["options"], dict):
        raise ValueError(f"{path}: 'options' must be an object of names and values, got {config['options']!r:.80}")
    return {**config, "file": str(path)}


def read_header(path: Path) -> Header:
    """Names, shapes and dtypes of the stored tensors; none of them is read."""
    try:
        with safe_open(path, framework="pt"):  # which finds everything that can be wrong with the header
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    with open(path, "rb") as file:
        content = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    content.pop("__metadata__", None)
    return Header(str(path), {name: Stored(tuple(x["shape"]), x["dtype"]) for name, x in content.items()})


def built_for(
    cls: Any, config: Mapping[str, Any], header: Header, *, changes: Mapping[str, Any], source: str
) -> Callable[[], Any]:
    """The model that the config describes, as a function that builds it, once it is sure to fit the weights."""
    kind = _class_named(config["model"], cls, source)
    _check_config(config, _options_of(kind), header)

    def build() -> Any:
        return kind(**{**kind.from_options(config["options"]), **changes})

    with torch.device("meta"):
        try:
            shapes = {name: tuple(x.shape) for name, x in build().state_dict().items()}
        except (TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError, LookupError) as error:
            if changes:  # of the caller's making as likely as of the file's
                raise
            raise ValueError(f"{config['file']}: {error!s:.300}") from error
    changed = f", with {', '.join(changes)} as given now," if changes else ""
    _check_shapes(shapes, config["file"] + changed, header)
    dtype = _common_dtype(header)
    return lambda: _as_stored(build(), dtype)


def _options_of(kind: Any) -> list[str]:
    """The options of a model's class; of one that passes `**options` on, those of its bases too."""
    names: list[str] = []
    for each in kind.__mro__:
        found = inspect.signature(each.__init__).parameters if "__init__" in vars(each) else {}
        names += [name for name in found if name not in ("self", *names)]
        if found and not any(option.kind is option.VAR_KEYWORD for option in found.values()):
            break
    return names


def _class_named(name: str, cls: Any, source: str) -> Any:
    known = {each.__name__: each for each in (cls, *_descendants(cls))}
    if name not in known:
        raise ValueError(
            f"{source} holds a {name:.80}, which {cls.__name__}.from_pretrained does not load: {nearest(name, known)}"
        )
    return known[name]


def _descendants(cls: Any) -> list[Any]:
    return [each for child in cls.__subclasses__() for each in (child, *_descendants(child))]


def _check_config(config: Mapping[str, Any], known: list[str], header: Header) -> None:
    """Names that the class has, and no more parts than there are tensors: parts cost time even on the meta device."""
    options = config["options"]
    for name in options:
        if name not in known:
            raise ValueError(f"{config['file']}: {config['model']} has no option {name!r:.80}: {nearest(name, known)}")
    parts = {name: options.get(name) for name in ("widths", "max_tokens", "depth")}
    for name, value in parts.items():
        count = value if isinstance(value, int) else len(value) if isinstance(value, dict) else 0
        if count > max(1, len(header.tensors)):
            raise ValueError(
                f"{config['file']}: {name} asks for {count:,} parts, but there are {len(header.tensors):,} tensors in "
                f"{header.file}"
            )


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], config: str, header: Header) -> None:
    stored = {name: tensor.shape for name, tensor in header.tensors.items()}
    wrong = [
        f"{name} is {shape} by the options and missing there" for name, shape in shapes.items() if name not in stored
    ]
    wrong += [f"{name} is there and not in the model" for name in stored if name not in shapes]
    wrong += [
        f"{name} is {shape} by the options and {stored[name]} there"
        for name, shape in shapes.items()
        if name in stored and stored[name] != shape
    ]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"the options in {config} do not fit {header.file}: {'; '.join(wrong[:SHOWN])}{more}")


def _common_dtype(header: Header) -> torch.dtype | None:
    """The floating-point dtype of the weights, where they share one."""
    found = {tensor.dtype for tensor in header.tensors.values()}
    return DTYPES.get(found.pop()) if len(found) == 1 else None


def _as_stored(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """In the dtype it was saved in: a model in double precision is not rounded by saving it."""
    return model if dtype is None else model.to(dtype)
