"""`meq encode`: it parses, calls, and shows how far it has come."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
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
from meq.cli.bars import Bars
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_device, check_folder
from meq.data.findings import Findings, OnBad
from meq.data.request import DataRequest
from meq.data.table_files import is_table
from meq.encoders.choice import check_request, encoders_by_kind, encoding_device, preferred_names
from meq.encoders.encode import Encoded, encode_and_count
from meq.encoders.store import FeatureStore
from meq.encoders.writing import refuse_filling

SHOWN = 5
"""How many problems are shown."""


def encode(
    data: Data,
    store: Annotated[Path, typer.Option(help="The feature store's folder; what is there already is not done again.")],
    root: Root = None,
    image: Images = None,
    text: Texts = None,
    audio: Audios = None,
    vector: Vectors = None,
    label: Label = None,
    split: Split = None,
    group: Group = None,
    set_: Settings = None,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    region_encoder: RegionEncoder = None,
    audio_encoder: AudioEncoder = None,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    batch_size: Annotated[int, typer.Option(help="Contents that an encoder reads at once.", min=1)] = 32,
    device: Annotated[str | None, typer.Option(help="Where encoders run; an accelerator if there is one.")] = None,
    skip_bad: SkipBad = False,
    verify: Annotated[bool, typer.Option(help="Hash the store's files first, and see to damaged ones.")] = False,
    on_damage: Annotated[str, typer.Option(help="What damage leads to: encode (again) or raise.")] = "encode",
    debug: Debug = False,
) -> None:
    """Fill a feature store: every picture, text and sound once. Interrupt it as you like, the same command goes on.

    Without a name, tables are read as `meq train` reads them: by encoders whose weights come with pip, if they are
    installed; other sets by the built-in encoders, patches and words. A name with a slash is a model on the Hub.

    Many processes share the work: torchrun --nproc-per-node 2 -m meq encode ...
    """
    with errors_in_words(debug, hint="what was encoded is kept, and the same command goes on from there"):
        place = FeatureStore(folder=store, dtype=dtype, verify=verify, on_damage=on_damage)  # type: ignore[arg-type]
        asked = request(data, root, (image, text, audio, vector), (label, split, group), set_)
        chosen = {"image": image_encoder, "text": text_encoder, "regions": region_encoder, "audio": audio_encoder}
        check_folder(store, "--store")
        check_device(device)
        check_request(asked, chosen)
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
    if os.environ.get("RANK", "0") == "0":  # of one launch, the first process holds the store
        refuse_filling(store)
    data = asked.open(findings)
    named = preferred_names(data, chosen) if is_table(asked.data) else chosen
    encoders = encoders_by_kind(data, named, batch_size=batch_size, device=device or encoding_device())
    first = os.environ.get("RANK", "0") == "0"
    with Bars(Console(stderr=True), shown=first) as bars:
        done = encode_and_count(data, encoders, store=store, on_bad=on_bad, progress=bars)
    if first:
        _show(done, findings, store.folder)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


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
