"""`meq calibrate`: what a trained run is told about itself after training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from meq.cli.checks import check_folder, check_there
from meq.cli.options import AsJson, Run, SkipBad, Store, command
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
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Probabilities: as sure as answers are, so often they are right.")
    ] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Sets of answers that hold the true one as often as predict promises.")
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
    split: Annotated[
        str | None,
        typer.Option(
            help="The labelled split to calibrate with: unless given, the rows that training kept apart, and for "
            "--stop dev, half of which calibrates and the other half checks."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of halves and resamples.", min=0)] = 0,
    skip_bad: SkipBad = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate a trained run on its own data, to a promise that is checked; kept with its weights.

    With --temperature and --coverage: on rows that chose nothing, which training keeps apart from dev where a table
    has enough of them, and then does this by itself. predict uses what was found from then on, unless --raw.

    With --stop: every sample is read at the step that a rule says, and not at K. predict, evaluate and app use the rule
    from then on, unless --full or --steps says otherwise. Confidence as a rule fails on problems deeper than those of
    training.
    """
    if not (stop or temperature or coverage):
        raise ValueError(
            "nothing to calibrate was named: give --temperature for probabilities, --coverage for sets of answers, "
            "--stop for when answers are read"
        )
    if rule is not None and rule not in RULES:
        raise ValueError(f"--rule cannot be {rule!r}: {nearest(rule, RULES)}")
    if root is not None:
        check_there(root, "folder")
    from meq.data.splitting import CALIBRATION as APART
    from meq.runs.calibrate import CALIBRATION, StopOptions, calibrate_probabilities, calibrate_run
    from meq.runs.load import load_run
    from meq.runs.own_data import ReadOptions

    trained = load_run(run)
    if trained.not_sealed is not None:
        say(trained.not_sealed)
    check_folder(trained.folder, "the calibration is kept in")
    options = StopOptions(rule=rule, risk=risk, confidence=confidence, most=most, split=split or "dev", seed=seed)
    found: list[Any] = []
    with Bars() as bars:
        reading = ReadOptions(on_bad="skip" if skip_bad else "raise", store=store, progress=bars)
        if stop:
            found.append(calibrate_run(trained, options, root=root, reading=reading))
            trained = load_run(run)  # probabilities are those of answers that the rule reads
        if temperature or coverage:
            asked = {"temperature": temperature, "coverage": coverage, "split": split or APART, "root": root}
            found.append(calibrate_probabilities(trained, reading=reading, **asked))  # type: ignore[arg-type]
    if as_json:
        print_result(found[0] if len(found) == 1 else {"stopping": found[0], **vars(found[1])}, as_json=True)
    else:
        print("\n\n".join(map(str, found)))
    if not as_json:
        print(f"\nkept in {trained.folder / CALIBRATION}")
