"""A study is run: what is recorded is skipped, what was interrupted goes on, what fails is recorded as failed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from meq.experiments.bootstrap import answers_of
from meq.experiments.borrow import borrow_runs
from meq.experiments.build import Places, Prepared, build_model, build_objective, check_arm, prepare_data
from meq.experiments.executors.choice import Serial
from meq.experiments.executors.one_run import recorded
from meq.experiments.executors.scheduling import Ended, Executor, Job, in_words
from meq.experiments.manifest import MANIFEST, Manifest, files_below, read_manifest, sealed, write_manifest
from meq.experiments.manifest import SCHEMA as MANIFEST_SCHEMA
from meq.experiments.measures import make_measure, measured_of, read_measured
from meq.experiments.study import STUDY, TABLES, Study, StudyError, differences, read_study, run_place, study_text
from meq.experiments.tables import TABLE_FORMAT, records_of, table_files
from meq.training.files import alone, write_bytes
from meq.training.record import FAILED, RECORD, RunRecord, read_record


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
    manifest = _open(study, folder)
    # two processes in one folder would train the same runs over each other
    with alone(folder / STUDY, f"another process is running the study in {folder}"):
        running = _Running(study, folder, manifest, console, retry_failed)
        borrow_runs(study, folder, reuse, console)
        running.run_all(places or Places(), on or Serial())
    return list(records_of(folder, study).values())


class _Running:
    """One pass over a study's runs."""

    def __init__(self, study: Study, folder: Path, manifest: Manifest, console: Console, retry_failed: bool) -> None:
        self.study, self.folder, self.manifest = study, folder, manifest
        self.console, self.retry_failed = console, retry_failed

    def run_all(self, places: Places, on: Executor) -> None:
        _clean(self.folder.glob(".*.writing"))
        if self.manifest.table_format != TABLE_FORMAT:  # another version of meq wrote them
            self.manifest = replace(self.manifest, table_format=TABLE_FORMAT)
            self._seal_tables()
        runs = list(self.study.runs())
        left = [run for run in runs if not self._settled(*run)]
        if not left:
            self.console.print(f"{self.study.name}: all {len(runs)} runs are recorded in {self.folder}")
            return
        prepared = prepare_data(self.study.data, places)
        self._refuse_other_data(prepared)
        check_study(self.study, prepared)
        job = Job(study=self.study, folder=self.folder, prepared=prepared, left=left, console=self.console)
        with closing(on.work_off(job)) as runs_ended:  # whatever happens here, nothing goes on elsewhere
            problems = [ended for ended in runs_ended if not self._take_in(ended)]
        if problems:
            _report(problems, len(left))

    def _take_in(self, ended: Ended) -> bool:
        """Seal a run; False if it has no record to be sealed."""
        if ended.problem is not None:
            return False
        place = run_place(*ended.run)
        record = read_record(self.folder / place)
        if record.error is not None:
            self.console.print(f"{in_words(ended.run)} failed: {record.error.message}", markup=False)
        self._seal_run(place, record)
        return True

    def _settled(self, arm: str, seed: int) -> bool:
        """Nothing is left to do for this run; one that was recorded but not sealed is sealed now."""
        place = run_place(arm, seed)
        record = recorded(self.folder / place)
        if record is None or not record.over:
            return False
        if record.status == FAILED and self.retry_failed:
            shutil.rmtree(self.folder / place)
            self.manifest = sealed(self.manifest, self.folder, [], without=place)
            self._seal_tables()
            return False
        if record.scored and any(read_measured(self.folder / place, name) is None for name in self.study.measures):
            return False
        if f"{place}/{RECORD}" not in self.manifest.files:
            self._seal_run(place, record)
        return True

    def _refuse_other_data(self, prepared: Prepared) -> None:
        known = {
            record.data.fingerprint
            for (arm, _), record in records_of(self.folder, self.study).items()
            if not self.study.arm(arm).blank
        }
        data = prepared.data
        if known and known != {data.fingerprint()}:
            raise StudyError(
                f"{self.folder} holds runs on other data than {data.name} is now: its fingerprint differs. Give the "
                "data it was begun with, or choose another folder"
            )

    def _seal_run(self, place: str, record: RunRecord) -> None:
        """Remove what only resuming needed, then hash the rest."""
        where = self.folder / place
        if record.scored:
            shutil.rmtree(where / "checkpoints", ignore_errors=True)
        _clean([*where.rglob(".*.writing"), *where.rglob(".saving-*")])
        self.manifest = sealed(self.manifest, self.folder, files_below(self.folder, place), without=place)
        self._seal_tables()

    def _seal_tables(self) -> None:
        records, measured = records_of(self.folder, self.study), measured_of(self.folder, self.study)
        made = table_files(self.study, records, measured, answers=answers_of(self.folder))
        (self.folder / TABLES).mkdir(exist_ok=True)
        for name, content in made.items():
            write_bytes(self.folder / TABLES / name, content)
        _clean([path for path in (self.folder / TABLES).iterdir() if path.name not in made])
        self.manifest = sealed(self.manifest, self.folder, files_below(self.folder, TABLES), without=TABLES)
        write_manifest(self.folder, self.manifest)


def check_study(study: Study, prepared: Prepared) -> None:
    """A mistake in the last arm should not show after a day of training the first."""
    for name, options in study.measures.items():
        make_measure(name, options).check(study, prepared)
    for arm in study.arms:
        data = prepared.seen_by(arm)
        build_objective(arm, data)
        build_model(study, arm, data, study.seeds[0])


def _report(problems: Sequence[Ended], count: int) -> None:
    """What is not there must not be overlooked; what is there has been sealed."""
    words = "; ".join(f"{in_words(each.run)}: {each.problem}" for each in problems)
    raise StudyError(
        f"{len(problems)} of {count} runs are missing, the others are recorded. {words}. The same command tries again "
        "what is missing"
    )


def _open(study: Study, folder: Path) -> Manifest:
    """The manifest of a folder that is new, or that holds this very study."""
    if not (folder / STUDY).is_file():
        if folder.exists():
            _clean(folder.glob(".*.writing"))
        if folder.exists() and any(folder.iterdir()):
            raise StudyError(f"{folder} is not empty and holds no study: choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / STUDY, study_text(study).encode())
    began = read_study(folder)
    if changed := differences(began, study):
        raise StudyError(
            f"{folder} holds the study {began.name!r}, which differs in {', '.join(changed)} from the one to be run: "
            "choose another folder"
        )
    if (folder / MANIFEST).is_file():
        return read_manifest(folder)
    if records_of(folder, study):
        raise StudyError(
            f"{folder} has recorded runs but no {MANIFEST}: it was removed, and the runs cannot be vouched for"
        )
    empty = Manifest(schema=MANIFEST_SCHEMA, study=study.name, table_format=TABLE_FORMAT, files={})
    write_manifest(folder, manifest := sealed(empty, folder, [STUDY]))
    return manifest


def _clean(left_over: Iterable[Path]) -> None:
    """Remove what a killed process, or an earlier state, left behind."""
    for path in left_over:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
