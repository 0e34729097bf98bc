"""What a trained run costs at its own token counts: time, FLOPs and memory of a forward pass, and of one more step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from meq.data.contract import collate
from meq.data.findings import DataError
from meq.devices import chosen_device, device_of
from meq.encoders import Encoder
from meq.encoders.catalogue import EncoderError
from meq.models.base import FusionModel
from meq.models.iterated import IteratedModel
from meq.options import checked_options, nearest, whole_number
from meq.runs.load import TrainedRun
from meq.runs.own_data import ReadOptions, UnknownDataError, as_features, encoders_of_run, raw_data
from meq.showing import Tabular
from meq.studies.cost import EARLY, STEPS, Cost, Feed, Sweep, measure_cost, other_ways, sweep_steps
from meq.studies.cost_study import cost_table, sweep_table
from meq.studies.sized_encoders import drawn, random_contents, random_encoder, sizes_named
from meq.studies.study import StudyError
from meq.tables import Table, as_text
from meq.training.predictions import without_targets

PASSES = 15
CHOICES = 4
"""Of a multiple choice whose data is not there."""


@dataclass(frozen=True, kw_only=True)
class RunCost(Tabular):
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

    def rows(self) -> list[dict[str, Any]]:
        """One per number of steps."""
        table = run_cost_table(self)
        return [{column.key: cell for column, cell in zip(table.columns, row, strict=True)} for row in table.rows]

    def remarks(self) -> tuple[str, ...]:
        return run_cost_table(self).notes

    def __str__(self) -> str:
        return as_text(run_cost_table(self)).rstrip("\n")


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
    rounds: int = 1,
    encoders: Sequence[str] = (),
    device: str | None = None,
    store: Path | None = None,
) -> RunCost:
    """Measure on the first examples of the run's own data, or on random features of so many `tokens` by modality.

    The run's encoders are part of the pass where they can be had and there is something to encode; or those that are
    named in `encoders` ("clip", "bert"), in their real sizes and with random weights. All is measured `passes` times in
    each of the `rounds`. A run with a calibrated rule is also read early, by that rule.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    whole_number("rounds", rounds)
    place = chosen_device(device, also=("meta",))
    if encoders:
        model, inputs = sized_inputs(run, encoders, tokens or {}, batch_size, place)
    else:
        inputs = random_inputs(run, tokens, batch_size, place) if tokens else own_inputs(run, batch_size, place, store)
        model = run.model.to(place)
    sweep = None
    if isinstance(model, IteratedModel):
        depths = sorted({*steps, model.steps})
        depths = depths if len(depths) > 1 else [1, *depths]
        ways = _ways(run, model, inputs)
        sweep = sweep_steps(model, inputs.feed, steps=depths, passes=passes, rounds=rounds, ways=ways)
        cost = next(point for point in sweep.points if point.steps == model.steps)
        if inputs.random:  # when a trained model settles is a matter of what it sees
            sweep = replace(sweep, to_tolerance=None)
    else:
        cost = measure_cost(model, inputs.feed, passes=passes, rounds=rounds)
    return RunCost(
        model=type(model).__name__, inputs=inputs.words, encoders=inputs.encoder_words, cost=cost, sweep=sweep
    )


def _ways(run: TrainedRun, model: IteratedModel, inputs: Inputs) -> dict[str, tuple[FusionModel, str]]:
    """The other ways of computing the run's model; it is read early by its own rule, if it has one, or not at all."""
    name = f"K={model.steps}"
    ways = other_ways(name, model, inputs.feed, but=(EARLY,))
    if run.anytime is not None and not inputs.random and device_of(model).type != "meta":
        words = f"samples stop by the run's calibrated rule, {run.anytime}; steps are those of the examples above"
        ways = {f"{name}, {EARLY}": (run.model_read(), words), **ways}
    return ways


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


def sized_inputs(
    run: TrainedRun, names: Sequence[str], tokens: Mapping[str, int], batch_size: int, device: str
) -> tuple[FusionModel, Inputs]:
    """A model like the run's, its encoders as large as those that are named; all weights and contents are random.

    The run's own model reads features of other widths, so that the first layer of its like is another one. Modalities
    that none of the encoders reads are random features of so many `tokens`, or of one.
    """
    sizes, task = sizes_named(names), run.task
    older = {} if task.encoders.keys() <= task.kinds.keys() else encoders_of_run(run)  # they kept no kinds
    known = {**{name: encoder.kind for name, encoder in older.items()}, **task.kinds}
    kinds = {name: known.get(name, "features") for name in task.widths}
    for kind in sizes:
        if kind not in kinds.values():
            has = ", ".join(f"{name!r} ({each})" for name, each in kinds.items())
            raise StudyError(f"`encoders` has one for {kind}, and this run reads none: it was trained on {has}")
    chosen = {name: sizes[kind] for name, kind in kinds.items() if kind in sizes}
    if twice := [name for name in tokens if name in chosen]:
        raise StudyError(f"`tokens` cannot be given for {twice[0]!r}: its encoder decides how many there are")
    widths = {name: chosen[name].width if name in chosen else width for name, width in task.widths.items()}
    options = run.model.to_config()["options"]
    kind_of_model = type(run.model)
    with drawn(0, device):
        model = kind_of_model(**{**kind_of_model.from_options(options), "widths": widths}).eval().to(device)
        encoders = {name: random_encoder(size).to(device) for name, size in chosen.items()}
        raw = {name: random_contents(size, batch_size) for name, size in chosen.items()}
        rest = {name: torch.randn(batch_size, tokens.get(name, 1), widths[name]) for name in widths if name not in raw}
    feed = Feed(features=_on(rest, device), encoders=encoders, raw=_on(raw, device))
    words = "; ".join([f"{name} as large as {size.like}" for name, size in chosen.items()])
    inputs = Inputs(
        words="random contents, and a model like the run's with random weights",
        encoder_words=f"{words}, with random weights",
        feed=feed,
        random=True,
    )
    return model, inputs


def own_inputs(run: TrainedRun, batch_size: int, device: str, store: Path | None = None) -> Inputs:
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
        encoders = encoders_of_run(run, device=device, store=store)
    except EncoderError as error:
        raise StudyError(f"{error}. {_instead(run)}") from error
    small = as_features(run, replace(data, splits={split: examples}), encoders, reading=ReadOptions(store=store))
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
        encoders={
            name: PaddedEncoder(each.loaded, batch.features[name].shape[1], device) for name, each in again.items()
        },
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
