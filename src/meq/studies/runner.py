"""A study is run: what is recorded is skipped, what was interrupted goes on, what fails is recorded as failed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from meq.options import nearest
from meq.records import (
    FULL_WORDS,
    SCHEMA,
    BusyError,
    NoSpaceError,
    alone,
    free_bytes,
    in_bytes,
    is_full,
    remove,
    write_bytes,
)
from meq.studies.build import Places, PreparedData, build_model, build_objective, check_arm, prepare_data
from meq.studies.cluster import Cluster
from meq.studies.compare import answers_of
from meq.studies.local import Local, shared_features, sharing_place
from meq.studies.measures import make_measure, measured_of
from meq.studies.one_run import borrow_runs, in_words, recorded
from meq.studies.study import (
    RUNS,
    STUDY,
    TABLES,
    Run,
    Study,
    StudyError,
    differences,
    read_study,
    run_place,
    study_text,
)
from meq.studies.tables import TABLE_FORMAT, records_of, table_files
from meq.studies.verify import (
    MANIFEST,
    Manifest,
    files_below,
    may_be_absent,
    read_manifest,
    sealed,
    write_manifest,
)
from meq.studies.workers import (
    CLAIM,
    Executor,
    Job,
    RunEnd,
    Serial,
    check_needs,
    clear_claims,
    is_settled,
    this_worker,
    work,
)
from meq.training.record import FAILED, INTERRUPTED, RECORD, RunRecord, read_record, write_record


def run_study(
    study: Study,
    folder: Path | str,
    *,
    places: Places | None = None,
    on: Executor | None = None,
    reuse: Sequence[Path] = (),
    retry_failed: bool = False,
    console: Console | None = None,
) -> list[RunRecord]:
    """Run what is still to be run and return all records; failed ones are among them.

    `places` says where the data lies; `on` how runs are made: one after the other unless given, in processes with
    `Local()`, on Ray with `Cluster()`. Runs that another study has made, of the same arm on the same data with the same
    seed, are taken over from the folders in `reuse`. Runs that failed are left as they are, or begun anew with
    `retry_failed`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise StudyError("a study runs in one process; train single runs on several with `meq train`")
    for arm in study.arms:
        check_arm(study, arm)
    folder, console = Path(folder), console or Console(stderr=True)
    with _stopped_by_a_full_disk(folder), _held(folder):
        manifest = _open(study, folder)
        with alone(folder / STUDY, _busy(folder)):  # where folders have no locks, files may
            running = _StudyRunner(study, folder, manifest, console, retry_failed)
            borrow_runs(study, folder, reuse, console)
            running.run_all(places or Places(), on or Serial())
    return list(records_of(folder, study).values())


def work_on_study(
    folder: Path | str, *, places: Places | None = None, console: Console | None = None
) -> list[RunRecord]:
    """Be one more worker of a study that was begun, here or on another machine that shares its folder.

    Returns all records once every run has ended, whoever made it. Whoever runs the study seals them; if nobody does,
    the last worker.
    """
    folder, console = Path(folder), console or Console(stderr=True)
    study = read_study(folder)
    with suppress(BusyError), _held(folder):  # nobody runs the study: what was given up is tried again
        clear_claims(study, folder)
    left = [run for run in study.runs() if not is_settled(study, folder, run)]
    problems = []
    with _stopped_by_a_full_disk(folder):
        if left:
            job = _make_job(study, folder, left, places or Places(), console)
            problems = [ended for ended in work(job, worker=this_worker()) if ended.problem is not None]
        with suppress(BusyError), _held(folder), alone(folder / STUDY, _busy(folder)):
            _StudyRunner(study, folder, read_manifest(folder), console, False).seal_recorded()
    if problems:
        _report(problems, len(left))
    return list(records_of(folder, study).values())


EXECUTORS: Mapping[str, Any] = {"serial": Serial, "local": Local, "ray": Cluster}


def choose_executor(
    on: str,
    *,
    workers: int | None = None,
    memory: float | None = None,
    threads: int | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
    trusted: bool = False,
) -> Executor:
    """The way to run a study of that name; an option that it does not have is an error."""
    if on not in EXECUTORS:
        raise StudyError(f"a study cannot be run on {on!r}: {nearest(on, EXECUTORS)}")
    options: dict[str, Any] = {"workers": workers, "memory": memory, "threads": threads, "cpus": cpus, "gpus": gpus}
    options |= {"address": address, "trusted": trusted or None}
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        known = [each for each, executor in EXECUTORS.items() if name in {field.name for field in fields(executor)}]
        if on not in known:
            flag = "trust-cluster" if name == "trusted" else name
            raise StudyError(f"--{flag} makes sense with --on {' or --on '.join(known)}, not with --on {on}")
        if (name in ("memory", "gpus") and value < 0) or (name in ("memory", "threads", "cpus") and value == 0):
            unit = {"memory": "GB of memory", "gpus": "GPUs", "cpus": "CPUs"}.get(name, name)
            raise StudyError(f"a run cannot need {value} {unit}")
    executor: Executor = EXECUTORS[on](**given)
    return executor


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder for this process alone: two would train the same runs, and clean up what the other one writes."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, _busy(folder)):
        yield


def _busy(folder: Path) -> str:
    return f"another process is running the study in {folder}: wait until it has finished, or choose another folder"


@contextmanager
def _stopped_by_a_full_disk(folder: Path) -> Iterator[None]:
    """A full disk is no result of any run: the study stops, wherever it was, and goes on once there is room."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise NoSpaceError(
            f"the study in {folder} has stopped, since there is no room ({in_bytes(free_bytes(folder))} are free on "
            "its disk); no run counts as failed for it. Make room, and the same command goes on from the checkpoints. "
            f"What came in the way: {error}"
        ) from error


class _StudyRunner:
    """One pass over a study's runs."""

    def __init__(self, study: Study, folder: Path, manifest: Manifest, console: Console, retry_failed: bool) -> None:
        self.study, self.folder, self.manifest = study, folder, manifest
        self.console, self.retry_failed = console, retry_failed

    def run_all(self, places: Places, on: Executor) -> None:
        self._clean_up()
        if self.manifest.table_format != TABLE_FORMAT:  # another version of meq wrote them
            self.manifest = replace(self.manifest, table_format=TABLE_FORMAT)
            self._seal_tables()
        self._reopen_failed()
        self.seal_recorded()
        runs = list(self.study.runs())
        left = [run for run in runs if not is_settled(self.study, self.folder, run)]
        if not left:
            self.console.print(f"{self.study.name}: all {len(runs)} runs are recorded in {self.folder}")
            return
        with shared_features(self.folder, places) if on.elsewhere else nullcontext(places) as shared:
            job = _make_job(self.study, self.folder, left, shared, self.console)
            try:
                with closing(on.work_off(job)) as runs_ended:  # whatever happens here, nothing goes on elsewhere
                    problems = [ended for ended in runs_ended if not self._take_in(ended)]
            except KeyboardInterrupt:
                self.manifest = read_manifest(self.folder)  # it may have been in the midst of sealing a run
                self.seal_recorded()  # and a worker may just have come to an end
                raise
        clear_claims(self.study, self.folder)
        if problems:
            _report(problems, len(left))
        self._refuse_gone(runs)

    def seal_recorded(self) -> None:
        """Seal what is recorded and was not sealed, by a process that was killed or by one elsewhere."""
        for run in self.study.runs():
            if f"{run_place(*run)}/{RECORD}" not in self.manifest.files and is_settled(self.study, self.folder, run):
                self._seal_run(run)

    def _clean_up(self) -> None:
        """What a killed process left half-written; runs under way clean their own folders when they go on."""
        for pattern in (".*.writing", f"{TABLES}/.*.writing", f"{RUNS}/*/.*.writing"):
            remove(self.folder.glob(pattern))
        shutil.rmtree(sharing_place(self.folder), ignore_errors=True)
        clear_claims(self.study, self.folder)

    def _take_in(self, ended: RunEnd) -> bool:
        """Seal a run; False if it has no record to be sealed."""
        if ended.problem is not None:
            return False
        record = self._seal_run(ended.run)
        if record.error is not None:
            self.console.print(f"{in_words(ended.run)} failed: {record.error.message}", markup=False)
        return True

    def _refuse_gone(self, runs: Sequence[Run]) -> None:
        """Somebody may have removed files while others were made: a study without them has not ended well."""
        gone = [run for run in runs if (record := recorded(self.folder / run_place(*run))) is None or not record.over]
        if gone:
            raise StudyError(
                f"{len(gone)} of {len(runs)} runs were removed from {self.folder} while the study was running: "
                f"{'; '.join(map(in_words, gone[:4]))}. The same command makes them again"
            )
        files = [name for name in self.manifest.files if not may_be_absent(name) and not (self.folder / name).is_file()]
        if files:
            raise StudyError(
                f"{len(files)} files were removed from {self.folder} while the study was running, {files[0]} among "
                "them: bring them back, or remove the folder and run the study anew"
            )

    def _reopen_failed(self) -> None:
        """Failed runs are begun anew if that was asked for; those that a full disk stopped go on where they were."""
        for place in (run_place(*run) for run in self.study.runs()):
            record = recorded(self.folder / place)
            if record is None or record.status != FAILED:
                continue
            message = "" if record.error is None else record.error.message
            if self.retry_failed:
                shutil.rmtree(self.folder / place)
            elif any(words in message for words in FULL_WORDS):  # older versions called that a failure
                write_record(self.folder / place, replace(record, status=INTERRUPTED, error=None))
            else:
                continue
            self.manifest = sealed(self.manifest, self.folder, [], without=place)
            self._seal_tables()

    def _seal_run(self, run: Run) -> RunRecord:
        """Remove what only resuming needed, then hash the rest."""
        place = run_place(*run)
        where, record = self.folder / place, read_record(self.folder / place)
        if record.scored:
            shutil.rmtree(where / "checkpoints", ignore_errors=True)
        remove([*where.rglob(".*.writing"), *where.rglob(".saving-*"), where / CLAIM])
        self.manifest = sealed(self.manifest, self.folder, files_below(self.folder, place), without=place)
        self._seal_tables()
        return record

    def _seal_tables(self) -> None:
        records, measured = records_of(self.folder, self.study), measured_of(self.folder, self.study)
        made = table_files(self.study, records, measured, answers=answers_of(self.folder))
        (self.folder / TABLES).mkdir(exist_ok=True)
        for name, content in made.items():
            write_bytes(self.folder / TABLES / name, content)
        remove([path for path in (self.folder / TABLES).iterdir() if path.name not in made])
        self.manifest = sealed(self.manifest, self.folder, files_below(self.folder, TABLES), without=TABLES)
        write_manifest(self.folder, self.manifest)


def _make_job(study: Study, folder: Path, left: Sequence[Run], places: Places, console: Console) -> Job:
    """The runs that are left, with their data; an error if recorded runs saw other data, or an arm cannot be built."""
    prepared = prepare_data(study.data, places)
    records = records_of(folder, study)
    known = {record.data.fingerprint for (arm, _), record in records.items() if not study.arm(arm).blank}
    if known and known != {prepared.data.fingerprint()}:
        raise StudyError(
            f"{folder} holds runs on other data than {prepared.data.name} is now: its fingerprint differs. Give the "
            "data it was begun with, or choose another folder. A version of meq that reads it otherwise makes it other "
            "data, too (see the changelog)"
        )
    check_study(study, prepared)
    return Job(study=study, folder=folder, prepared=prepared, left=left, console=console)


def check_study(study: Study, prepared: PreparedData) -> None:
    """Build every arm once, so that a mistake in the last one shows before the first is trained."""
    check_needs(study)
    for name, options in study.measures.items():
        make_measure(name, options).check(study, prepared)
    for arm in study.arms:
        data = prepared.seen_by(arm)
        build_objective(arm, data)
        build_model(study, arm, data, study.seeds[0])


def _report(problems: Sequence[RunEnd], count: int) -> None:
    """Raise an error that names the runs without a record; the others have been sealed."""
    words = "; ".join(f"{in_words(each.run)}: {each.problem}" for each in problems)
    raise StudyError(
        f"{len(problems)} of {count} runs are missing, the others are recorded. {words}. The same command tries again "
        "what is missing"
    )


def _open(study: Study, folder: Path) -> Manifest:
    """The manifest of a folder that is new, or that holds this very study."""
    if not (folder / STUDY).is_file():
        if folder.exists():
            remove(folder.glob(".*.writing"))
        if folder.exists() and any(folder.iterdir()):
            raise StudyError(f"{folder} is not empty and holds no study: choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / STUDY, study_text(study).encode())
    began = read_study(folder)
    if changed := differences(began, study):
        raise StudyError(
            f"{folder} holds the study {began.name!r}, which differs in {', '.join(changed)} from the one to be run: "
            f"choose another folder, or go on with the one that is there: meq study work {folder}"
        )
    if (folder / MANIFEST).is_file():
        return read_manifest(folder)
    if records_of(folder, study):
        raise StudyError(
            f"{folder} has recorded runs but no {MANIFEST}: it was removed, and the runs cannot be vouched for"
        )
    empty = Manifest(schema=SCHEMA, study=study.name, table_format=TABLE_FORMAT, files={})
    write_manifest(folder, manifest := sealed(empty, folder, [STUDY]))
    return manifest
