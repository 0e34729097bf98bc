"""meq train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from meq.cli.asking import (
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
from meq.cli.errors import errors_in_words
from meq.training.config import TrainConfig
from meq.training.recipes import ARMS, prepare, train_arm
from meq.training.record import RunRecord


def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    root: Root = None,
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
    dim: Annotated[int, typer.Option(help="Width of the states.")] = 64,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    steps: Annotated[int, typer.Option(help="Read depth K of models that iterate.")] = 8,
    dropout: Annotated[float, typer.Option(help="Dropout inside the iterated map.")] = 0.0,
    epochs: Annotated[int, typer.Option(help="Passes over the train split.")] = 15,
    batch_size: Annotated[int, typer.Option(help="Samples per process and micro-batch.")] = 64,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per update.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    lambda_j: Annotated[float, typer.Option(help="Weight of the Jacobian range penalty.")] = 0.5,
    lambda_f: Annotated[float, typer.Option(help="Weight of the residual penalty.")] = 0.3,
    precision: Annotated[str, typer.Option(help="no or bf16.")] = "no",
    select: Annotated[str, typer.Option(help="Keep the best epoch's weights, or the last: best or last.")] = "best",
    seed: Annotated[int, typer.Option(help="Fixes everything that is random.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    stop_on_alarm: Annotated[bool, typer.Option(help="Stop when a collapse alarm is raised.")] = False,
    tracker: Annotated[list[str] | None, typer.Option(help="tensorboard, wandb, mlflow, trackio; repeatable.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the run's last good checkpoint.")] = False,
    debug: Debug = False,
) -> None:
    """Train a model; interrupt it as you like and go on with --resume.

    Many processes: torchrun --nproc-per-node 2 -m meq train ...; on accelerators also accelerate launch -m meq train.
    """
    with errors_in_words(debug, hint=f"go on with: meq train {data} --out {out} --resume, and the same options"):
        config = TrainConfig(
            epochs=epochs,
            batch_size=batch_size,
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
        asked = request(data, root, (image, text, audio, vector), (label, split, group), set_)
        encoders = {"image": image_encoder, "text": text_encoder, "regions": region_encoder, "audio": audio_encoder}
        prepared, provenance = prepare(asked, encoders, store=store, skip_bad=skip_bad, standardised=standardise)
        record = train_arm(
            prepared,
            arm,
            out,
            config,
            shape,
            lambda_j=lambda_j,
            lambda_f=lambda_f,
            resume=resume,
            provenance=provenance,
        )
        if record is not None:
            _show(record, out)


def _show(record: RunRecord, out: Path) -> None:
    selected, metric = record.selected, record.selected.metric
    table = Table(title=f"{record.model['model']} on {record.data.name}: {record.status}")
    for column in ("split", metric, "weights"):
        table.add_column(column)
    weights = f"{selected.by} epoch on {selected.split} ({selected.epoch})"
    for split, found in record.metrics.items():
        table.add_row(split, f"{found[metric]:.4f}", weights)
    console = Console()
    console.print(table)
    console.print(f"alarms: {len(record.alarms)}; record: {out / 'record.json'}; model: {out / 'model'}")
