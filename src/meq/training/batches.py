"""Which examples an update sees: by seed, epoch and place alone, whatever the number of processes."""

from __future__ import annotations

from collections.abc import Iterator

from accelerate import Accelerator

from meq.data.contract import Batch, DataSet, Split, collate
from meq.training.config import TrainConfig
from meq.training.seeds import epoch_order


class Batches:
    """The train split, cut into updates of batch_size x processes x accumulate examples."""

    def __init__(self, data: DataSet, config: TrainConfig, accelerator: Accelerator) -> None:
        self.data, self.config, self.accelerator = data, config, accelerator
        self.per_update = config.batch_size * accelerator.num_processes * config.accumulate
        size = len(data.splits["train"])
        if size < self.per_update:
            raise ValueError(
                f"the train split of {data.name!r} has {size} examples, fewer than the {self.per_update} of one update "
                "(batch_size x processes x accumulate): lower one of them"
            )
        self.updates = size // self.per_update
        """Per epoch."""

    def of_epoch(self, epoch: int, start: int) -> Iterator[list[Batch]]:
        """The micro-batches of every update of an epoch that is still to come, for this process."""
        size, world, rank = self.config.batch_size, self.accelerator.num_processes, self.accelerator.process_index
        train: Split = self.data.splits["train"]
        order = epoch_order(self.config.seed, epoch, len(train))
        for position in range(start, self.updates):
            update = order[position * self.per_update : (position + 1) * self.per_update]
            micro = [update[(m * world + rank) * size :][:size] for m in range(self.config.accumulate)]
            yield [
                collate([train[row] for row in rows], self.data.widths).to(self.accelerator.device) for rows in micro
            ]


def with_last(batches: list[Batch]) -> Iterator[tuple[bool, Batch]]:
    """Each batch, and whether it is the last."""
    for index, batch in enumerate(batches):
        yield index == len(batches) - 1, batch
