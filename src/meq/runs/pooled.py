"""Cheap baselines on prepared features: what can be had without a fusion model.

    pooled = pool(data)
    constant(pooled), linear(pooled), linear(pooled, ["text"]), boosting(pooled)

Every modality of an example becomes one vector, the mean of its tokens. All three are fitted on train, choose what
there is to choose on dev, and answer as models do: `predict` gives logits that metrics and losses understand. Nothing
in them is random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from meq.data.contract import DataSet, tensors_of
from meq.errors import require
from meq.objectives import task_loss
from meq.options import nearest
from meq.training.config import TrainConfig, check_splits
from meq.training.predictions import Predictions, scores

HEADS = ("classes", "ordinal", "labels", "score")
"""Heads that one vector per example can answer for."""
PENALTIES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Of the linear baselines, per training example, from the strongest: the first of equals is kept."""
STAGES, RATE, LEAVES = 200, 0.1, 15
"""Trees of the boosting at most, what each of them adds, and its leaves."""
LBFGS_STEPS = 500
TINY = 1e-6
"""The least probability that the constant answer gives to a class."""

Answer = Callable[[Tensor], Tensor]
"""From inputs (N F) to logits (N C), both float64."""


class PooledError(ValueError):
    """Data that a cheap baseline cannot be fitted to; the message says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledSplit:
    """One vector per example and modality."""

    ids: Sequence[str]
    target: Tensor
    means: Mapping[str, Float[Tensor, "N W"]]
    """By modality, float64; zeros where an example lacks it."""
    there: Mapping[str, Bool[Tensor, " N"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """A data set, one vector per example and modality; a split is read when it is first asked for."""

    data: DataSet
    read: dict[str, PooledSplit] = field(default_factory=dict)

    def split(self, name: str) -> PooledSplit:
        if name not in self.data.splits:
            raise PooledError(f"{self.data.name} has no split {name!r}: {nearest(name, self.data.splits)}")
        if name not in self.read:
            self.read[name] = _pool_split(self.data, name)
        return self.read[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class Baseline:
    """A fitted baseline, which answers every split of the data it was fitted to."""

    name: str
    """Such as majority, mean, logistic regression, ridge regression on text, gradient boosting."""
    modalities: tuple[str, ...]
    """What it reads."""
    parameters: int
    """Numbers that were fitted; of trees, their leaves."""
    chosen: Mapping[str, float]
    """What was chosen on dev."""
    pooled: Pooled
    inputs: Callable[[PooledSplit], Tensor]
    answer: Answer

    def predict(self, split: str) -> Predictions:
        """The answers to a split, in its order, as `meq.training.predictions.scores` takes them."""
        part = self.pooled.split(split)
        return _predictions(part, self.answer(self.inputs(part)))

    def scores(self, split: str) -> dict[str, float]:
        """Every metric of the data set on that split, and the loss."""
        return _scores(self.pooled.data, self.predict(split))


def pool(data: DataSet) -> Pooled:
    """A prepared data set with one vector per example and modality, or an error where that cannot be answered from."""
    if data.head not in HEADS:
        raise PooledError(
            f"{data.name} asks for {data.head!r}, which one vector per example cannot answer: the cheap baselines are "
            f"for {', '.join(HEADS)}"
        )
    check_splits(data, TrainConfig(batch_size=1))
    data.widths  # noqa: B018, an error while something has still to be encoded
    return Pooled(data=data)


def constant(pooled: Pooled) -> Baseline:
    """The same answer to everything: how often each class or label is right in train, or the mean score."""
    data, target = pooled.data, pooled.split("train").target
    if data.head == "score":
        name, row = "mean", target.double().reshape(-1).mean().reshape(1)
    elif data.head == "labels":
        name, row = "majority", torch.logit(target.double().mean(0), eps=TINY)
    else:
        counts = torch.bincount(target.long(), minlength=len(data.labels)).double()
        name, row = "majority", (counts / counts.sum()).clamp(min=TINY).log()
    return Baseline(
        name=name,
        modalities=(),
        parameters=len(row),
        chosen={},
        pooled=pooled,
        inputs=lambda part: torch.zeros(len(part.ids), 0, dtype=torch.float64),
        answer=lambda x: row.expand(len(x), -1),
    )


def linear(pooled: Pooled, modalities: Sequence[str] | None = None) -> Baseline:
    """Logistic regression, for scores ridge regression, on the named modalities; on all of them unless named.

    Columns are standardised by train. A modality that an example lacks is zero then, and a column more says so. The
    penalty is that of `PENALTIES` with the best score on dev, the strongest of equals.
    """
    data, chosen = pooled.data, _known(pooled.data, modalities)
    inputs = _standardised(pooled.split("train"), chosen)
    train, x = pooled.split("train"), inputs(pooled.split("train"))
    answers: dict[float, Answer] = {}
    weights: Tensor | None = None
    for penalty in PENALTIES:  # from the strongest, each from where the last one ended
        if data.head == "score":
            weights = _ridge(x, train.target, penalty)
        else:
            weights = _logistic(x, train.target, penalty, data, weights)
        answers[penalty] = partial(_affine, weights=weights, normal=data.head in ("classes", "ordinal"))
    dev = pooled.split("dev")
    on_dev = {each: _scores(data, _predictions(dev, made(inputs(dev)))) for each, made in answers.items()}
    penalty = _best(data, on_dev)
    assert weights is not None
    return Baseline(
        name=_named("ridge regression" if data.head == "score" else "logistic regression", chosen, data),
        modalities=chosen,
        parameters=weights.numel(),
        chosen={"penalty": penalty},
        pooled=pooled,
        inputs=inputs,
        answer=answers[penalty],
    )


def boosting(pooled: Pooled, modalities: Sequence[str] | None = None) -> Baseline:
    """Gradient-boosted trees of scikit-learn (extra `sklearn`), as many as are best on dev.

    For tables of numbers: of what encoders make of pictures and texts, no column means much by itself. What is missing
    is left to the trees.
    """
    require("sklearn", "gradient boosting")
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    data, chosen = pooled.data, _known(pooled.data, modalities)
    inputs, train = partial(_with_gaps, names=chosen), pooled.split("train")
    x, target = inputs(train).numpy(), train.target.reshape(len(train.ids), -1)
    if data.head == "labels" or (data.head != "score" and len(target.unique()) < 2):
        raise PooledError("gradient boosting needs one answer per example, and at least two of them in train")
    scored = data.head == "score"
    make = partial(
        HistGradientBoostingRegressor if scored else HistGradientBoostingClassifier,
        learning_rate=RATE,
        max_leaf_nodes=LEAVES,
        early_stopping=False,
        random_state=0,
    )
    trees = make(max_iter=STAGES).fit(x, target[:, 0].numpy())
    classes = None if scored else trees.classes_
    staged = (trees.staged_predict if scored else trees.staged_predict_proba)(inputs(pooled.split("dev")).numpy())
    on_dev = {
        count: _scores(data, _predictions(pooled.split("dev"), _from_trees(found, classes, len(data.labels))))
        for count, found in enumerate(staged, 1)
    }
    best = _best(data, on_dev)
    trees = make(max_iter=best).fit(x, target[:, 0].numpy())  # the first of them once more: nothing in it is random

    def answer(x: Tensor) -> Tensor:
        return _from_trees((trees.predict if scored else trees.predict_proba)(x.numpy()), classes, len(data.labels))

    return Baseline(
        name=_named("gradient boosting", chosen, data),
        modalities=chosen,
        parameters=best * LEAVES * trees.n_trees_per_iteration_,
        chosen={"trees": best},
        pooled=pooled,
        inputs=inputs,
        answer=answer,
    )


def recipes(pooled: Pooled, numbers: Sequence[str] = ()) -> list[tuple[str, Callable[[], Baseline]]]:
    """The baselines that there are for this data, the cheapest first: the kind of each, and how it is fitted.

    `numbers` are the modalities that came as numbers: gradient boosting reads these.
    """
    names = list(pooled.data.modalities)
    single = [("one modality", partial(linear, pooled, [name])) for name in names if len(names) > 1]
    trees = [("trees", partial(boosting, pooled, numbers))] if numbers else []
    return [("constant", partial(constant, pooled)), *single, ("linear", partial(linear, pooled)), *trees]


def cheap_baselines(data: DataSet, *, numbers: Sequence[str] = ()) -> tuple[list[Baseline], list[str]]:
    """All `recipes` for this data, fitted, and a sentence on each that is left out."""
    found: list[Baseline] = []
    said: list[str] = []
    for kind, fit in recipes(pool(data), numbers):
        try:
            found.append(fit())
        except (ImportError, PooledError) as error:
            said.append(left_out(kind, error))
    return found, said


def left_out(kind: str, error: Exception) -> str:
    return f"A baseline ({kind}) is left out: {error}."


# -- inputs ------------------------------------------------------------------------------------------------------------


def _pool_split(data: DataSet, name: str) -> PooledSplit:
    """One pass over the examples of a split."""
    ids, targets = [], []
    means: dict[str, list[Tensor]] = {modality: [] for modality in data.modalities}
    there: dict[str, list[bool]] = {modality: [] for modality in data.modalities}
    for example in data.splits[name]:
        if example.target is None:
            raise PooledError(f"{data.name}: the split {name!r} has no labels, {example.id!r} is the first without")
        ids.append(example.id)
        targets.append(example.target)
        for modality, width in data.widths.items():
            rows = [x.double().reshape(-1, width) for x in tensors_of(example.content.get(modality))]
            tokens = torch.cat(rows) if rows else torch.zeros(0, width, dtype=torch.float64)
            there[modality].append(len(tokens) > 0)
            means[modality].append(tokens.mean(0) if len(tokens) else torch.zeros(width, dtype=torch.float64))
    return PooledSplit(
        ids=ids,
        target=torch.stack(targets),
        means={modality: torch.stack(rows) for modality, rows in means.items()},
        there={modality: torch.tensor(rows) for modality, rows in there.items()},
    )


def _known(data: DataSet, modalities: Iterable[str] | None) -> tuple[str, ...]:
    """The modalities that were named, in the order of the data."""
    named = tuple(data.modalities) if modalities is None else tuple(modalities)
    for name in named:
        if name not in data.modalities:
            raise PooledError(f"{data.name} has no modality {name!r}: {nearest(name, data.modalities)}")
    if not named:
        raise PooledError("name at least one modality to read")
    return tuple(name for name in data.modalities if name in named)


def _named(kind: str, modalities: Sequence[str], data: DataSet) -> str:
    return kind if len(modalities) == len(data.modalities) else f"{kind} on {' and '.join(modalities)}"


def _standardised(train: PooledSplit, names: Sequence[str]) -> Callable[[PooledSplit], Tensor]:
    """The way from a split to columns of mean 0 and standard deviation 1 in train, gaps 0 with a column that says so.

    There is such a column where some of train lack the modality and some have it.
    """
    known = {name: _moments(train.means[name][train.there[name]]) for name in names}
    gaps = [name for name in names if 0 < int(train.there[name].sum()) < len(train.ids)]

    def inputs(part: PooledSplit) -> Tensor:
        there = {name: part.there[name].double()[:, None] for name in names}
        scaled = [(part.means[name] - known[name][0]) / known[name][1] * there[name] for name in names]
        return torch.cat([*scaled, *(1 - there[name] for name in gaps)], dim=1)

    return inputs


def _moments(x: Float[Tensor, "N W"]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every column; 1 for one that does not vary, or that nobody has."""
    if not len(x):
        return torch.zeros(x.shape[1]).double(), torch.ones(x.shape[1]).double()
    std = x.std(0, correction=0)
    return x.mean(0), torch.where(std > x.abs().amax(0) * torch.finfo(torch.float32).eps, std, 1.0)


def _with_gaps(part: PooledSplit, *, names: Sequence[str]) -> Tensor:
    """All columns, NaN where a modality is missing."""
    return torch.cat([part.means[name].masked_fill(~part.there[name][:, None], math.nan) for name in names], dim=1)


# -- fits --------------------------------------------------------------------------------------------------------------


def _ridge(x: Float[Tensor, "N F"], target: Tensor, penalty: float) -> Float[Tensor, "F1 1"]:
    """argmin of mean (x w + b - y)^2 + penalty |w|^2, in closed form; b, the last row, is free."""
    y = target.double().reshape(-1, 1)
    centred = x - x.mean(0)
    gram = centred.T @ centred / len(x) + penalty * torch.eye(x.shape[1], dtype=x.dtype)
    w = torch.linalg.solve(gram, centred.T @ (y - y.mean()) / len(x))
    return torch.cat([w, (y.mean() - x.mean(0) @ w)[None]])


def _logistic(
    x: Float[Tensor, "N F"], target: Tensor, penalty: float, data: DataSet, start: Tensor | None
) -> Float[Tensor, "F1 C"]:
    """argmin of the mean cross-entropy + penalty / 2 |W|^2, by L-BFGS; the biases, the last row, are free."""
    loss = task_loss("labels" if data.head == "labels" else "classes")
    weights = torch.zeros(x.shape[1] + 1, len(data.labels), dtype=torch.float64) if start is None else start.clone()
    weights.requires_grad_(True)
    steps = torch.optim.LBFGS(
        [weights], max_iter=LBFGS_STEPS, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        steps.zero_grad()
        found = loss(_affine(x, weights=weights), target).mean() + penalty / 2 * weights[:-1].square().sum()
        found.backward()
        return found

    steps.step(closure)
    return weights.detach()


def _affine(x: Tensor, *, weights: Tensor, normal: bool = False) -> Tensor:
    """x W + b; with `normal`, log-probabilities, which an ordinal head gives too."""
    logits = x @ weights[:-1] + weights[-1]
    return logits.log_softmax(1) if normal else logits


def _from_trees(found: Any, classes: Any, count: int) -> Tensor:
    """Scores as they are; probabilities of the classes that train has as logarithms, over all of them."""
    if classes is None:
        return torch.from_numpy(found).reshape(-1, 1)
    full = torch.full((len(found), count), TINY, dtype=torch.float64)
    full[:, torch.from_numpy(classes).long()] = torch.from_numpy(found).clamp(min=TINY)
    return full.log().log_softmax(1)


# -- choice on dev -----------------------------------------------------------------------------------------------------


def _predictions(part: PooledSplit, logits: Tensor) -> Predictions:
    return Predictions(ids=part.ids, logits=logits.float(), target=part.target)


def _scores(data: DataSet, predictions: Predictions) -> dict[str, float]:
    return scores((data.metric, *data.also), data.head, predictions)


Setting = TypeVar("Setting", int, float)


def _best(data: DataSet, on_dev: Mapping[Setting, Mapping[str, float]]) -> Setting:
    """The first setting with the best metric, then the least loss; a metric that is no number is the worst."""

    def worth(setting: Setting) -> tuple[float, float]:
        score, loss = on_dev[setting][data.metric.name], on_dev[setting]["loss"]
        return (-math.inf if math.isnan(score) else score, -math.inf if math.isnan(loss) else -loss)

    return max(on_dev, key=worth)
