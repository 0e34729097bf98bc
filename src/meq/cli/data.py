"""meq data: list, check and show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from meq.cli.asking import (
    AsJson,
    Audios,
    Data,
    Debug,
    Group,
    Images,
    Label,
    Root,
    Settings,
    SkipBad,
    Split,
    Texts,
    Vectors,
    request,
)
from meq.cli.errors import errors_in_words
from meq.data.check import inspect_data
from meq.data.findings import Findings
from meq.data.registry import DATA_SETS, Entry
from meq.training.plain import dumps
from meq.viz.listing import check_sheet, choose_examples, describe_examples, save_sheet

data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, what is wrong, what it looks like.")


@data_app.command("list")
def list_data(as_json: AsJson = False) -> None:
    """The data sets that are known by name. Any table of yours is one too: meq data check data.csv --label y ..."""
    if as_json:
        print(dumps({name: _described(entry) for name, entry in DATA_SETS.items()}), end="")
        return
    table = Table("name", "what it is", box=None, padding=(0, 2, 0, 0))
    for name, entry in DATA_SETS.items():
        where = "needs no folder" if entry.embedded else "needs its folder"
        table.add_row(name, f"{entry.summary}; {entry.metric}; {where}")
        if entry.options:
            table.add_row("", f"[dim]--set {', '.join(entry.options)}[/dim]")
    Console().print(table)


def _described(entry: Entry) -> dict[str, Any]:
    known = {"summary": entry.summary, "metric": entry.metric, "embedded": entry.embedded}
    return {**known, "options": entry.options}


@data_app.command()
def check(
    data: Data,
    root: Root = None,
    image: Images = None,
    text: Texts = None,
    audio: Audios = None,
    vector: Vectors = None,
    label: Label = None,
    split: Split = None,
    group: Group = None,
    set_: Settings = None,
    decode: Annotated[bool, typer.Option(help="Decode every picture and sound, or only read its head.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Walk a data set: what is there, what is missing, what is wrong, and where. Fails if something is wrong."""
    with errors_in_words(debug):
        asked = request(data, root, (image, text, audio, vector), (label, split, group), set_)
        inspection = inspect_data(asked, decode=decode)
        print(dumps(inspection) if as_json else inspection, end="" if as_json else "\n")
    raise typer.Exit(0 if inspection.ok else 1)


@data_app.command()
def show(
    data: Data,
    root: Root = None,
    image: Images = None,
    text: Texts = None,
    audio: Audios = None,
    vector: Vectors = None,
    label: Label = None,
    split: Split = None,
    group: Group = None,
    set_: Settings = None,
    part: Annotated[str, typer.Option(help="The split to show examples of.")] = "train",
    count: Annotated[int, typer.Option(help="How many examples.", min=1, max=200)] = 12,
    seed: Annotated[int, typer.Option(help="Which ones: 0 takes the first, others are drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw them into this picture, .png or .jpg.")] = None,
    skip_bad: SkipBad = False,
    debug: Debug = False,
) -> None:
    """Print a few examples, and draw them with --out."""
    with errors_in_words(debug):
        if out is not None:
            check_sheet(out)
        asked = request(data, root, (image, text, audio, vector), (label, split, group), set_)
        opened = asked.open(Findings("skip" if skip_bad else "raise"))
        examples = choose_examples(opened, part, count, seed=seed)
        print(describe_examples(opened, examples))
        if out is not None:
            save_sheet(opened, examples, out)
            print(f"drawn: {out}")
