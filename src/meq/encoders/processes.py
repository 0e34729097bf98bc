"""Several processes of one launch, which share the work of an encoding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Share:
    """This process among those that torchrun or accelerate launch started; alone, it is one of one."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Every `world`-th item."""
        return items[self.rank :: self.world]

    def gather(self, mine: Sequence[Item]) -> list[Item]:
        """What each process made of its share, one for one, back in the order that `of` took them from."""
        shares = self.collect(mine)
        merged: list[Any] = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            merged[rank :: self.world] = share
        return merged

    def collect(self, mine: Sequence[Item]) -> list[list[Item]]:
        """What every process has, however much, by process."""
        if self.world == 1:
            return [list(mine)]
        from accelerate.utils import gather_object

        return gather_object([list(mine)])

    def wait(self) -> None:
        """Until every process has come this far."""
        if self.world > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()


def this_process() -> Share:
    """Its share, by what the launcher says; Accelerate is loaded only where there are several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Share()
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())  # as training does, which may follow
    return Share(rank=state.process_index, world=state.num_processes)
