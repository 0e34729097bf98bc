"""A second device for a process that has none: its tensors are the CPU's, wrapped, and no operation takes both kinds.

What runs on it alone keeps everything where the model is; what mixes devices, or relies on the default one, fails as it
would on a GPU. `install()` once per process, then use the device "second". Results are those of the CPU, bit by bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "second"
DEVICE = f"{NAME}:0"
WAITS: list[str] = []
"""Operations after which a program would have to wait for an accelerator: values, or numbers of them, come back."""
WAITED_FOR = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")


class Second(Tensor):
    """A tensor of that device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Second:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE),
        )
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __init__(self, inner: Tensor) -> None: ...

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Second({self.inner})"

    def tolist(self) -> Any:
        """torch refuses it for subclasses."""
        return self.inner.tolist()

    def __getitem__(self, place: Any) -> Any:
        """By a list, which torch would make a tensor of where no Python can follow."""
        return super().__getitem__(torch.tensor(place, device=DEVICE) if isinstance(place, list) else place)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, *args, **(kwargs or {}))


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation on what is inside; only copies may come from, or go to, the other device."""
    leaves = tree.tree_leaves((args, kwargs))
    mine = {id(x.inner): x for x in leaves if isinstance(x, Second)}
    name = func._schema.name
    if name == "aten::_to_copy":
        asked = kwargs.pop("device", None)
        there = bool(mine) if asked is None else torch.device(asked).type == NAME
        if mine and not there:
            WAITS.append(name)
        made = func(_inside(args[0]), *args[1:], **kwargs)
        return Second(made) if there else made
    if name == "aten::copy_":
        _inside(args[0]).copy_(_inside(args[1]))
        return args[0]
    if mine and name in WAITED_FOR:
        WAITS.append(name)
    if mine and any(isinstance(x, Tensor) and not isinstance(x, Second) and x.ndim for x in leaves):
        raise RuntimeError(f"{name}: expected all tensors on one device, found cpu and {NAME}")
    made = func(*tree.tree_map(_inside, args), **tree.tree_map(_inside, kwargs))
    return tree.tree_map(lambda x: (mine[id(x)] if id(x) in mine else Second(x)) if isinstance(x, Tensor) else x, made)


def _inside(x: Any) -> Any:
    return x.inner if isinstance(x, Second) else torch.device("cpu") if isinstance(x, torch.device) else x


def install() -> torch.library.Library:
    """The device, as long as what is returned is kept."""
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(run, "PrivateUse1")
    plain = torch.tensor

    def tensor(data: Any, *, device: Any = None, **rest: Any) -> Tensor:
        """torch's own fails on any device that is written in Python."""
        made = plain(data, **rest)
        return made if device is None else made.to(device)

    torch.tensor = tensor  # type: ignore[assignment]
    return library
