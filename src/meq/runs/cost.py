"""What a trained run costs at its own token counts: time, FLOPs and memory of a forward pass, and of one more step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from meq.data.contract import collate
from meq.data.findings import DataError
from meq.encoders import Encoder
from meq.encoders.catalogue import EncoderError
from meq.models.iterated import IteratedModel
from meq.options import checked_options, nearest
from meq.runs.load import TrainedRun
from meq.runs.own_data import UnknownDataError, as_features, encoders_of_run, raw_data
from meq.studies.cost import STEPS, Cost, Feed, Sweep, chosen_device, measure_cost, sweep_steps
from meq.studies.cost_study import cost_table, sweep_table
from meq.studies.study import StudyError
from meq.tables import Table
from meq.training.predictions import without_targets

PASSES = 15
CHOICES = 4
"""Of a multiple choice whose data is not there."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of a trained model, and what it was measured on."""

    model: str
    inputs: str
    """In words: which examples, or random ones."""
    encoders: str
    """In words: which of them are part of the pass, and why others are not."""
    cost: Cost
    """At the run's own depth, all steps taken."""
    sweep: Sweep | None
    """None for a model that does not iterate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """A batch of the run's, and how to encode it again."""

    words: str
    encoder_words: str
    feed: Feed
    random: bool = False


@checked_options
def cost_of_run(
    run: TrainedRun,
    *,
    batch_size: int = 32,
    steps: Sequence[int] = STEPS,
    tokens: Mapping[str, int] | None = None,
    passes: int = PASSES,
    device: str | None = None,
) -> RunCost:
    """Measure on the first examples of the run's own data, or on random features of so many `tokens` by modality.

    The run's encoders are part of the pass where they can be had and there is something to encode.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    place = chosen_device(device)
    inputs = random_inputs(run, tokens, batch_size, place) if tokens else own_inputs(run, batch_size, place)
    model, sweep = run.model.to(place), None
    if isinstance(model, IteratedModel):
        depths = sorted({*steps, model.steps})
        depths = depths if len(depths) > 1 else [1, *depths]
        sweep = sweep_steps(model, inputs.feed, steps=depths, passes=passes)
        cost = next(point for point in sweep.points if point.steps == model.steps)
        if inputs.random:  # when a trained model settles is a matter of what it sees
            sweep = replace(sweep, to_tolerance=None)
    else:
        cost = measure_cost(model, inputs.feed, passes=passes)
    return RunCost(
        model=type(model).__name__, inputs=inputs.words, encoders=inputs.encoder_words, cost=cost, sweep=sweep
    )


def run_cost_table(found: RunCost) -> Table:
    """One line per number of steps, or one line for a model that does not iterate."""
    cost = found.cost
    counts = ", ".join(f"{count} {name}" for name, count in cost.tokens.items())
    words = (
        f"Forward pass, batch {cost.batch_size}, tokens: {counts}; {found.inputs}. Encoders: {found.encoders}. On "
        f"{cost.device}, threads: {cost.threads}."
    )
    depth = "" if cost.steps is None else f", read at K = {cost.steps}"
    title = f"cost: {found.model}, {cost.parameters:,} parameters{depth}"
    if found.sweep is None:
        return cost_table(cost, conditions=words, title=title)
    return sweep_table(found.sweep, conditions=words, title=title)


def random_inputs(run: TrainedRun, tokens: Mapping[str, int], batch_size: int, device: str) -> Inputs:
    """Random features, every modality with the tokens asked for."""
    widths = run.task.widths
    for name, count in tokens.items():
        if name not in widths:
            raise StudyError(f"the run has no modality {name!r}: {nearest(name, widths)}")
        if count < 1:
            raise StudyError(f"{name!r} needs at least one token, got {count}")
    if missing := [name for name in widths if name not in tokens]:
        raise StudyError(f"say how many tokens {' and '.join(map(repr, missing))} should have as well")
    # a choice per row costs the same as one modality repeated for every choice
    choices = (len(run.task.labels) or CHOICES,) if run.task.head == "choices" else ()
    generator = torch.Generator().manual_seed(0)
    features = {
        name: torch.randn(batch_size, *choices, tokens[name], width, generator=generator)
        for name, width in widths.items()
    }
    words = "random features, as many as were asked for"
    feed = Feed(features=_on(features, device))
    return Inputs(words=words, encoder_words="not included, there is nothing to encode", feed=feed, random=True)


def own_inputs(run: TrainedRun, batch_size: int, device: str) -> Inputs:
    """The first examples of the run's own data, of `dev` where there is one."""
    try:
        data = raw_data(run)
    except (DataError, OSError, UnknownDataError) as error:
        raise StudyError(f"the run's own data cannot be read again: {error}. {_instead(run)}") from error
    split = "dev" if "dev" in data.splits else next(iter(data.splits))
    rows = data.splits[split]
    examples = without_targets(rows[:batch_size])
    if not examples:
        raise StudyError(f"{data.name}: the split {split!r} is empty, there is nothing to measure on")
    try:
        encoders = encoders_of_run(run, device=device)
    except EncoderError as error:
        raise StudyError(f"{error}. {_instead(run)}") from error
    small = as_features(run, replace(data, splits={split: examples}), encoders)
    batch = collate(list(small.splits[split]), run.task.widths)
    words = f"the first {len(examples)} examples of {split}"
    again = {  # those of modalities that every example has, once
        name: encoder
        for name, encoder in encoders.items()
        if all(name in each.content and not isinstance(each.content[name], tuple) for each in examples)
    }
    feed = Feed(
        features=_on(batch.features, device),
        masks=_on(batch.masks, device),
        encoders={name: PaddedEncoder(each, batch.features[name].shape[1], device) for name, each in again.items()},
        raw={name: [example.content[name] for example in examples] for name in again},
    )
    return Inputs(words=words, encoder_words=_included(encoders, again), feed=feed)


class PaddedEncoder:
    """An encoder as a function of a batch of contents: its tokens, padded to a fixed length."""

    def __init__(self, encoder: Encoder, length: int, device: str) -> None:
        self.encoder, self.length, self.device = encoder, length, device

    @property
    def model(self) -> nn.Module | None:
        """Its network, where it has one."""
        return getattr(self.encoder, "model", None)

    def __call__(self, contents: Sequence[Any]) -> Tensor:
        made = [tokens.features for tokens in self.encoder(contents)]
        return torch.stack([pad(x, (0, 0, 0, self.length - len(x))) for x in made]).to(self.device)


def _instead(run: TrainedRun) -> str:
    example = " ".join(f"--tokens {name}=50" for name in run.task.widths)
    return f"Give the number of tokens instead, such as: {example}"


def _included(encoders: Mapping[str, Encoder], again: Mapping[str, Encoder]) -> str:
    if not encoders:
        return "none, the data came as features"
    inside = [f"{name} by {encoder.name}" for name, encoder in again.items()]
    outside = [f"{name} left out (not one content per example)" for name in encoders if name not in again]
    return f"{', '.join([*inside, *outside])}; they read their files in every pass, and only networks have FLOPs"


def _on(tensors: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: x.to(device) for name, x in tensors.items()}
