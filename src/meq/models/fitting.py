"""A model's config, checked against the weights stored beside it before a model of its size is made.

Neither file is trusted. The header of a safetensors file says which tensors there are; the model is first built on
the meta device, where a width of a million costs nothing, and only one that has these tensors is built in full.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from meq.models.quantise import empty_layer, read_least_weights, with_int8_layers
from meq.options import nearest
from meq.records import JsonError, parse_json

LARGEST_CONFIG = 1 << 20
"""Bytes: a config names a few dozen options."""
SHOWN = 3
"""How many tensors that do not fit are named."""
INT8 = "I8"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class StoredTensor(NamedTuple):
    """A tensor as the header of its file describes it."""

    shape: tuple[int, ...]
    dtype: str


class Header(NamedTuple):
    file: str
    tensors: dict[str, StoredTensor]


def read_config(path: Path) -> dict[str, Any]:
    """{"model": class, "options": {...}}; whatever else the file holds is an error that says so."""
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{path} is {path.stat().st_size:,} bytes long: it is not the config of a model of meq")
    try:
        config = parse_json(path.read_bytes(), constants=True)
    except JsonError as error:
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
        content = parse_json(file.read(int.from_bytes(file.read(8), "little")))
    content.pop("__metadata__", None)
    return Header(str(path), {name: StoredTensor(tuple(x["shape"]), x["dtype"]) for name, x in content.items()})


def built_for(
    cls: Any, config: Mapping[str, Any], header: Header, *, changes: Mapping[str, Any], source: str
) -> Callable[[], Any]:
    """The model that the config describes, as a function that builds it, once it is sure to fit the weights."""
    known = {each.__name__: each for each in (cls, *_descendants(cls))}
    name = config["model"]
    if name not in known:
        raise ValueError(
            f"{source} holds a {name:.80}, which {cls.__name__}.from_pretrained does not load: {nearest(name, known)}"
        )
    kind = known[name]
    _check_config(config, _options_of(kind), header)

    def build() -> Any:
        model, least = kind(**{**kind.from_options(config["options"]), **changes}), read_least_weights(config)
        return model if least is None else with_int8_layers(model, least, empty_layer)

    with torch.device("meta"):
        try:
            tensors = build().state_dict()
        except (TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError, LookupError) as error:
            if changes:  # of the caller's making as likely as of the file's
                raise
            raise ValueError(f"{config['file']}: {error!s:.300}") from error
    changed = f", with {', '.join(changes)} as given now," if changes else ""
    _check_shapes({name: tuple(x.shape) for name, x in tensors.items()}, config["file"] + changed, header)
    _check_integers({name for name, x in tensors.items() if x.dtype == torch.int8}, config["file"], header)
    # in the dtype it was saved in, where the weights share one: a model in double precision is not rounded
    found = {tensor.dtype for tensor in header.tensors.values()} - {INT8}
    dtype = DTYPES.get(found.pop()) if len(found) == 1 else None
    return build if dtype is None else lambda: build().to(dtype)


def _options_of(kind: Any) -> list[str]:
    """The options of a model's class; of one that passes `**options` on, those of its bases too."""
    names: list[str] = []
    for each in kind.__mro__:
        found = inspect.signature(each.__init__).parameters if "__init__" in vars(each) else {}
        names += [name for name in found if name not in ("self", *names)]
        if found and not any(option.kind is option.VAR_KEYWORD for option in found.values()):
            break
    return names


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
    missing = [f"{name} is {shapes[name]} by the options and missing there" for name in shapes if name not in stored]
    unknown = [f"{name} is there and not in the model" for name in stored if name not in shapes]
    both = [name for name in shapes if name in stored and stored[name] != shapes[name]]
    wrong = [
        *missing,
        *unknown,
        *(f"{name} is {shapes[name]} by the options and {stored[name]} there" for name in both),
    ]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"the options in {config} do not fit {header.file}: {'; '.join(wrong[:SHOWN])}{more}")


def _check_integers(int8: set[str], config: str, header: Header) -> None:
    """Loading would turn floats into integers, or integers into floats, without a word."""
    for name, tensor in header.tensors.items():
        if (tensor.dtype == INT8) != (name in int8):
            wanted = "int8" if name in int8 else "floating-point"
            raise ValueError(
                f"{header.file}: {name} must be {wanted} numbers by {config}, and is stored as {tensor.dtype}"
            )
