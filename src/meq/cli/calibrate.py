"""`meq calibrate`: what a trained run is told about itself after training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meq.cli.checks import check_folder, check_there
from meq.cli.options import AsJson, Run, SkipBad, command
from meq.cli.output import Bars, print_result, say
from meq.options import nearest

# What the library has as names and defaults, written here so that --help need not import it; a test compares them.
RULES = ("residual", "change", "agreement", "confidence")
RISK, CONFIDENCE = 0.01, 0.95


@command
def calibrate(
    run: Run,
    stop: Annotated[
        bool, typer.Option("--stop", help="When answers are read: a rule that stops each sample as soon as it can.")
    ] = False,
    root: Annotated[Path | None, typer.Option(help="Where the run's data has moved to.")] = None,
    rule: Annotated[
        str | None, typer.Option(help=f"{', '.join(RULES)}; all are tried unless given, and the fastest kept.")
    ] = None,
    risk: Annotated[float, typer.Option(help="The accuracy that stopping early may cost.", min=0.0)] = RISK,
    confidence: Annotated[
        float, typer.Option(help="The share of resamples in which it costs no more.", min=0.5, max=0.999)
    ] = CONFIDENCE,
    most: Annotated[
        int | None, typer.Option(help="The full depth; three times the read depth K, at least 24.", min=2)
    ] = None,
    split: Annotated[str, typer.Option(help="Half of it calibrates, the other half checks.")] = "dev",
    seed: Annotated[int, typer.Option(help="Of halves and resamples.", min=0)] = 0,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a trained run on its own data, to a promise that is checked; kept with its weights.

    With --stop: every sample is read at the step that a rule says, and not at K. predict, evaluate and app use the rule
    from then on, unless --full or --steps says otherwise. Confidence as a rule fails on problems deeper than those of
    training.
    """
    if not stop:
        raise ValueError("nothing to calibrate was named: give --stop for when answers are read")
    if rule is not None and rule not in RULES:
        raise ValueError(f"--rule cannot be {rule!r}: {nearest(rule, RULES)}")
    if root is not None:
        check_there(root, "folder")
    from meq.runs.calibrate import CALIBRATION, StopOptions, calibrate_run
    from meq.runs.load import load_run
    from meq.runs.own_data import ReadOptions

    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    check_folder(trained.folder, "the calibration is kept in")
    options = StopOptions(rule=rule, risk=risk, confidence=confidence, most=most, split=split, seed=seed)
    with Bars() as bars:
        reading = ReadOptions(on_bad="skip" if skip_bad else "raise", progress=bars)
        found = calibrate_run(trained, options, root=root, reading=reading)
    print_result(found, as_json=as_json)
    if not as_json:
        print(f"\nkept in {trained.folder / CALIBRATION}")
