"""What `fit` costs around the updates: dev scores, vitals, checkpoints, records and the final scores.

    python benchmarks/fit_overhead.py

trains one model by `fit`, in a folder of its own and without a console, and by a loop written by hand that makes the
same updates (model, batches, seeds, objective, optimiser, clip, schedule) and scores dev once per epoch, ten updates an
epoch. Both end with the same weights to the bit, which is checked. CPU time, that of processes `fit` starts included,
in interleaved rounds on one thread; writes `benchmarks/results/speed_fit_overhead.json` in some minutes.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import speed
import torch
from rich.console import Console
from torch import Tensor

import meq
from meq.data.contract import DataSet, Example, features
from meq.data.metrics import ACCURACY
from meq.training.config import TrainConfig
from meq.training.fit import fit
from meq.training.updates import Schedule, epoch_order, make_optimiser, sample_seeds

UPDATES = 10
"""Per epoch."""
EPOCHS = 4
BATCH = 32
DEV = 200
TOKENS = {"image": 9, "text": 5}
CLASSES = 3
LIMIT = 1.08


@dataclass(frozen=True, kw_only=True)
class Size:
    dim: int
    heads: int
    steps: int
    hidden: int


SIZES = (Size(dim=64, heads=4, steps=6, hidden=128), Size(dim=128, heads=8, steps=10, hidden=256))


def made_data(width: int) -> DataSet:
    """Noise with labels: what is learned does not matter here."""
    draw = torch.Generator().manual_seed(0)

    def example(split: str, row: int) -> Example:
        content = {name: torch.randn(count, width, generator=draw) for name, count in TOKENS.items()}
        target = torch.randint(CLASSES, (), generator=draw)
        return Example(id=f"{split}-{row}", content=content, target=target)

    counts = {"train": UPDATES * BATCH, "dev": DEV}
    return DataSet(
        name="noise",
        splits={split: [example(split, row) for row in range(count)] for split, count in counts.items()},
        modalities={name: features(width) for name in TOKENS},
        labels=[f"label {place}" for place in range(CLASSES)],
        head="classes",
        metric=ACCURACY,
    )


def made_model(size: Size) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    widths = dict.fromkeys(TOKENS, size.dim)
    return meq.MutualEquilibrium(
        widths, CLASSES, size.dim, heads=size.heads, steps=size.steps, hidden=size.hidden, head_width=size.hidden
    )


def recipe(*, select: str) -> TrainConfig:
    return TrainConfig(epochs=EPOCHS, batch_size=BATCH, learning_rate=1e-3, select=select)


def made_objective() -> meq.Objective:
    return meq.Objective(penalties=(meq.JacobianRange(weight=0.5), meq.ResidualCorrection(weight=0.3)))


def by_fit(model: meq.MutualEquilibrium, data: DataSet, config: TrainConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fit(model, data, made_objective(), Path(folder) / "run", config, console=Console(quiet=True))


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """A split as whole tensors, as one would hold it who writes a loop for this data alone."""

    ids: list[str]
    features: dict[str, Tensor]
    target: Tensor

    @classmethod
    def of(cls, split: Any) -> Stacked:
        contents = {name: torch.stack([example.content[name] for example in split]) for name in TOKENS}
        targets = torch.stack([example.target for example in split])
        return cls(ids=[example.id for example in split], features=contents, target=targets)


def by_hand(model: meq.MutualEquilibrium, train: Stacked, dev: Stacked, config: TrainConfig) -> float:
    """The loop; the accuracy of its last epoch."""
    objective, optimiser = made_objective(), make_optimiser(model, config.learning_rate, config.weight_decay)
    schedule = Schedule(total_steps=EPOCHS * UPDATES, peak=config.learning_rate, warmup=config.warmup)
    step, accuracy = 0, 0.0
    for epoch in range(EPOCHS):
        model.train()
        order = epoch_order(config.seed, epoch, len(train.ids))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            seeds = sample_seeds(config.seed, step, [train.ids[row] for row in rows])
            for group in optimiser.param_groups:
                group["lr"] = schedule.at(step)
            output = model({name: x[rows] for name, x in train.features.items()}, seeds=seeds)
            objective(model, output, train.target[rows], seeds=seeds).total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
        model.eval()
        accuracy = dev_accuracy(model, dev)
    return accuracy


@torch.no_grad()
def dev_accuracy(model: meq.MutualEquilibrium, dev: Stacked) -> float:
    right = 0
    for start in range(0, len(dev.ids), BATCH):
        logits = model({name: x[start : start + BATCH] for name, x in dev.features.items()}).logits
        assert logits is not None
        right += int((logits.argmax(-1) == dev.target[start : start + BATCH]).sum())
    return right / len(dev.ids)


def cpu_seconds(case: Callable[[], Any]) -> float:
    """Of this process and of those that it starts and waits for."""
    begin = _used()
    case()
    return _used() - begin


def _used() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def check_same(size: Size, data: DataSet, train: Stacked, dev: Stacked) -> None:
    """Both make the same updates, or their times are not to be compared."""
    config, one, other = recipe(select="last"), made_model(size), made_model(size)
    by_fit(one, data, config)
    by_hand(other, train, dev, config)
    different = [name for name, x in one.state_dict().items() if not torch.equal(x, other.state_dict()[name])]
    if different:
        raise AssertionError(f"fit and the loop written by hand end with other weights: {', '.join(different)}")


def measured(size: Size, rounds: int) -> speed.Line:
    data, config = made_data(size.dim), recipe(select="best")
    train, dev = Stacked.of(data.splits["train"]), Stacked.of(data.splits["dev"])
    check_same(size, data, train, dev)
    cases: dict[str, Callable[[], Any]] = {
        "fit": lambda: by_fit(made_model(size), data, config),
        "by hand": lambda: by_hand(made_model(size), train, dev, config),
    }
    return speed.Line(
        number=11,
        what=f"`fit` by a bare loop that scores dev: width {size.dim}, K = {size.steps}, "
        f"{' + '.join(map(str, TOKENS.values()))} tokens, batch {BATCH}, {UPDATES} updates and {DEV} dev examples an "
        f"epoch, {EPOCHS} epochs",
        limit=LIMIT,
        **speed.ratios(speed.interleaved(cases, rounds, cpu_seconds), "fit", "by hand"),
    )


def measure(rounds: int) -> list[speed.Line]:
    return [measured(size, rounds) for size in SIZES]


if __name__ == "__main__":
    speed.run_lines("What fit costs around the updates.", "fit_overhead", 9, measure)
