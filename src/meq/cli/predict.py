"""`meq predict`: it parses, calls, and prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meq.cli.asking import (
    AsJson,
    AudioEncoder,
    Debug,
    ImageEncoder,
    RegionEncoder,
    Root,
    Run,
    SkipBad,
    TextEncoder,
)
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_file, check_table, check_there
from meq.cli.words import say, summary_lines
from meq.experiments.runs.answers import PROBABILITIES, check_place
from meq.experiments.runs.load import load_run
from meq.experiments.runs.predict import predict_table
from meq.training.recipes import say_left_out


def predict(
    run: Run,
    table: Annotated[Path, typer.Argument(help="A table with the columns of training: .csv, .tsv, .jsonl, .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of answers: .csv, .jsonl or .parquet.")],
    root: Root = None,
    id_column: Annotated[str | None, typer.Option("--id", help="Column of ids; else file and line.")] = None,
    probabilities: Annotated[
        int, typer.Option(help="A column per class for at most so many classes; 0 for none.", min=0)
    ] = PROBABILITIES,
    skip_bad: SkipBad = False,
    force: Annotated[bool, typer.Option("--force", help="Write over the file of answers.")] = False,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    region_encoder: RegionEncoder = None,
    audio_encoder: AudioEncoder = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Answer the rows of a new table, with confidence, steps and residuals.

    No label column is needed. An empty cell is a missing modality. Rows stay in the order of the table; columns:
    id, line, answer, confidence, p(CLASS), steps, residual(MODALITY), stopped, note.
    """
    with errors_in_words(debug):
        check_place(out, force=force)
        check_file(out, "--out")
        check_table(table)
        if root is not None:
            check_there(root, "folder")
        chosen = {"image": image_encoder, "text": text_encoder, "regions": region_encoder, "audio": audio_encoder}
        trained = load_run(run)
        if trained.not_sealed is not None:
            say(trained.not_sealed)
        with Bars(Console(stderr=True), shown=True) as bars:
            answers = predict_table(
                trained,
                table,
                root=root,
                id_column=id_column,
                on_bad="skip" if skip_bad else "raise",
                encoders=chosen,
                progress=bars,
            )
        answers.save(out, probabilities=probabilities, force=force)
        say_left_out(answers.left_out, say)
        summary = {**answers.summary(), "file": str(out)}
        print(json.dumps(summary, indent=1) if as_json else "\n".join(summary_lines(summary)))
