"""`meq tune`: random search over a stated space, chosen on dev."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from meq.cli.checks import check_data, check_folder
from meq.cli.errors import resumable
from meq.cli.options import AsJson, EncoderNames, Epochs, SkipBad, command
from meq.cli.output import print_result, same_command, say
from meq.data.request import DataRequest
from meq.errors import require
from meq.options import by_part
from meq.runs.search_space import HOW, SPACE, TRIALS, parse_space
from meq.training.arms import ARMS, SHAPE
from meq.training.config import SMALL, TrainConfig

SEARCHED = "; ".join(f"{name}={each}" for name, each in SPACE.items())


@command
def tune(
    request: DataRequest,
    encoders: EncoderNames,
    out: Annotated[
        Path | None, typer.Option(help="The folder of all trials; tunings/NAME unless given. The search goes on there.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help=f"How many in all; {TRIALS} unless --hours is given.")] = None,
    hours: Annotated[float | None, typer.Option(help="Begin no further trial after so many hours of training.")] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RANGE", help=f"Another range; repeatable: {HOW}. Unless given: {SEARCHED}."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="[model.]NAME=VALUE", help="Further option of the data set, or of the model; repeatable."
        ),
    ] = None,
    skip_bad: SkipBad = False,
    store: Annotated[
        Path | None, typer.Option("--store", "--features", help="Feature store; in the search's folder unless given.")
    ] = None,
    standardise: Annotated[bool, typer.Option(help="Standardise numbers that come with the data, by train.")] = True,
    arm: Annotated[str, typer.Option(help=f"The model: {', '.join(ARMS)}.")] = "meq",
    heads: Annotated[int, typer.Option(help="Attention heads.")] = SHAPE["heads"],
    epochs: Epochs = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per update; 64, or fewer where there are not so many.")
    ] = None,
    config: TrainConfig = SMALL,
    on: Annotated[str, typer.Option(help="serial, ray: one trial after the other, or several by Ray Tune.")] = "serial",
    workers: Annotated[int | None, typer.Option(help="Trials at the same time, with --on ray.", min=1)] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Search for good settings by random trials; the best on dev is trained at the end, and only it is tested.

    The first trial is what `meq train` does by itself. The same command goes on with what was interrupted; a larger
    --trials adds to what is there. Without --on ray nothing but meq is needed.
    """
    with resumable(f"go on with: {same_command(f'meq tune {request.data}, and the same options')}"):
        check_data(request.data, request.root)
        for place, option in ((out or Path(), "--out"), (store, "--store")):
            if place is not None:
                check_folder(place, option)
        if on == "ray":
            require("ray", "--on ray")
        ranges = parse_space(space or ())
        from meq.runs.tune import make_search, run_search, tuning_folder

        given = by_part(request.options, ["model"])
        named = {"epochs": epochs, "batch_size": batch_size}
        fixed = tuple(name for name, value in named.items() if value is not None)
        search = make_search(
            replace(request, options=given.get("data", {})),
            arm=arm,
            space=ranges,
            config=config,
            shape={"heads": heads, **given.get("model", {})},
            encoders=encoders.by_kind(),
            skip_bad=skip_bad,
            fixed=fixed,
            standardise=standardise,
        )
        found = run_search(
            search,
            out or tuning_folder(request.data),
            trials=trials,
            hours=hours,
            store=store,
            on=on,
            workers=workers,
            say=say,
        )
    print_result(found, as_json=as_json)
    say(f"trials: {found.folder}")
