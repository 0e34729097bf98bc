"""Where things are computed: the device that was asked for, if it is there, or else the accelerator that is found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meq.options import nearest

if TYPE_CHECKING:
    import torch
    from torch import nn


def chosen_device(asked: str | None = None, *, also: Sequence[str] = ()) -> str:
    """The device that was asked for, or an error if this machine has none such; else its accelerator, else the CPU.

    `also` are kinds that are taken besides, such as "meta".
    """
    import torch

    if asked is None:
        if not torch.accelerator.is_available():
            return "cpu"
        return f"{torch.accelerator.current_accelerator()}:{os.environ.get('LOCAL_RANK', '0')}"
    known = [*_kinds(), *also]
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"there is no device {asked!r}: {nearest(asked, known)}") from error
    if device.type not in known:
        raise ValueError(f"this machine has no device {asked!r}: {nearest(device.type, known)}")
    count = 1 if device.type in ("cpu", *also) else torch.accelerator.device_count()
    if (device.index or 0) >= count:
        raise ValueError(f"this machine has no device {asked!r}: it has {count} of the kind {device.type!r}")
    return asked


def device_of(model: nn.Module) -> torch.device:
    """Where a model's weights are."""
    return next(model.parameters()).device


def _kinds() -> list[str]:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu", *([] if accelerator is None else [accelerator.type])]
