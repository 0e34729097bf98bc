"""`meq encode`: it parses, calls, and shows how far it has come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from meq.data.contract import DataSet
from meq.data.findings import DataError, Findings, OnBad
from meq.data.registry import DATA_SETS
from meq.data.request import DataRequest, parse_options
from meq.encoders.builtin import default_encoders
from meq.encoders.catalogue import ENCODERS, make_encoder
from meq.encoders.contract import Encoder
from meq.encoders.encode import Encoded, encode_and_count
from meq.encoders.store import FeatureStore

SHOWN = 5
"""How many problems are shown."""


def _named(kind: str) -> str:
    return ", ".join(name for name, entry in ENCODERS.items() if kind in entry.make)


def encode(
    data: Annotated[
        str, typer.Argument(help=f"A data set ({', '.join(DATA_SETS)}), or a table: .csv, .jsonl, .parquet.")
    ],
    store: Annotated[Path, typer.Option(help="The feature store's folder; what is there already is not done again.")],
    root: Annotated[
        Path | None, typer.Argument(help="The data set's folder; for a table, that of its pictures.")
    ] = None,
    image: Annotated[list[str] | None, typer.Option("--image", help="Column of picture paths; repeatable.")] = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="Column of texts; repeatable.")] = None,
    vector: Annotated[list[str] | None, typer.Option("--vector", help="Column of numbers; repeatable.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of labels.")] = None,
    split: Annotated[str | None, typer.Option(help="Column that says train, dev or test.")] = None,
    group: Annotated[str | None, typer.Option(help="Column that must not be torn apart by splitting.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Option of the data set, NAME=VALUE.")] = None,
    image_encoder: Annotated[str | None, typer.Option(help=f"For pictures: {_named('image')}.")] = None,
    text_encoder: Annotated[str | None, typer.Option(help=f"For texts: {_named('text')}.")] = None,
    region_encoder: Annotated[str | None, typer.Option(help=f"For regions: {_named('regions')}.")] = None,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    batch_size: Annotated[int, typer.Option(help="Contents that an encoder reads at once.")] = 32,
    device: Annotated[str | None, typer.Option(help="Where encoders run; an accelerator if there is one.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out and count what cannot be read.")] = False,
    verify: Annotated[bool, typer.Option(help="Hash the store's files first, and see to damaged ones.")] = False,
    on_damage: Annotated[str, typer.Option(help="What damage leads to: encode (again) or raise.")] = "encode",
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Fill a feature store: every picture and text once. Interrupt it as you like, the same command goes on.

    Without a name, the built-in encoders are used: patches and words. A name with a slash is a model on the Hub.

    Many processes share the work: torchrun --nproc-per-node 2 -m meq encode ...
    """
    with _errors_in_words(debug):
        place = FeatureStore(folder=store, dtype=dtype, verify=verify, on_damage=on_damage)  # type: ignore[arg-type]
        asked = DataRequest(
            data=data,
            root=root,
            images=tuple(image or ()),
            texts=tuple(text or ()),
            vectors=tuple(vector or ()),
            label=label,
            split=split,
            group=group,
            options=parse_options(set_ or ()),
        )
        chosen = {"image": image_encoder, "text": text_encoder, "regions": region_encoder}
        fill_store(asked, place, chosen, on_bad="skip" if skip_bad else "raise", batch_size=batch_size, device=device)


def fill_store(
    asked: DataRequest,
    store: FeatureStore,
    chosen: Mapping[str, str | None],
    *,
    on_bad: OnBad,
    batch_size: int,
    device: str | None,
) -> None:
    """Read, encode and say what was done; of several processes, the first one speaks."""
    findings = Findings(on_bad)
    data = asked.open(findings)
    encoders = encoders_by_kind(data, chosen, batch_size=batch_size, device=device or _device())
    first = os.environ.get("RANK", "0") == "0"
    with Bars(Console(stderr=True), shown=first) as bars:
        done = encode_and_count(data, encoders, store=store, on_bad=on_bad, progress=bars)
    if first:
        _show(done, findings, store.folder)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def encoders_by_kind(
    data: DataSet, chosen: Mapping[str, str | None], *, batch_size: int, device: str
) -> dict[str, Encoder]:
    """The chosen encoder for every modality of its kind, the built-in one where none was chosen."""
    raw = {name: modality.kind for name, modality in data.modalities.items() if modality.width is None}
    for kind, encoder in chosen.items():
        if encoder is not None and kind not in raw.values():
            raise DataError(f"{data.name} holds nothing of kind {kind!r} that {encoder!r} could encode")
    named = {kind: encoder for kind, encoder in chosen.items() if encoder is not None}
    made = {kind: make_encoder(encoder, kind, batch_size=batch_size, device=device) for kind, encoder in named.items()}
    rest = {name: data.modalities[name] for name, kind in raw.items() if kind not in made}
    built_in = default_encoders(replace(data, modalities=rest))
    return {name: made[kind] if kind in made else built_in[name] for name, kind in raw.items()}


def _device() -> str:
    """The accelerator of this process, if there is one."""
    if not torch.accelerator.is_available():
        return "cpu"
    return f"{torch.accelerator.current_accelerator()}:{os.environ.get('LOCAL_RANK', '0')}"


class Bars:
    """A bar with the time left for each thing that is done; a line at its end where there is no terminal."""

    def __init__(self, console: Console, *, shown: bool) -> None:
        self.console, self.shown = console, shown
        self.tasks: dict[str, TaskID] = {}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not (shown and console.is_terminal),
        )

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total)
        self.bars.update(self.tasks[what], completed=done, total=total)
        if done == total and self.shown and not self.console.is_terminal:
            self.console.print(f"{what}: {done:,} of {total:,}", highlight=False, markup=False, soft_wrap=True)


def _show(done: Encoded, findings: Findings, store: Path) -> None:
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
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _errors_in_words(debug: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("\ninterrupted; what was encoded is kept, and the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    except (ValueError, TypeError, OSError, ImportError) as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
