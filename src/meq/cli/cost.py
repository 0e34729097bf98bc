"""`meq cost`. It parses and calls; there is no logic here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from meq.cli.asking import Debug
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_device
from meq.experiments.cost.run import PASSES, cost_of_run, run_cost_table
from meq.experiments.cost.sweep import STEPS
from meq.experiments.render import as_text
from meq.experiments.runs.load import load_run
from meq.training.plain import dumps


def cost(
    run: Annotated[str, typer.Argument(help="The run's folder, or a repository of the Hub.")],
    batch_size: Annotated[int, typer.Option(help="Samples per pass.", min=1)] = 32,
    steps: Annotated[
        str, typer.Option(help="Numbers of steps to measure at; the run's own is always added.")
    ] = ",".join(map(str, STEPS)),
    tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="Tokens of a modality, NAME=COUNT, for random features instead of the run's data; repeatable."
        ),
    ] = None,
    passes: Annotated[int, typer.Option(help="Timed passes.", min=1)] = PASSES,
    device: Annotated[str | None, typer.Option(help="Where to measure; an accelerator if there is one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it for machines.")] = False,
    debug: Debug = False,
) -> None:
    """What a trained model costs: time, FLOPs and memory per sample, and what one more step adds.

    Measured at the run's own token counts, on its own data where that can be read again, its encoders included.
    """
    with errors_in_words(debug):
        depths, counts = _numbers(steps.split(","), "--steps 1,2,5"), _counts(tokens or ())
        check_device(device)
        found = cost_of_run(
            load_run(run),
            batch_size=batch_size,
            steps=depths,
            tokens=counts,
            passes=passes,
            device=device,
        )
        print(dumps(found) if json else as_text(run_cost_table(found)), end="")


def _counts(settings: Sequence[str]) -> dict[str, int]:
    parts = [setting.partition("=") for setting in settings]
    if any(not name or not equals for name, equals, _ in parts):
        raise ValueError(f"--tokens is written NAME=COUNT, as in --tokens image=50; got {' '.join(settings)!r}")
    numbers = _numbers([count for _, _, count in parts], "--tokens image=50")
    return {name: count for (name, _, _), count in zip(parts, numbers, strict=True)}


def _numbers(words: Sequence[str], example: str) -> list[int]:
    try:
        numbers = [int(word) for word in words]
    except ValueError as error:
        raise ValueError(f"whole numbers are needed, as in {example}; got {','.join(words)!r}") from error
    if any(number < 1 for number in numbers):
        raise ValueError(f"numbers of at least 1 are needed, as in {example}; got {','.join(words)!r}")
    return numbers
