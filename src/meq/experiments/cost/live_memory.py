"""The peak of live tensor bytes inside a block, counted by storage."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class PeakBytes(TorchDispatchMode):
    """`with PeakBytes(idle) as memory: ...`, then `memory.peak`: the most bytes that were live at once.

    It sees the results of operations, on any device, the meta device included; what an operation needs inside itself it
    does not see. Tensors in `idle` were there before: they, and views of them, count for nothing.
    """

    def __init__(self, idle: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        # kept alive, so that no new storage can come to lie at the address of one of them
        self._idle = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in idle)}
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in self._idle:
            return

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)
