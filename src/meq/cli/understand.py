"""`meq explain`, `meq diagnose`, `meq audit`, `meq cost` and `meq report`: what a trained run does, and why."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meq.cli.checks import check_data, check_file, check_folder, check_there
from meq.cli.options import AsJson, ImageEncoder, OtherData, Part, Root, Run, SkipBad, Store, TextEncoder, command
from meq.cli.output import Bars, print_result, say
from meq.cli.sizes import SizedEncoders, names_in
from meq.devices import chosen_device
from meq.errors import require
from meq.options import nearest
from meq.records import dumps

if TYPE_CHECKING:
    from meq.runs.explanation import Contrast, Explanation

# What the library has as defaults, written here so that --help need not import it; a test compares them.
METHODS = ("grad-cam", "gradient", "gradient-x-input", "rollout")
DEPTHS, PASSES = (1, 2, 5, 10, 20), 15
AUDITED = 256


@command
def explain(
    run: Annotated[str, typer.Argument(help="A trained run: its folder, or its name on the Hub.")],
    contents: Annotated[
        list[str] | None,
        typer.Argument(metavar="PICTURE TEXT", help="One example: the picture's file, and the text, in quotes."),
    ] = None,
    model: Annotated[str | None, typer.Option(hidden=True, help="The run, where it is not the first argument.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the pictures; what is there is overwritten.")] = Path(
        "explanation"
    ),
    steps: Annotated[int | None, typer.Option(help="The last step to look at; twice the read depth K.", min=1)] = None,
    method: Annotated[
        str | None, typer.Option(help=f"Of heat maps and shades: {', '.join(METHODS)}; {METHODS[0]} where it fits.")
    ] = None,
    instead: Annotated[str | None, typer.Option(help="Another text, to compare with.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="MODALITY:NUMBER",
            help="With answers per token: whose answer is explained, counted from 0, as in image:4; the one that is "
            "least sure unless given.",
        ),
    ] = None,
    animation: Annotated[str, typer.Option(help="gif or webp.")] = "gif",
    store: Store = None,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON instead of tables.")] = False,
) -> None:
    """What a trained model makes of a picture and a text, step by step: answers, residuals, heat maps, words.

    Writes explanation.png, .svg and .gif (or .webp), and contrast.png and .svg with --instead. A text that begins with
    a dash needs two dashes before it: meq explain RUN picture.png -- "-a text".
    """
    require("matplotlib", "a figure")
    from meq.runs.explain import explain_contents
    from meq.runs.load import load_run
    from meq.viz.animation import check_form, draw_explanation  # it imports matplotlib

    given = list(contents or ())
    if model is not None:  # as it was before the run came first: meq explain --model RUN picture.png "a text"
        run, given = model, [run, *given]
    check_form(animation)
    if method is not None and method not in METHODS:
        raise ValueError(f"--method cannot be {method!r}: {nearest(method, METHODS)}")
    check_folder(out, "--out")
    trained = load_run(run)
    if not given and set(trained.task.kinds) == set(trained.task.widths):  # numbers have no encoder, and no such way
        raise ValueError('give one example after the run: meq explain RUN picture.png "a text"')
    found = explain_contents(
        trained,
        given,
        steps=steps,
        method=method,
        instead=instead,
        token=token,
        store=store,
        encoders={"image": image_encoder, "text": text_encoder},
    )
    files = draw_explanation(found, out, form=animation)
    _show_explanation(found, files, as_json=as_json)


def _show_explanation(found: Explanation | Contrast, files: list[Path], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**found.to_json(), "files": [str(file) for file in files]}, indent=1))
        return
    from meq.runs.explanation import Contrast

    matched = found.matched if isinstance(found, Contrast) else found
    print(f"{matched.id}: {matched.answer}\n\n{matched}")
    if isinstance(found, Contrast):
        print(f"\nwith other content\n\n{found}")
    print()
    for file in files:
        print(f"drawn: {file}")


@command
def diagnose(
    run: Run,
    data: OtherData = None,
    root: Root = None,
    split: Part = None,
    samples: Annotated[int, typer.Option(help="How many samples are diagnosed.", min=1)] = 4,
    limit: Annotated[int, typer.Option(help="How many samples are followed along the steps, at most.", min=1)] = 1000,
    horizon: Annotated[int | None, typer.Option(help="Steps to follow them for; twice the read depth K.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="The read depth to look at instead of K; what is found is not kept.", min=1)
    ] = None,
    skip_bad: SkipBad = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Is a trained run's equilibrium healthy, who moves whom, what does each step add?

    Looks at test, or else at dev. What is found is kept in the run's folder, where reports find it. Also: meq
    analyze, its older name.
    """
    with Bars() as bars:
        from meq.runs.analyze import FOLDER, AnalysisOptions, analyze_run
        from meq.runs.load import load_run
        from meq.runs.own_data import ReadOptions

        check_data(data, root)
        reading = ReadOptions(on_bad="skip" if skip_bad else "raise", store=store, progress=bars)
        options = AnalysisOptions(split=split, samples=samples, limit=limit, horizon=horizon, steps=steps)
        trained = load_run(run)
        if trained.folder.name == "model":
            check_folder(trained.folder.parent / FOLDER, "the analysis is kept in")
        found = analyze_run(trained, data, root=root, options=options, reading=reading)
    print_result(found, as_json=as_json)
    kept = steps in (None, getattr(trained.model, "steps", None)) and trained.folder.name == "model"
    if not as_json and kept:
        print(f"\nkept in {trained.folder.parent / FOLDER}")


@command
def audit(
    run: Run,
    data: OtherData = None,
    root: Root = None,
    split: Annotated[
        str | None, typer.Option(help="The split to look at: dev where it is labelled, or else test.")
    ] = None,
    samples: Annotated[int, typer.Option(help="How many samples, spread over the split.", min=1)] = AUDITED,
    seed: Annotated[int, typer.Option(help="Of random starts and of intervals.", min=0)] = 0,
    skip_bad: SkipBad = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Is a trained run iterating at all, and does it keep what it finds? Five questions, one page, a verdict.

    Reads the start instead of the end, starts elsewhere, compares steps with difficulty, asks whether the residual
    knows which answers are wrong, and goes on to 50 times the read depth. Nothing is written.
    """
    with Bars() as bars:
        from meq.runs.audit import AuditOptions, audit_run
        from meq.runs.load import load_run
        from meq.runs.own_data import ReadOptions

        check_data(data, root)
        reading = ReadOptions(on_bad="skip" if skip_bad else "raise", store=store, progress=bars)
        options = AuditOptions(split=split, samples=samples, seed=seed)
        found = audit_run(load_run(run), data, root=root, options=options, reading=reading)
    print(dumps({"verdict": found.verdict, "findings": found.findings, **vars(found)}) if as_json else found)


@command
def cost(
    run: Run,
    batch: Annotated[int, typer.Option("--batch", "--batch-size", help="Samples per pass.", min=1)] = 32,
    steps: Annotated[
        str, typer.Option(help="Numbers of steps to measure at; the run's own is always added.")
    ] = ",".join(map(str, DEPTHS)),
    tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="Tokens of a modality, NAME=COUNT, for random features instead of the run's data; repeatable."
        ),
    ] = None,
    passes: Annotated[int, typer.Option(help="Timed passes in every round.", min=1)] = PASSES,
    rounds: Annotated[int, typer.Option(help="How often all of it is gone through.", min=1)] = 1,
    encoders: SizedEncoders = None,
    device: Annotated[str | None, typer.Option(help="Where to measure; an accelerator if there is one.")] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """What a trained model costs: time, FLOPs and memory per sample, and what one more step adds.

    Measured at the run's own token counts, on its own data where that can be read again, its encoders included. A run
    with a calibrated rule is also read by it.
    """
    from meq.runs.cost import cost_of_run
    from meq.runs.load import load_run

    depths, counts = _numbers(steps.split(","), "--steps 1,2,5"), _counts(tokens or ())
    chosen_device(device, also=("meta",))
    trained = load_run(run)
    found = cost_of_run(
        trained,
        batch_size=batch,
        steps=depths,
        tokens=counts,
        passes=passes,
        rounds=rounds,
        encoders=names_in(encoders),
        device=device,
        store=store,
    )
    print_result(found, as_json=as_json)


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


@command
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a study.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; FOLDER-report.html beside the folder unless given.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder of the data, where it has moved; for a study on a table, the table.")
    ] = None,
    only_files: Annotated[
        bool, typer.Option(help="Load no model: leave out examples, diagnosis and the score along k.")
    ] = False,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Draw this figure of the report alone, as NAME.png and NAME.svg in the folder --out, or "
            "FOLDER-figures beside the folder; repeatable.",
        ),
    ] = None,
    store: Store = None,
) -> None:
    """Write one HTML file on a run or a study, to be read without meq: what was run, tables, figures, examples."""
    require("matplotlib", "a report")
    if root is not None:
        check_there(root, "file or folder")
    from meq.viz.figures import check_figure, draw_figure
    from meq.viz.report import check_report, default_place, is_study, write_report

    if figure:
        check_report(folder)
        figures = out or default_place(folder, "-figures")
        check_folder(figures, "--out")
        for name in figure:
            check_figure(folder, name)
        only_files = only_files or is_study(folder)  # figures of a study need no model
    else:
        check_file(check_report(folder, out), "--out")
    with looked_at(folder, root=root, only_files=only_files, store=store) as looks:
        if figure:
            files = [file for name in figure for file in draw_figure(folder, name, figures, looks=looks)]
            print("\n".join(f"figure: {file}" for file in files))
        else:
            place = write_report(folder, out, looks=looks)
            print(f"report: {place} ({os.path.getsize(place) / 1e6:.1f} MB)")


@contextmanager
def looked_at(
    folder: Path, *, root: Path | None = None, only_files: bool = False, store: Path | None = None
) -> Iterator[Any]:
    """What a report shows beyond the files of a run or study, or None where only its files are to be read."""
    from meq.runs.showcase import ShowcaseOptions, look_for_report

    with tempfile.TemporaryDirectory(prefix="meq-report-") as scratch, Bars() as bars:
        looks = None
        if not only_files:
            options = ShowcaseOptions(store=store)
            looks, missing = look_for_report(folder, scratch=Path(scratch), root=root, options=options, progress=bars)
            say(*missing, console=bars.console)
        yield looks
