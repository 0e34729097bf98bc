"""fit(): any module on anybody's batches, in memory.

`meq.training.fit` trains a model of meq on a data set, into a folder that survives anything. This one is for a network
of one's own: encoders that are trained along, a loader that exists already, an equilibrium somewhere in the middle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from meq.data.metrics import METRICS, Metric
from meq.devices import chosen_device, device_of
from meq.models.base import FusionModel
from meq.models.iterated import IteratedModel
from meq.objectives import Loss, Objective, mean_loss
from meq.options import checked_options, whole_number
from meq.training.config import PLAIN, TrainConfig, asked_depth, check_depth
from meq.training.fitted import Epoch, Fitted
from meq.training.loaders import LoadedBatch, check_loader, count_batches, loaded_batches
from meq.training.updates import (
    Schedule,
    TrainingError,
    average_weights,
    averaged,
    drawn_depth,
    make_optimiser,
    sample_seeds,
)

RECIPE = TrainConfig(epochs=20, learning_rate=1e-3)
"""How a network is trained that nobody has given another recipe."""
TAKEN: tuple[str, ...] = ("epochs", "learning_rate", "weight_decay", "warmup", "decay", "clip", "seed", "select")
TAKEN += ("average", "depth", "random_start", "path_noise", "supervise", "supervise_decay")
"""The options of a recipe that a network can be trained by here."""
Call = Callable[[nn.Module, Any], Any]
"""(model, the batch as its loader gave it, on the model's device) -> an Output, or logits."""


@checked_options
def fit(
    model: nn.Module,
    train_loader: Iterable[Any],
    dev_loader: Iterable[Any] | None = None,
    *,
    objective: Objective | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    patience: int | None = 5,
    metric: Metric | str | None = None,
    config: TrainConfig | None = None,
    call: Call | None = None,
    device: str | None = None,
    progress: Callable[[Epoch], None] | None = None,
) -> Fitted:
    """Train a module on batches; it ends in eval mode with the weights of the best epoch on dev, or of the last.

    A batch is a dict with `features` (a dict by modality) and `target`, and where there are any `masks`, `weight` (how
    much each sample counts) and `ids`; or a tuple (features, target). A loader is walked once per epoch. How the model
    is called: a model of meq as `model(features, masks)`; any other module as `model(batch)` with the whole dict, which
    may then have keys of its own, or with the features of a tuple; `call=lambda model, batch: ...` in place of both.
    It gives an `Output`, another object with `logits`, or logits.

    Without an `objective` the loss is that of the model's head, or the one that target and logits ask for. Penalties
    hold the equilibrium that the output's `solution` comes from. `epochs`, `learning_rate` and `seed` stand for those
    of the `config`, the rest of the recipe. Training ends after `patience` epochs that were no better on dev, by the
    `metric` if there is one and else by the loss; None trains to the end. `progress` is told of every epoch.

    >>> def batch(rows):
    ...     features = {"image": torch.randn(rows, 5, 8), "text": torch.randn(rows, 4, 6)}
    ...     return {"features": features, "target": torch.randint(3, (rows,))}
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, steps=2)
    >>> fitted = meq.fit(model, [batch(4), batch(4)], [batch(8)], epochs=1, metric="accuracy")
    >>> 0 <= fitted.best.score <= 1
    True
    """
    given: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed}
    recipe = replace(config or RECIPE, **{name: value for name, value in given.items() if value is not None})
    if patience is not None:
        whole_number("patience", patience)
    metric = METRICS.get(metric) if isinstance(metric, str) else metric
    _check(model, train_loader, dev_loader, metric, recipe)
    if device is not None:
        model.to(chosen_device(device))
    loop = _Loop(model, train_loader, dev_loader, objective, metric=metric, recipe=recipe, call=call)
    with _seeded(recipe.seed, device_of(model)):
        return loop.run(patience, progress or (lambda epoch: None))


def _check(model: nn.Module, train: Any, dev: Any, metric: Metric | None, recipe: TrainConfig) -> None:
    """What can be known to be wrong before anything is computed."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    if not any(weights.requires_grad for weights in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no weights to train: none of its parameters requires a gradient")
    check_loader(train, "train_loader")
    if dev is not None:
        check_loader(dev, "dev_loader")
    elif metric is not None:
        raise ValueError(f"the metric {metric.name!r} is for dev: give a `dev_loader`, or leave `metric` out")
    others = [each.name for each in fields(recipe) if each.name not in TAKEN]
    asked = [name for name in others if getattr(recipe, name) != getattr(PLAIN, name)]
    if asked:
        raise ValueError(
            f"meq.fit takes no {', '.join(asked)} from a TrainConfig: batches are the loader's, the loss is the "
            "objective's, `patience` is an argument, and the rest belongs to meq.training.fit"
        )
    iterated = _iterated(model)
    if not iterated and asked_depth(recipe):
        raise ValueError(
            f"nothing in {type(model).__name__} iterates, so it has no depth to train: leave out "
            f"{', '.join(asked_depth(recipe))}"
        )
    for each in iterated:
        check_depth(each, recipe)


def _iterated(model: nn.Module) -> list[IteratedModel]:
    """The equilibria in a network, itself among them."""
    return [module for module in model.modules() if isinstance(module, IteratedModel)]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within it torch draws from this seed, for dropout and shuffling of modules and loaders; then again as before."""
    kind = device.type
    others = {} if kind == "cpu" else {"devices": [device], "device_type": kind}
    with torch.random.fork_rng(**(others or {"devices": []})):
        torch.manual_seed(seed % 2**63)
        yield


@dataclass(frozen=True, eq=False)
class _Answer:
    """What a module gave, as objectives read it."""

    logits: Tensor
    solution: Any = None
    along: tuple[Tensor, ...] = ()
    answered: Tensor | None = None


@dataclass(frozen=True)
class _Held:
    """The map that penalties hold: that of the solution, wherever in the network it was found."""

    operator: Any


class _Loop:
    """One training."""

    def __init__(
        self,
        model: nn.Module,
        train: Iterable[Any],
        dev: Iterable[Any] | None,
        objective: Objective | None,
        *,
        metric: Metric | None,
        recipe: TrainConfig,
        call: Call | None,
    ) -> None:
        self.model, self.train, self.dev, self.metric, self.recipe, self.call = model, train, dev, metric, recipe, call
        self.device, self.iterated = device_of(model), _iterated(model)
        self.fusion = model if isinstance(model, FusionModel) and call is None else None
        """Called by its own arguments; any other module has the batch."""
        if objective is None and isinstance(model, FusionModel):
            objective = Objective(task=model.head_kind)
        decay = recipe.supervise_decay
        self.objective = objective if objective is None else replace(objective, decay=decay)
        """None until the first batch tells what is asked for."""
        self.optimiser = make_optimiser(model, recipe.learning_rate, recipe.weight_decay)
        self.step, self.history = 0, list[Epoch]()
        self.best: tuple[int, float, dict[str, Tensor]] | None = None
        """Epoch, value, weights."""

    def run(self, patience: int | None, progress: Callable[[Epoch], None]) -> Fitted:
        began, recipe = time.monotonic(), self.recipe
        total = recipe.epochs * max(1, count_batches(self.train))
        self.schedule = Schedule(total_steps=total, peak=recipe.learning_rate, warmup=recipe.warmup, decay=recipe.decay)
        why = "all epochs were trained"
        try:
            for epoch in range(recipe.epochs):
                train_loss = self._train(epoch)
                with averaged(self.model, self.optimiser):
                    dev_loss, score = (None, None) if self.dev is None else self._score(epoch)
                    self._keep(epoch, dev_loss, score)
                self.history.append(
                    Epoch(
                        epoch=epoch,
                        step=self.step,
                        train_loss=train_loss,
                        dev_loss=dev_loss,
                        score=score,
                        seconds=time.monotonic() - began,
                    )
                )
                progress(self.history[-1])
                if self.dev is not None and patience is not None and epoch - self._best_epoch >= patience:
                    why = f"no better on dev for {patience} epoch{'s' if patience > 1 else ''}"
                    break
        finally:  # after Ctrl-C, too
            if self.best is not None:
                self.model.load_state_dict(self.best[2])
            self.optimiser.zero_grad()
            self.model.eval()
        assert self.objective is not None
        return Fitted(
            history=tuple(self.history),
            best_epoch=self._best_epoch,
            seconds=time.monotonic() - began,
            task=self.objective.task,
            metric=None if self.metric is None else self.metric.name,
            why=why,
        )

    @property
    def _best_epoch(self) -> int:
        return 0 if self.best is None else self.best[0]

    def _keep(self, epoch: int, dev_loss: float | None, score: float | None) -> None:
        """Hold the weights where they are the best so far, or the newest where there is no dev."""
        if dev_loss is None or self.recipe.select == "last":
            value = float(epoch)
        else:
            value = -dev_loss if score is None else -math.inf if math.isnan(score) else score
        if self.best is None or value > self.best[1]:
            weights = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
            self.best = (epoch, value, weights)

    # -- one epoch -----------------------------------------------------------------------------------------------------

    def _batches(self, loader: Iterable[Any], label: str, epoch: int) -> Iterator[LoadedBatch]:
        strict = self.fusion is not None
        return loaded_batches(loader, label, device=self.device, epoch=epoch, strict=strict)

    def _train(self, epoch: int) -> float:
        """The mean loss of an epoch's updates."""
        self.model.train()
        total, count = 0.0, 0
        for batch in self._batches(self.train, "train_loader", epoch):
            total, count = total + self._update(batch) * len(batch), count + len(batch)
        return total / count

    def _update(self, batch: LoadedBatch) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.at(min(self.step, self.schedule.total_steps - 1))
        seeds = sample_seeds(self.recipe.seed, self.step, batch.ids)
        with ExitStack() as depths:
            for each in self.iterated:
                depths.enter_context(drawn_depth(each, self.recipe, self.step, batch.ids))
            answer = self._answer(batch, seeds)
        loss = self._loss(batch, answer, seeds)
        _refuse_non_finite(loss.total, loss, batch, "loss")
        self.optimiser.zero_grad()
        loss.total.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        _refuse_non_finite(norm, loss, batch, "gradient")
        self.optimiser.step()
        if self.recipe.average:
            average_weights(self.model, self.optimiser, self.recipe.average, self.step)
        self.step += 1
        return float(loss.total.detach())

    def _score(self, epoch: int) -> tuple[float, float | None]:
        """Loss and metric on dev."""
        assert self.dev is not None
        assert self.objective is not None
        self.model.eval()
        plain = replace(self.objective, penalties=())
        losses, weights, logits, targets = [], [], list[Tensor](), list[Tensor]()
        with torch.no_grad():
            for batch in self._batches(self.dev, "dev_loader", epoch):
                answer = self._answer(batch, None)
                loss = plain(_Held(None), answer, batch.target)
                _refuse_non_finite(loss.total, loss, batch, "loss")
                losses.append(loss.per_sample.double())
                weights.append(torch.ones_like(losses[-1]) if batch.weight is None else batch.weight.double())
                if self.metric is not None:
                    logits += answer.logits
                    targets += batch.target
        mean = float(mean_loss(torch.cat(losses), torch.cat(weights)))
        return mean, None if self.metric is None else self.metric(_stacked(logits, 0), _stacked(targets, -1))

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _answer(self, batch: LoadedBatch, seeds: Tensor | None) -> _Answer:
        if self.fusion is not None:
            output = self.fusion(batch.features, batch.masks, seeds=seeds)
        else:
            output = self.model(batch.given) if self.call is None else self.call(self.model, batch.given)
        if isinstance(output, Tensor):
            return _Answer(output)
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            what = "logits that are None" if hasattr(output, "logits") else f"a {type(output).__name__}"
            raise TypeError(
                f"{batch.place}: {type(self.model).__name__} gave {what}: it must give an Output with logits, or logits"
            )
        rest: dict[str, Any] = {"solution": None, "along": (), "answered": None}
        return _Answer(logits, **{name: getattr(output, name, default) for name, default in rest.items()})

    def _loss(self, batch: LoadedBatch, answer: _Answer, seeds: Tensor) -> Loss:
        if self.objective is None:
            self.objective = Objective(task=_task(answer.logits, batch.target), decay=self.recipe.supervise_decay)
        held = _Held(None if answer.solution is None else answer.solution.operator)
        if held.operator is None and any(penalty.weight > 0 for penalty in self.objective.penalties):
            raise ValueError(
                f"the objective has penalties, and what {type(self.model).__name__} gives has no `solution` for them "
                "to hold: return the equilibrium's Output, or an object with its `solution` and your `logits`; or "
                "leave the penalties out"
            )
        return self.objective(held, answer, batch.target, seeds=seeds, weight=batch.weight)


def _task(logits: Tensor, target: Tensor) -> str:
    """What is asked for, by the look of it: whole numbers are classes, others a score, or as many labels as logits."""
    if not target.is_floating_point():
        return "tokens" if logits.ndim == 3 else "classes"
    return "score" if logits.shape[1:].numel() == 1 else "labels"


def _stacked(rows: list[Tensor], filling: int) -> Tensor:
    """Of answers per token, batches may have different numbers."""
    if len({x.shape for x in rows}) > 1:
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filling)
    return torch.stack(rows)


def _refuse_non_finite(value: Tensor, loss: Loss, batch: LoadedBatch, what: str) -> None:
    """Stop before the weights are touched, and say which samples did it."""
    if bool(torch.isfinite(value)):
        return
    rows = (~torch.isfinite(loss.per_sample)).nonzero().flatten().tolist()
    ids = [batch.ids[row] for row in rows] or list(batch.ids)
    named = f"{', '.join(ids[:8])}{', ...' if len(ids) > 8 else ''}"
    raise TrainingError(
        f"the {what} is not finite in {batch.place}, samples {named}. The weights were not "
        "changed by it: look at these samples, or lower the learning_rate",
        ids,
    )
