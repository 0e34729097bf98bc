"""`meq study` and `meq demo`: several arms and seeds, run, shown and verified."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from meq import tables
from meq.cli.checks import check_data, check_folder, check_there
from meq.cli.errors import resumable
from meq.cli.options import AsJson, Device, EncoderNames, Root, command
from meq.cli.output import Bars, same_command
from meq.cli.sizes import SizedEncoders, names_in
from meq.cli.understand import looked_at
from meq.data.request import DataRequest
from meq.devices import chosen_device
from meq.errors import require
from meq.options import by_part, nearest
from meq.records import dumps
from meq.training.arms import ARMS

if TYPE_CHECKING:
    from meq.studies.study import Study
    from meq.studies.verify import Verification

study_app = typer.Typer(no_args_is_help=True, help="Studies: several arms, several seeds.")
Folder = Annotated[Path, typer.Argument(help="The study's folder.")]
Features = Annotated[
    Path | None, typer.Option("--store", "--features", help="Feature store: a folder that keeps what is encoded.")
]
ReadFolder = Annotated[Path | None, typer.Option(help="Folder of the set that is only read, such as COD10K.")]


@study_app.command("list")
@command
def list_studies(
    name: Annotated[str | None, typer.Argument(help="Tell all about one of them.")] = None, as_json: AsJson = False
) -> None:
    """The studies that can be run by name."""
    from meq.studies.recipes import describe, studies_table

    if name is not None:
        print(f"{name}\n\n{describe(name)}")
    else:
        print(tables.as_json(studies_table()) if as_json else tables.as_text(studies_table()), end="")


@study_app.command()
@command
def run(
    name: Annotated[str, typer.Argument(help="A study, by a name that `meq study list` shows.")],
    request: DataRequest,
    encoders: EncoderNames,
    data: Annotated[
        str | None, typer.Argument(help="A data set or a table; the study's own default unless given.")
    ] = None,
    root: Root = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[PART.]NAME=VALUE",
            help="Further option of the data set, or of a PART of all arms: train (epochs, warmup, ...) or model (dim, "
            "hidden, ...), of the arms that have it; or of measure (horizon, draws, ...), of those that have it; "
            "repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; what is recorded there is not run again.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="The form for two cores, instead of the paper's sizes.")] = False,
    seed: Annotated[
        list[int] | None, typer.Option(help="A seed; repeatable. The study's own three unless given.")
    ] = None,
    rates: Annotated[int, typer.Option(help="Learning rates tried for every arm; the best on dev stands for it.")] = 1,
    measure_on: Annotated[
        str | None, typer.Option(help="The split that measures read; dev on the paper's sets, else test, unless given.")
    ] = None,
    standardise: Annotated[
        bool | None,
        typer.Option(help="Standardise numbers that come with the data, by train; the study's own choice unless said."),
    ] = None,
    store: Features = None,
    read: ReadFolder = None,
    reuse: Annotated[
        list[Path] | None, typer.Option(help="A study's folder to take equal runs from; repeatable.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option(help="Begin runs that failed anew.")] = False,
    on: Annotated[str, typer.Option(help="serial, local, ray: in this process, in several, on Ray.")] = "serial",
    workers: Annotated[
        int | None, typer.Option(help="Runs at the same time; what there is room for unless given.", min=1)
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; one of this machine if there is none.")] = None,
    trust_cluster: Annotated[
        bool, typer.Option(help="Let machines beyond this one take part: Ray sends them code and data as pickles.")
    ] = False,
    memory: Annotated[float | None, typer.Option(help="GB that a run needs; estimated unless given.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of torch in each worker, with --on local; the cores shared out.", min=1)
    ] = None,
    cpus: Annotated[int | None, typer.Option(help="Of each run, with --on ray; 1 unless given.", min=1)] = None,
    gpus: Annotated[
        float | None, typer.Option(help="Of each run, with --on ray, also 0.5; 1 where there are any unless given.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where to compute, such as cpu or cuda; the accelerator that is found unless given. The study `cost` "
            "takes meta, too: FLOPs and memory are counted, nothing is computed."
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Of the study `cost`: samples per pass.", min=1)] = None,
    passes: Annotated[int | None, typer.Option(help="Of the study `cost`: timed passes in every round.", min=1)] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Of the study `cost`: how often all arms are gone through.", min=1)
    ] = None,
    sized: SizedEncoders = None,
) -> None:
    """Run a study, or go on with it: the same command resumes what was interrupted."""
    with resumable(f"go on with: {_same_command(name, out)}"):
        from meq.studies.build import places_of
        from meq.studies.recipes import make_study, with_measures
        from meq.studies.runner import choose_executor, run_study
        from meq.studies.study import PAPER
        from meq.studies.tables import tables_text
        from meq.studies.untrained import UNTRAINED, run_untrained

        if name != PAPER:
            check_data(data, root)
        for place in (out or Path("studies"), store):
            if place is not None:
                check_folder(place, "the study's files go to")
        for folder in reuse or ():
            check_there(folder, "study to --reuse")
        if on == "ray":
            require("ray", "--on ray")
        measured: dict[str, Any] = {"batch": batch, "passes": passes, "rounds": rounds, "encoders": names_in(sized)}
        measured = {option: value for option, value in measured.items() if value}
        if name in UNTRAINED:
            print(run_untrained(name, out, quick=quick, device=device, measured=measured), end="")
            return
        if measured:
            raise ValueError(
                f"`{next(iter(measured))}` is an option of the study `cost`: {name} trains what it measures"
            )
        if device is not None:
            chosen_device(device)
        executor = choose_executor(
            on,
            workers=workers,
            memory=memory,
            threads=threads,
            cpus=cpus,
            gpus=gpus,
            address=address,
            trusted=trust_cluster,
        )
        if name == PAPER:
            of_one = {"ROOT": root, "--rates": rates - 1, "--read": read, "--reuse": reuse, "--measure-on": measure_on}
            of_one |= {f"--{field.replace('_', '-')}": name for field, name in vars(encoders).items()}
            of_one |= {"--standardise": standardise is not None}
            _refuse_options(request, of_one)
            given_to_all = {"seeds": seed, "on": executor, "store": store, "device": device}
            _run_paper(data, out, quick=quick, retry_failed=retry_failed, **given_to_all)
        given = by_part(request.options, ["train", "model", "measure"])
        asked = None if data is None else replace(request, root=None, options=given.pop("data", {}))
        reading: dict[str, Any] = {"encoders": encoders.by_kind(), "standardise": standardise}
        study = make_study(name, asked, quick=quick, seeds=seed, rates=rates, measure_on=measure_on, **reading)
        study = with_measures(study, given.get("measure", {}))
        study = _changed(study, train=given.get("train", {}), model=given.get("model", {}))
        folder = out or Path("studies") / study.name
        places = places_of(data, root, store=store, read=read, device=device)
        records = run_study(study, folder, places=places, on=executor, reuse=reuse or (), retry_failed=retry_failed)
        print(tables_text(study, folder))
        print(f"study: {folder}")
        raise typer.Exit(int(any(record.error is not None for record in records)))


def _run_paper(roots: str | None, out: Path | None, *, quick: bool, **options: Any) -> NoReturn:
    from meq.studies.study import PAPER, read_study
    from meq.studies.tables import records_of
    from meq.studies.whole_paper import paper_tables, run_paper

    folder = out or Path("studies") / (f"{PAPER}-quick" if quick else PAPER)
    given = None if roots is None else Path(roots)
    if given is None and not quick:
        raise ValueError(
            "the whole paper needs a roots file, which says where its data sets lie: see `meq study list paper`"
        )
    made = run_paper(given, folder, quick=quick, **options)
    print("\n".join(tables.as_text(each) for each in paper_tables(folder).values()))
    print(f"the paper: {folder}")
    places = [folder / part.folder for part in made.parts]
    records = [record for place in places for record in records_of(place, read_study(place)).values()]
    raise typer.Exit(int(any(record.error is not None for record in records)))


def _refuse_options(request: DataRequest, given: Mapping[str, Any]) -> None:
    """Those that speak of one data set."""
    columns: dict[str, Any] = {
        "--image": request.images,
        "--text": request.texts,
        "--audio": request.audios,
        "--label": request.label,
    }
    columns |= {
        "--vector": request.vectors,
        "--split": request.split,
        "--group": request.group,
        "--set": request.options,
    }
    for flag, value in {**columns, **given}.items():
        if value:
            raise ValueError(f"{flag} speaks of one data set: the whole paper reads where its sets lie in a roots file")


def _changed(study: Study, *, train: Mapping[str, Any], model: Mapping[str, Any]) -> Study:
    """The study with other training options, and with other options of those models that have them."""
    from meq.studies.study import OWN

    known = {name for arm in study.arms for name in ARMS[arm.model].options} if model else set()
    for name in model:
        if name not in known:
            raise ValueError(f"no model of the study {study.name!r} has an option {name!r}: {nearest(name, known)}")
    for name in train:
        if name in OWN:
            raise ValueError(f"{name} of a study cannot be set: seeds are given with --seed, and there are no trackers")
    arms = []
    for arm in study.arms:
        own = {name: value for name, value in model.items() if name in ARMS[arm.model].options} if model else {}
        kept = {name: value for name, value in arm.train.items() if name not in train}
        arms.append(replace(arm, options={**arm.options, **own}, train=kept))
    return replace(study, train=replace(study.train, **train), arms=tuple(arms))


@study_app.command()
@command
def work(
    folder: Folder,
    data: Annotated[str | None, typer.Argument(help="The table that the study runs on, if it runs on one.")] = None,
    root: Root = None,
    store: Features = None,
    read: ReadFolder = None,
    threads: Annotated[int | None, typer.Option(help="Of torch; as many as it takes unless given.", min=1)] = None,
    device: Device = None,
) -> None:
    """Help with a study that was begun: make runs that nobody else makes, on any machine that shares its folder."""
    again = shlex.join(["meq", "study", "work", str(folder)])
    with resumable(f"go on with: {again}, and the same options"):
        from meq.studies.build import places_of
        from meq.studies.runner import work_on_study
        from meq.studies.study import read_study, status_table

        check_data(data, root)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        if device is not None:
            chosen_device(device)
        records = work_on_study(folder, places=places_of(data, root, store=store, read=read, device=device))
        print(tables.as_text(status_table(folder, read_study(folder))), end="")
        raise typer.Exit(int(any(record.error is not None for record in records)))


def _same_command(name: str, out: Path | None) -> str:
    """What was typed, where that is known."""
    return same_command(f"meq study run {name}" + (f" --out {out}" if out else "") + ", and the same options")


@study_app.command()
@command
def status(folder: Folder, as_json: AsJson = False) -> None:
    """How far a study has come, or the whole paper."""
    from meq.studies.study import is_paper, read_study, status_table

    if is_paper(folder):
        from meq.studies.whole_paper import paper_status

        table = paper_status(folder)
    else:
        table = status_table(folder, read_study(folder))
    print(tables.as_json(table) if as_json else tables.as_text(table), end="")


@study_app.command()
@command
def table(
    folder: Folder,
    only: Annotated[list[str] | None, typer.Option(help="A table by name, such as dev-accuracy; repeatable.")] = None,
    form: Annotated[str, typer.Option("--format", help="txt, md, tex or csv.")] = "txt",
    paper: Annotated[bool, typer.Option(help="Show the paper's published figures beside ours.")] = False,
) -> None:
    """Print a study's tables, made from its records; of a folder of the whole paper, the paper's."""
    from meq.studies.cost_study import cost_tables, is_cost, read_cost
    from meq.studies.paper_tables import beside_paper
    from meq.studies.study import StudyError, is_paper, read_study
    from meq.studies.tables import shown_tables, tables_text
    from meq.studies.whole_paper import paper_tables

    if is_paper(folder) or is_cost(folder):
        made = paper_tables(folder, paper=paper) if is_paper(folder) else cost_tables(read_cost(folder), paper=paper)
        print(shown_tables(made, names=only or (), form=form), end="")
        return
    study, beside = read_study(folder), beside_paper(folder) if paper else None
    if beside == {} and study.paper is None:
        raise StudyError(f"the paper has no figures for the study {study.name!r}")
    print(tables_text(study, folder, names=only or (), form=form, beside=beside), end="")


@study_app.command()
@command
def figures(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="Where to; beside the study's folder unless given.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder of the study's data set: maps are drawn over its pictures.")
    ] = None,
    read: ReadFolder = None,
    roots: Annotated[
        Path | None, typer.Option(help="Of the whole paper: the roots file, for the pictures below the maps.")
    ] = None,
) -> None:
    """Draw every figure of a study, or of the whole paper, from its records: PNG and SVG.

    Pictures are no part of the records: where a set lies in a folder of yours, say which, or maps stand alone.
    """
    require("matplotlib", "figures")
    from meq.studies.build import places_of
    from meq.studies.study import is_paper, read_study
    from meq.viz.figures import draw_all

    for place in (root, read, roots):
        if place is not None:
            check_there(place, "file or folder")
    if is_paper(folder):
        if root is not None or read is not None:
            raise ValueError(f"{folder} holds the whole paper, on many data sets: say where they lie with --roots FILE")
    elif roots is not None:
        raise ValueError(f"{folder} is one study: --roots belongs to the whole paper, give --root or --read")
    else:
        read_study(folder)  # what is no study is said to be none
    folder = folder.resolve()
    target = out or folder.with_name(f"{folder.name}-figures")
    check_folder(target, "--out")
    if target.resolve().is_relative_to(folder):
        raise ValueError(
            f"{target} lies in the study's own folder, in which every file is sealed: choose another --out"
        )
    made = draw_all(folder, target, places=places_of(None, root, read=read), roots=roots)
    print("\n".join(str(file) for file in made))
    print(f"{len(made)} files in {target}")


@study_app.command()
@command
def verify(
    folder: Folder,
    require_checkpoints: Annotated[bool, typer.Option(help="A checkpoint that is not there is a fault.")] = False,
    again: Annotated[
        bool, typer.Option("--remeasure", help="Take every measure again from the weights that are there.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="With --remeasure: the table that the study runs on.")] = None,
    root: Annotated[Path | None, typer.Option(help="With --remeasure: the folder of the study's data set.")] = None,
    roots: Annotated[
        Path | None, typer.Option(help="With --remeasure of the whole paper: the roots file that it was run with.")
    ] = None,
    store: Features = None,
    read: ReadFolder = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Rehash every file, recompute every metric, rebuild every table; exit with 1 if anything differs."""
    from meq.studies.build import places_of
    from meq.studies.study import is_paper
    from meq.studies.whole_paper import verify_any

    check_data(data, root)
    whole = is_paper(folder)
    if whole and (data is not None or root is not None):
        raise ValueError(f"{folder} holds the whole paper, on many data sets: say where they lie with --roots FILE")
    if roots is not None and not whole:
        raise ValueError(f"{folder} is one study: --roots belongs to the whole paper, give --root or --data")
    if device is not None:
        chosen_device(device)
    found = verify_any(folder, require_checkpoints=require_checkpoints)
    if again and found.ok:
        from meq.studies.remeasure import remeasure
        from meq.studies.whole_paper import remeasure_paper

        console = Console(stderr=True)
        if whole:
            more = remeasure_paper(folder, roots, store=store, device=device, console=console)
        else:
            places = places_of(data, root, store=store, read=read, device=device)
            more = remeasure(folder, places, console=console)
        found = replace(found, faults=more.faults, notes=[*found.notes, *more.notes], measures=more.measures)
    elif again:
        found.notes.append("no measure was taken again: the study does not verify as it is")
    print(dumps(found) if as_json else _verification_text(folder, found), end="")
    raise typer.Exit(0 if found.ok else 1)


def _verification_text(folder: Path, found: Verification) -> str:
    """Faults first; what could not be verified is said as well."""
    lines = [f"FAULT  {fault.file}: {fault.message}" for fault in found.faults]
    lines += [f"unverified  {name}: not there" for name in found.unverified]
    lines += [f"note  {note}" for note in found.notes]
    checked = f"{found.hashes} files rehashed, {found.metrics} metrics recomputed, {found.tables} tables rebuilt"
    checked += f", {found.measures} measures taken again" if found.measures else ""
    verdict = f"{folder} verifies" if found.ok else f"{folder} does NOT verify: {len(found.faults)} faults"
    return "\n".join([*lines, f"{verdict}; {checked}"]) + "\n"


SHOWN = ("depths", "by-depth-deep", "stopping-deep", "steps-by-depth-deep")
DRAWN = ("staircase", "steps-by-depth", "trail")
QUICK_SHOWN, QUICK_DRAWN = ("depths", "by-depth-deep"), ("staircase",)
ASKED = {
    False: "names two of the other kind, and has the colour of the winner: green beats red, blue beats green, red "
    "beats blue.",
    True: "names one of the other kind, and has its colour.",
}
"""How a card or rule has its colour in the whole demonstration, and in the quick one."""


@command
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to: the same command goes on with what is there. Unless given studies/demo, or "
            "studies/demo-quick with --quick."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller one, in about a minute: short trails, and no pictures to read.")
    ] = False,
) -> None:
    """Train the equilibrium and a cross-attention of its size to follow trails; read them deeper than in training.

    About five minutes on two cores, one with --quick. Nothing is downloaded.
    Pictures and a report need pip install 'meq[viz]'. Without it there are tables and a diagnosis, and the same command
    goes on from there once it is installed.
    """
    console = Console()
    out = out or Path("studies/demo-quick" if quick else "studies/demo")
    with resumable("the same command goes on from there"):
        import torch

        from meq.runs.analyze import AnalysisOptions, analyze_run
        from meq.runs.load import load_run
        from meq.runs.own_data import ReadOptions
        from meq.studies.laboratory import small_demo
        from meq.studies.recipes import make_study
        from meq.studies.runner import run_study
        from meq.studies.study import run_place
        from meq.studies.tables import tables_text

        check_folder(out, "--out")
        if quick:
            torch.set_num_threads(1)  # products this small take longer if several threads share them
        undrawn = _undrawn()
        study = small_demo() if quick else make_study("demo", quick=True)
        smaller = (
            "This is the quick demonstration: short trails, and cards and rules as symbols instead of a picture and a "
            "text; `meq demo` has the whole one. "
        )
        console.print(
            f"{smaller if quick else ''}Cards in a picture and rules in a text ask each other for a colour. A card or "
            f"rule says a colour, or {ASKED[quick]} The split `deep` has longer trails than any that training sees. "
            f"{len(study.arms)} arms of the same size are trained, one seed each, so that no comparison is made: that "
            f"is what `meq study run {study.data.name}` is for.",
            highlight=False,
        )
        if undrawn:
            print(undrawn)  # not by the console, which would wrap the command and take its brackets for a style
        run_study(study, out, console=Console(stderr=True))
        run = out / run_place(study.reference, study.seeds[0])
        with Bars() as bars:
            options = AnalysisOptions(split="test", samples=2 if quick else 4)
            found = analyze_run(load_run(run), options=options, reading=ReadOptions(progress=bars))
        drawn = undrawn or _drawn(out, QUICK_DRAWN if quick else DRAWN)
        print(tables_text(study, out, names=QUICK_SHOWN if quick else SHOWN))
        print(found.diagnosis)
        then = "install that, and give the same command again" if undrawn else "meq demo" if quick else f"meq app {run}"
        print(f"\n{drawn}\nthe model: {run}\nnext: {then}")


def _undrawn() -> str:
    """What to install for pictures; empty where that is installed."""
    try:
        require("matplotlib", "drawing pictures and a report")
    except ImportError as error:
        return f"No pictures: {error}"
    return ""


def _drawn(out: Path, names: tuple[str, ...]) -> str:
    """Draw the figures and write the report of a study; where they are, in words."""
    from meq.viz.figures import draw_figure
    from meq.viz.report import write_report

    with looked_at(out) as looks:
        report = write_report(out, looks=looks)
    pictures = [file for name in names for file in draw_figure(out, name, out.with_name(f"{out.name}-pictures"))]
    shown = "\n".join(f"  {file}" for file in pictures if file.suffix == ".png")
    return f"pictures:\n{shown}\nthe report: {report.resolve()}"
