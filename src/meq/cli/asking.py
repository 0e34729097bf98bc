"""Options that several commands share: which data, which columns of a table, which encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meq.data.registry import DATA_SETS
from meq.data.request import DataRequest, parse_options
from meq.encoders.catalogue import ENCODERS


def _named(kind: str) -> str:
    names = [name for name, entry in ENCODERS.items() if kind in entry.make]
    return f"{', '.join(names)}, a model on the Hub (its name has a slash) or a folder"


Data = Annotated[
    str, typer.Argument(help=f"A data set ({', '.join(DATA_SETS)}), or a table: .csv, .tsv, .jsonl, .parquet.")
]
Root = Annotated[
    Path | None, typer.Argument(help="The data set's folder; for a table, the folder its paths start from.")
]
Images = Annotated[list[str] | None, typer.Option("--image", help="Column of picture paths; repeatable.")]
Texts = Annotated[list[str] | None, typer.Option("--text", help="Column of texts; repeatable.")]
Audios = Annotated[list[str] | None, typer.Option("--audio", help="Column of paths of WAV files; repeatable.")]
Vectors = Annotated[list[str] | None, typer.Option("--vector", help="Column of numbers, or audio_*; repeatable.")]
Label = Annotated[str | None, typer.Option(help="Column of labels.")]
Split = Annotated[str | None, typer.Option(help="Column that says train, dev or test; else seeded fractions.")]
Group = Annotated[str | None, typer.Option(help="Column that must not be torn apart by splitting.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Further option of the data set, NAME=VALUE; repeatable.")
]
SkipBad = Annotated[bool, typer.Option(help="Leave bad rows out and count them, instead of stopping at the first.")]
ImageEncoder = Annotated[str | None, typer.Option(help=f"For pictures: {_named('image')}.")]
TextEncoder = Annotated[str | None, typer.Option(help=f"For texts: {_named('text')}.")]
RegionEncoder = Annotated[str | None, typer.Option(help=f"For regions of pictures: {_named('regions')}.")]
AudioEncoder = Annotated[str | None, typer.Option(help=f"For sounds: {_named('audio')}.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Run = Annotated[str, typer.Argument(help="A trained run: its folder, or its name on the Hub.")]
OtherData = Annotated[
    str | None, typer.Argument(help="A table with the columns of training, or a data set; else the run's own data.")
]
Part = Annotated[str | None, typer.Option("--split", help="One split only: train, dev, test, or all of a table.")]


def request(
    data: str,
    root: Path | None,
    columns: tuple[list[str] | None, list[str] | None, list[str] | None, list[str] | None],
    places: tuple[str | None, str | None, str | None],
    settings: list[str] | None,
) -> DataRequest:
    """What was asked for: columns are (images, texts, audios, vectors), places are (label, split, group)."""
    images, texts, audios, vectors = (tuple(names or ()) for names in columns)
    label, split, group = places
    return DataRequest(
        data=data,
        root=root,
        images=images,
        texts=texts,
        audios=audios,
        vectors=vectors,
        label=label,
        split=split,
        group=group,
        options=parse_options(settings or ()),
    )
