"""`meq evaluate`: it parses, calls, and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meq.cli.asking import (
    AsJson,
    AudioEncoder,
    Debug,
    ImageEncoder,
    OtherData,
    Part,
    RegionEncoder,
    Root,
    Run,
    SkipBad,
    TextEncoder,
)
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_data, check_folder
from meq.cli.words import say
from meq.experiments.runs.data import Reading
from meq.experiments.runs.evaluate import evaluate_run
from meq.experiments.runs.load import load_run
from meq.training.plain import dumps


def evaluate(
    run: Run,
    data: OtherData = None,
    root: Root = None,
    split: Part = None,
    skip_bad: SkipBad = False,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    region_encoder: RegionEncoder = None,
    audio_encoder: AudioEncoder = None,
    store: Annotated[Path | None, typer.Option(help="Feature store; that of training unless given.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a trained run, on its own data or on a table like it.

    Says which split the weights were chosen on, whether the data is that of training, and which class is taken for
    which. The encoders are those of training; name one only if its folder has moved.
    """
    with errors_in_words(debug), Bars(Console(stderr=True), shown=True) as bars:
        check_data(data, root)
        if store is not None:
            check_folder(store, "--store")
        chosen = {"image": image_encoder, "text": text_encoder, "regions": region_encoder, "audio": audio_encoder}
        reading = Reading(on_bad="skip" if skip_bad else "raise", encoders=chosen, store=store, progress=bars)
        trained = load_run(run)
        found = evaluate_run(trained, data, root=root, split=split, reading=reading)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    print(dumps(found) if as_json else found, end="" if as_json else "\n")
    if found.left_out:
        say(f"left out as bad: {found.left_out:,}")
