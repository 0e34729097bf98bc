"""The whole paper by one command: its studies on all data sets that are there, then its tables as it prints them.

    meq study run paper roots.toml

A roots file says where each data set lies. A set without a folder here is named and left out:

    snli-ve = "data/snli_ve"
    cod10k = "data/COD10K-v3"
    scenes = true                                   # generated, nothing to point at
    vcr = { root = "fixtures/vcr", smoke = true }   # a few updates, to see that everything runs

A folder of its own holds every study with its records. Runs that several studies ask for are made once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any

from rich.console import Console

from meq.data.request import DATA_SETS, DataRequest, open_data
from meq.options import nearest
from meq.records import SCHEMA, SINCE, alone, refuse_outside, remove, write_bytes, write_dataclass
from meq.records import read_dataclass as read_plain
from meq.studies.build import Places
from meq.studies.cost_study import is_cost, is_sealed_cost, read_cost, verify_cost
from meq.studies.paper_found import SMOKE, PaperPart
from meq.studies.paper_tables import assembled
from meq.studies.recipes import STUDIES, make_study
from meq.studies.remeasure import remeasure
from meq.studies.runner import run_study
from meq.studies.study import PAPER_FILE, STUDY, TABLES, Study, StudyError, is_paper, read_study
from meq.studies.tables import records_of
from meq.studies.untrained import COST, run_untrained
from meq.studies.verify import Fault, Verification, verify
from meq.studies.workers import Executor
from meq.tables import Cell, Table, as_files

TABLE_FORMAT = 3
"""Raised when the same records give other tables than before."""
PLAN: Mapping[str, tuple[str, ...]] = {
    "snli-ve": ("main", "modality", "mixer", "readout", "residual-penalty", "fixed-point", "steps", "grounding"),
    "hateful-memes": ("main", "modality", "residual-penalty", "state-design", "fixed-point", "robustness"),
    "vqa-v2": ("main", "ablation", "residual-penalty", "safeguards", "state-design", "fixed-point"),
    "vcr": ("main", "residual-penalty", "fixed-point"),
    "mosei": ("main", "ablation", "modality", "residual-penalty", "state-design", "fixed-point"),
    "cod10k": ("cod10k",),
}
"""Which studies the paper has on its data sets, those first whose runs others take over."""
ON_OTHERS = tuple(dict.fromkeys(name for names in PLAN.values() for name in names if name != "cod10k"))
"""On sets that the paper does not have: all that make sense there."""
EMBEDDED = ("scenes", "relay")
"""Without a roots file: what needs no download."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """Where a data set lies, and whether it is there for a smoke test alone."""

    root: Path | None = None
    smoke: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PaperFile:
    """What a folder of the paper holds; its records say the rest."""

    schema: int
    quick: bool
    parts: tuple[PaperPart, ...]
    left_out: Mapping[str, str]
    """Data sets that are not there, each with why."""
    table_format: int = field(default=1, metadata=SINCE)
    """The form of the assembled tables."""


def read_roots(path: Path) -> tuple[dict[str, Root], dict[str, str]]:
    """The data sets of a roots file, and those in it that are not there, with why. Folders start from the file's."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StudyError(f"there is no roots file {path}: a TOML file with lines such as {EXAMPLE}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise StudyError(f"{path} is no roots file: {error}. It has lines such as {EXAMPLE}") from error
    if not found:
        raise StudyError(f"{path} names no data set: it has lines such as {EXAMPLE}")
    roots = {name: _root(path, name, value) for name, value in found.items()}
    missing = {
        name: f"{each.root} is not there" for name, each in roots.items() if each.root and not each.root.is_dir()
    }
    return {name: each for name, each in roots.items() if name not in missing}, missing


EXAMPLE = 'snli-ve = "data/snli_ve", or scenes = true'


def _root(path: Path, name: str, value: Any) -> Root:
    where = f"{path}, {name}"
    if name not in DATA_SETS:
        raise StudyError(f"{where}: there is no such data set: {nearest(name, DATA_SETS)}")
    given = value if isinstance(value, dict) else {} if value is True else {"root": value}
    for key in given:
        if key not in ("root", "smoke", "options"):
            raise StudyError(f"{where}: there is no {key!r}: {nearest(key, ['root', 'smoke', 'options'])}")
    root, smoke, options = given.get("root"), given.get("smoke", False), given.get("options", {})
    if not isinstance(smoke, bool) or not isinstance(options, dict):
        raise StudyError(f"{where}: smoke is true or false, and options are a table")
    if DATA_SETS[name].embedded:
        if root is not None:
            raise StudyError(f"{where}: it is generated or installed, and has no folder: write {name} = true")
        return Root(smoke=smoke, options=options)
    if not isinstance(root, str):
        raise StudyError(f'{where}: it lies in a folder of yours: write {name} = "path/to/it"')
    return Root(root=path.parent / Path(root).expanduser(), smoke=smoke, options=options)


# -- running it --------------------------------------------------------------------------------------------------------


def run_paper(
    roots: Path | None,
    folder: Path,
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    on: Executor | None = None,
    store: Path | None = None,
    retry_failed: bool = False,
    device: str | None = None,
    console: Console | None = None,
) -> PaperFile:
    """Run what is still to be run of all studies, and assemble the tables; the same call goes on where it stopped.

    A study that cannot be brought to its end does not stop the others: it is named in an error once they are done.
    """
    console = console or Console(stderr=True)
    there, left_out = ({name: Root() for name in EMBEDDED}, {}) if roots is None else read_roots(roots)
    for name, each in there.items():  # a folder that is wrong shows before anything is trained
        open_data(name, each.root, **each.options)
    planned, without = _planned(there, quick=quick, seeds=seeds)
    left_out |= without
    if missing := [module for module in COST_NEEDS if util.find_spec(module) is None]:
        left_out[COST] = f"it needs {', '.join(missing)}: pip install 'meq[encoders]'"
    for name, why in left_out.items():
        console.print(f"{name} is left out: {why}", highlight=False)
    if not planned:
        raise StudyError("none of the data sets is there: nothing can be run")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, f"another process runs the paper in {folder}: wait for it, or choose another folder"):
        _refuse_other_form(folder, quick)
        remove([*folder.glob(".*.writing"), *folder.glob(f"{TABLES}/.*.writing")])
        done: list[PaperPart] = []
        problems: list[str] = []
        try:
            for part, study in planned:
                console.print(f"{part.study} on {part.data}: {folder / part.folder}", highlight=False)
                alike = [each for each in done if each.data == part.data]
                sources = [
                    folder / each.folder for each in alike if read_study(folder / each.folder).data == study.data
                ]
                options: dict[str, Any] = {"on": on, "reuse": sources, "retry_failed": retry_failed, "console": console}
                try:
                    run_study(
                        study,
                        folder / part.folder,
                        places=replace(_places(there, part, store), device=device),
                        **options,
                    )
                except ValueError as error:  # a mistake in one study must not cost the others
                    problems.append(f"{part.study} on {part.data}: {error}")
                if not (folder / part.folder / STUDY).is_file():
                    continue
                done.append(part)
                parts = (*done, *_earlier(folder, done))
                write_dataclass(
                    folder / PAPER_FILE,
                    PaperFile(schema=SCHEMA, quick=quick, parts=parts, left_out=left_out, table_format=TABLE_FORMAT),
                )
            smoke = all(part.smoke for part, _ in planned)
            if COST not in left_out and not is_measured_cost(folder / COST, smoke=smoke):
                console.print(f"{COST}: {folder / COST}", highlight=False)
                measured = {"passes": SMOKE_PASSES} if smoke else None
                run_untrained(COST, folder / COST, quick=quick, device=device, measured=measured)
        finally:  # also of a paper that is interrupted: what is there verifies
            if is_paper(folder):
                write_tables(folder, paper_tables(folder))
    if problems:
        raise StudyError(
            f"{len(problems)} studies of the paper could not be brought to their end. {' '.join(problems)}"
        )
    return read_paper(folder)


COST_NEEDS = ("transformers",)
"""Modules that the study of costs builds its encoders with."""


def is_measured_cost(folder: Path, *, smoke: bool) -> bool:
    """Whether costs need not be measured again; a few passes of a smoke test do not stand for more."""
    return is_sealed_cost(folder) and (smoke or read_cost(folder).form.passes != SMOKE_PASSES)


def _places(there: Mapping[str, Root], part: PaperPart, store: Path | None) -> Places:
    """A set that is there for a smoke test is not read by weights that are no smoke test."""
    other = there.get("cod10k")
    read = other.root if other is not None and (part.smoke or not other.smoke) else None
    return Places(data=there[part.data].root, store=None if part.smoke else store, read=read)


def _planned(
    there: Mapping[str, Root], *, quick: bool, seeds: Sequence[int] | None
) -> tuple[list[tuple[PaperPart, Study]], dict[str, str]]:
    """The parts with their studies, and what is left out, with why."""
    made, left_out = [], {}
    for data, root in there.items():
        names = [name for name in PLAN.get(data, ON_OTHERS) if data in STUDIES[name].on]
        if not names:
            left_out[data] = "no study of the paper runs on it"
        for name in names:
            other = there.get("cod10k")
            if name == "grounding" and data == "snli-ve" and (other is None or (other.smoke and not root.smoke)):
                left_out["grounding on snli-ve"] = "it reads cod10k, which is not there"
                continue
            study = make_study(name, DataRequest(data=data, options=root.options), quick=quick, seeds=seeds)
            study = smoke_form(study) if root.smoke else _shortened(study) if quick else study
            made.append((PaperPart(study=name, data=data, folder=study.name, smoke=root.smoke), study))
    return made, left_out


def _shortened(study: Study) -> Study:
    """Half the epochs of a study's own quick form: there are more than a hundred runs."""
    return replace(study, train=replace(study.train, epochs=max(1, study.train.epochs // 2)))


def _earlier(folder: Path, done: Sequence[PaperPart]) -> list[PaperPart]:
    """Parts of an earlier call, with other roots: they stay in the tables."""
    if not (folder / PAPER_FILE).is_file():
        return []
    return [part for part in read_paper(folder).parts if part.folder not in {each.folder for each in done}]


def _refuse_other_form(folder: Path, quick: bool) -> None:
    if (folder / PAPER_FILE).is_file() and read_paper(folder).quick != quick:
        form = "the paper's sizes" if quick else "the quick form"
        raise StudyError(f"{folder} holds the paper in {form}: choose another folder")
    strangers = [] if (folder / PAPER_FILE).is_file() else [each.name for each in folder.iterdir() if each.is_file()]
    if strangers:
        raise StudyError(f"{folder} holds other things, {strangers[0]} among them: choose another folder")


SMOKE_PASSES = 2
SMOKE_SHAPE = {"dim": 16, "heads": 2, "steps": 2, "hidden": 32, "head_width": 16}
SMOKE_MEASURES: Mapping[str, Mapping[str, Any]] = {
    "steps": {"limit": 4},
    "fixed-point": {"horizon": 4, "radii": 1, "limit": 4},
    "coupling": {"samples": 4},
    "robustness": {"draws": 1, "limit": 4},
    "grounding": {"limit": 2, "horizon": 4},
    "staircase": {"limit": 4},
}


def smoke_form(study: Study) -> Study:
    """The same arms and measures at a size of seconds, with encoders that need no weights, to see that all of it runs.

    Its scores say nothing, and tables call its rows "smoke".
    """
    arms = []
    for arm in study.arms:
        fixed = (arm.match.size,) if arm.match else ()
        shape = {name: value for name, value in SMOKE_SHAPE.items() if name in arm.options and name not in fixed}
        steps = {"steps": 1} if arm.options.get("steps") == 1 else {}
        arms.append(replace(arm, options={**arm.options, **shape, **steps}))
    measures = {name: {**options, **SMOKE_MEASURES.get(name, {})} for name, options in study.measures.items()}
    train = replace(study.train, epochs=1, batch_size=4, monitor_samples=2, radius_samples=0)
    data = replace(study.data, encoders={}, limit=8)
    return replace(study, name=f"{study.name}-{SMOKE}", data=data, arms=tuple(arms), train=train, measures=measures)


# -- reading it back ---------------------------------------------------------------------------------------------------


def read_paper(folder: Path) -> PaperFile:
    if not is_paper(folder):
        raise StudyError(f"{folder} has no {PAPER_FILE}: it is not a folder of the whole paper")
    found = read_plain(PaperFile, folder / PAPER_FILE)
    refuse_outside(folder / PAPER_FILE, [part.folder for part in found.parts])
    return found


def paper_status(folder: Path) -> Table:
    """How far the paper has come: one line for each of its studies that was begun."""
    rows: list[dict[str, Cell]] = []
    for part in read_paper(folder).parts:
        study = read_study(folder / part.folder)
        records = records_of(folder / part.folder, study)
        failed = sum(record.error is not None for record in records.values())
        over = f"{len(records)} of {len(list(study.runs()))}"
        rows.append({"study": part.study, "data": part.data, "over": over, "failed": failed, "folder": part.folder})
    titles = {"data": "data set", "over": "runs that are over"}
    return Table.of(f"{folder.name}: {len(rows)} studies of the paper were begun", rows, titles=titles)


def places_of_parts(folder: Path, roots: Path | None = None) -> dict[str, Places]:
    """By folder of a part: where its data lies; nothing is known of what the roots file does not name."""
    there = {name: Root() for name in EMBEDDED} if roots is None else read_roots(roots)[0]
    parts = read_paper(folder).parts
    return {part.folder: _places(there, part, None) if part.data in there else Places() for part in parts}


def paper_tables(folder: Path, *, paper: bool = False) -> dict[str, Table]:
    """The assembled tables, from records; `paper` sets the published figures beside them."""
    found = read_paper(folder)
    return assembled(folder, found.parts, quick=found.quick, paper=paper, left_out=found.left_out)


def write_tables(folder: Path, tables: Mapping[str, Table]) -> None:
    (folder / TABLES).mkdir(exist_ok=True)
    made = as_files(tables)
    for name, content in made.items():
        write_bytes(folder / TABLES / name, content)
    remove([path for path in (folder / TABLES).iterdir() if path.name not in made])


def verify_any(folder: Path, *, require_checkpoints: bool = False) -> Verification:
    """A study, a study of costs, or the whole paper."""
    if is_paper(folder):
        return verify_paper(folder, require_checkpoints=require_checkpoints)
    return verify_cost(folder) if is_cost(folder) else verify(folder, require_checkpoints=require_checkpoints)


def remeasure_paper(
    folder: Path,
    roots: Path | None = None,
    *,
    store: Path | None = None,
    device: str | None = None,
    console: Console | None = None,
) -> Verification:
    """As `remeasure`, for every study of a paper whose data is there; the others are named."""
    there = {name: Root() for name in EMBEDDED} if roots is None else read_roots(roots)[0]
    whole = Verification()
    for part in read_paper(folder).parts:
        if part.data not in there:
            where = "give its place in a roots file" if roots is None else f"{roots} does not say where it is"
            whole.notes.append(f"{part.folder}: {part.data} is not here, so that nothing was measured again: {where}")
            continue
        places = replace(_places(there, part, store), device=device)
        whole.add(part.folder, remeasure(folder / part.folder, places, console=console))
    return whole


def verify_paper(folder: Path, *, require_checkpoints: bool = False) -> Verification:
    """Every study in it, and the assembled tables made again."""
    whole = Verification()
    costs = [COST] if is_cost(folder / COST) else []
    for place in [*(part.folder for part in read_paper(folder).parts), *costs]:
        whole.add(place, verify_any(folder / place, require_checkpoints=require_checkpoints))
    if whole.faults:
        whole.notes.append("the assembled tables were not rebuilt: a study does not verify")
        return whole
    if read_paper(folder).table_format != TABLE_FORMAT:
        whole.notes.append(
            "the assembled tables are of another version of meq, and were not compared: the command that ran the paper "
            "writes them anew"
        )
        return whole
    made = as_files(paper_tables(folder))
    there = {path.name for path in (folder / TABLES).iterdir()} if (folder / TABLES).is_dir() else set()
    for name in sorted(made.keys() | there):
        whole.tables += 1
        if name not in made:
            whole.faults.append(Fault(file=f"{TABLES}/{name}", message="it does not follow from the records"))
        elif name not in there or (folder / TABLES / name).read_bytes() != made[name]:
            message = "it differs from the table that the records give"
            whole.faults.append(Fault(file=f"{TABLES}/{name}", message=message))
    return whole
