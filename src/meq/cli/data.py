"""`meq data` and `meq encode`: data sets listed, checked, shown, and made into features."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from meq.cli.checks import check_folder
from meq.cli.errors import resumable
from meq.cli.options import AsJson, EncoderNames, SkipBad, command
from meq.cli.output import Bars, print_result, say
from meq.data.findings import Findings
from meq.data.request import DATA_SETS, DataRequest
from meq.devices import chosen_device
from meq.records import dumps

if TYPE_CHECKING:
    from meq.encoders.encode import Encoded

data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, what is wrong, what it looks like.")
SHOWN = 5
"""How many problems are shown."""


@data_app.command("list")
@command
def list_data(as_json: AsJson = False) -> None:
    """The data sets that are known by name. Any table of yours is one too: meq data check data.csv --label y ..."""
    if as_json:
        fields = ("summary", "metric", "embedded", "options")
        print(dumps({name: {f: getattr(entry, f) for f in fields} for name, entry in DATA_SETS.items()}), end="")
        return
    table = Table("name", "what it is", box=None, padding=(0, 2, 0, 0))
    for name, entry in DATA_SETS.items():
        where = "needs no folder" if entry.embedded else "needs its folder"
        table.add_row(name, f"{entry.summary}; {entry.metric}; {where}")
        if entry.options:
            table.add_row("", f"[dim]--set {', '.join(entry.options)}[/dim]")
    Console().print(table)


@data_app.command()
@command
def check(
    request: DataRequest,
    decode: Annotated[bool, typer.Option(help="Decode every picture and sound, or only read its head.")] = True,
    as_json: AsJson = False,
) -> None:
    """Walk a data set: what is there, what is missing, what is wrong, and where. Fails if something is wrong."""
    from meq.data.check import inspect_data

    inspection = inspect_data(request, decode=decode)
    print_result(inspection, as_json=as_json)
    raise typer.Exit(0 if inspection.ok else 1)


@data_app.command()
@command
def show(
    request: DataRequest,
    part: Annotated[str, typer.Option(help="The split to show examples of.")] = "train",
    count: Annotated[int, typer.Option(help="How many examples.", min=1, max=200)] = 12,
    seed: Annotated[int, typer.Option(help="Which ones: 0 takes the first, others are drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw them into this picture, .png or .jpg.")] = None,
    skip_bad: SkipBad = False,
) -> None:
    """Print a few examples, and draw them with --out."""
    from meq.viz.sheet import check_sheet, choose_examples, describe_examples, save_sheet

    if out is not None:
        check_sheet(out)
    opened = request.open(Findings("skip" if skip_bad else "raise"))
    examples = choose_examples(opened, part, count, seed=seed)
    print(describe_examples(opened, examples))
    if out is not None:
        save_sheet(opened, examples, out)
        print(f"drawn: {out}")


@command
def encode(
    request: DataRequest,
    encoders: EncoderNames,
    store: Annotated[
        Path,
        typer.Option(
            "--store", "--features", help="The feature store's folder; what is there already is not done again."
        ),
    ],
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    batch_size: Annotated[int, typer.Option(help="Contents that an encoder reads at once.", min=1)] = 32,
    device: Annotated[str | None, typer.Option(help="Where encoders run; an accelerator if there is one.")] = None,
    skip_bad: SkipBad = False,
    verify: Annotated[bool, typer.Option(help="Hash the store's files first, and see to damaged ones.")] = False,
    on_damage: Annotated[str, typer.Option(help="What damage leads to: encode (again) or raise.")] = "encode",
) -> None:
    """Fill a feature store: every picture, text and sound once. Interrupt it as you like, the same command goes on.

    Without a name, contents are read as `meq train` reads them: by encoders whose weights come with pip, if they are
    installed; sets that are drawn by a program by the built-in encoders, patches and words. A name with a slash is a
    model on the Hub.

    Many processes share the work: torchrun --nproc-per-node 2 -m meq encode ...
    """
    with resumable("what was encoded is kept, and the same command goes on from there"):
        import torch

        from meq.encoders.catalogue import check_request, encoders_by_kind, preferred_names
        from meq.encoders.encode import encode_and_count
        from meq.encoders.store import FeatureStore
        from meq.encoders.writing import refuse_filling

        place = FeatureStore(folder=store, dtype=dtype, verify=verify, on_damage=on_damage)  # type: ignore[arg-type]
        chosen = encoders.by_kind()
        check_folder(store, "--store")
        where = chosen_device(device)
        check_request(request, chosen)
        first = os.environ.get("RANK", "0") == "0"  # of one launch, the first process holds the store, and speaks
        if first:
            refuse_filling(place)
        findings = Findings("skip" if skip_bad else "raise")
        data = request.open(findings)
        named = preferred_names(request, data, chosen)
        made = encoders_by_kind(data, named, batch_size=batch_size, device=where)
        with Bars(shown=first) as bars:
            done = encode_and_count(data, made, store=place, on_bad=findings.on_bad, progress=bars)
        if first:
            _show_encoded(done, findings, store)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _show_encoded(done: Encoded, findings: Findings, store: Path) -> None:
    shown = Table(title=f"{done.data.name}: {sum(map(len, done.data.splits.values())):,} examples")
    for column in ("modality", "encoder", "distinct", "encoded now", "truncated"):
        shown.add_column(column, justify="left" if column in ("modality", "encoder") else "right")
    for name, count in done.counts.items():
        shown.add_row(name, count.encoder, f"{count.distinct:,}", f"{count.new:,}", f"{count.truncated:,}")
    console = Console()
    console.print(shown)
    lines = [f"store: {store}", *(f"encoded again: {each}" for each in done.mended)]
    lines += [f"left out of {split}: {count:,}" for split, count in done.left_out.items()]
    problems = [*findings, *done.findings]
    lines += [f"  {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"  and {len(problems) - SHOWN:,} more")
    say(*lines, console=console)
