"""`meq compare`: is the equilibrium worth it on this table, or is something cheaper enough?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from meq.cli.checks import check_data, check_folder
from meq.cli.errors import resumable
from meq.cli.options import AsJson, EncoderNames, Epochs, command
from meq.cli.output import print_result, same_command, say
from meq.data.request import DataRequest
from meq.errors import require
from meq.options import by_part
from meq.runs.compare_config import COMPARED, COMPARED_SEEDS, CompareConfig
from meq.training.arms import ARMS, SHAPE
from meq.training.config import SMALL, TrainConfig


@command
def compare(
    request: DataRequest,
    encoders: EncoderNames,
    out: Annotated[
        Path | None, typer.Option(help="Where all of it is kept; comparisons/NAME unless given. It goes on there.")
    ] = None,
    arms: Annotated[str, typer.Option(help=f"Models to train, with commas: {', '.join(ARMS)}.")] = ",".join(COMPARED),
    seeds: Annotated[int, typer.Option(help="Seeds of every model, from --seed on.", min=1)] = COMPARED_SEEDS,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="[model.]NAME=VALUE", help="Further option of the data set, or of the models; repeatable."
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", "--features", help="Feature store; in the folder of --out unless given.")
    ] = None,
    standardise: Annotated[
        bool | None, typer.Option(help="Standardise numbers that come with the data, by train; yes for tables.")
    ] = None,
    dim: Annotated[int, typer.Option(help="Width of the states.")] = SHAPE["dim"],
    heads: Annotated[int, typer.Option(help="Attention heads.")] = SHAPE["heads"],
    steps: Annotated[int, typer.Option(help="Read depth K of models that iterate.")] = SHAPE["steps"],
    dropout: Annotated[float, typer.Option(help="Dropout inside the iterated map.")] = SHAPE["dropout"],
    epochs: Epochs = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per update; 64, or fewer where there are not so many.")
    ] = None,
    config: TrainConfig = SMALL,
    on: Annotated[str, typer.Option(help="serial, local, ray: in this process, in several, on Ray.")] = "serial",
    workers: Annotated[int | None, typer.Option(help="Trainings at the same time, if not serial.", min=1)] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare the equilibrium with fusion baselines of its size and with cheap baselines, and say which is enough.

    Same splits, same features, same budget, several seeds. The cheap ones: the most frequent class (the mean of
    scores), a logistic (ridge) regression on pooled features of each modality and of all, and gradient boosting for
    numbers, where scikit-learn is installed. The same command goes on with what was interrupted.
    """
    with resumable(f"go on with: {same_command(f'meq compare {request.data}, and the same options')}"):
        check_data(request.data, request.root)
        for place, option in ((out or Path(), "--out"), (store, "--store")):
            if place is not None:
                check_folder(place, option)
        if on == "ray":
            require("ray", "--on ray")
        from meq.runs.compare import run_comparison
        from meq.studies.runner import choose_executor

        given = by_part(request.options, ["model"])
        named = {"epochs": epochs, "batch_size": batch_size}
        fixed = tuple(name for name, value in named.items() if value is not None)
        shape = {"dim": dim, "heads": heads, "steps": steps, "dropout": dropout, **given.get("model", {})}
        names = tuple(name.strip() for name in arms.split(",") if name.strip())
        asked = CompareConfig(arms=names, seeds=seeds, train=config, shape=shape, fixed=fixed)
        found = run_comparison(
            replace(request, options=given.get("data", {})),
            out,
            asked,
            encoders=encoders.by_kind(),
            store=store,
            on=choose_executor(on, workers=workers),
            standardise=standardise,
            say=say,
        )
    print_result(found, as_json=as_json)
    say(f"comparison: {found.folder}")
