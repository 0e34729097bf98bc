"""A study is run: what is recorded is skipped, what was interrupted goes on, what fails is recorded as failed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from meq.data.contract import DataSet
from meq.experiments.build import build_model, build_objective, prepare_data
from meq.experiments.manifest import MANIFEST, Manifest, files_below, read_manifest, sealed, write_manifest
from meq.experiments.manifest import SCHEMA as MANIFEST_SCHEMA
from meq.experiments.study import STUDY, TABLES, Study, StudyError, differences, read_study, run_place, study_text
from meq.experiments.tables import TABLE_FORMAT, records_of, table_files
from meq.training.files import write_bytes
from meq.training.fit import Training
from meq.training.record import FAILED, RECORD, Provenance, RunRecord, read_record


def run_study(
    study: Study,
    folder: Path | str,
    *,
    data_root: Path | None = None,
    store: Path | None = None,
    retry_failed: bool = False,
    console: Console | None = None,
) -> list[RunRecord]:
    """Run what is still to be run, one after the other, and return all records; failed ones are among them.

    `data_root` is the folder of the data set, where it has one; `store` keeps features. Runs that failed are left as
    they are, or begun anew with `retry_failed`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise StudyError("a study runs in one process; train single runs on several with `meq train`")
    folder, console = Path(folder), console or Console(stderr=True)
    manifest = _open(study, folder)
    with _alone(folder):
        running = _Running(study, folder, manifest, console, retry_failed)
        running.run_all(data_root, store)
    return list(records_of(folder, study).values())


def train_run(
    study: Study, folder: Path, run: tuple[str, int], *, data: DataSet, provenance: Provenance, console: Console
) -> RunRecord:
    """One run, begun or resumed, to its record; a failure is in the record, and raised only if there is none.

    Nothing outside of the run's own folder is written: several processes may work on several runs.
    """
    name, seed = run
    arm, place = study.arm(name), folder / run_place(name, seed)
    model, objective = build_model(study, arm, data, seed), build_objective(arm, data)
    provenance = replace(provenance, study=study.name, arm=name)
    training = Training(model, data, objective, place, study.config(name, seed), console, provenance=provenance)
    try:
        training.run(resume=True)
    except Exception:
        record = _recorded(place)
        if record is None or record.status != FAILED:
            raise  # it could not begin or go on: nothing that belongs into a table
    return read_record(place)


class _Running:
    """One pass over a study's runs."""

    def __init__(self, study: Study, folder: Path, manifest: Manifest, console: Console, retry_failed: bool) -> None:
        self.study, self.folder, self.manifest = study, folder, manifest
        self.console, self.retry_failed = console, retry_failed

    def run_all(self, data_root: Path | None, store: Path | None) -> None:
        _clean(self.folder.glob(".*.writing"))
        if self.manifest.table_format != TABLE_FORMAT:  # another version of meq wrote them
            self.manifest = replace(self.manifest, table_format=TABLE_FORMAT)
            self._seal_tables()
        runs = list(self.study.runs())
        left = [run for run in runs if not self._settled(*run)]
        if not left:
            self.console.print(f"{self.study.name}: all {len(runs)} runs are recorded in {self.folder}")
            return
        data, provenance = prepare_data(self.study.data, data_root, store=store)
        self._refuse_other_data(data)
        for arm in self.study.arms:  # a mistake in the last arm should not show after a day of training the first
            build_objective(arm, data)
            build_model(self.study, arm, data, self.study.seeds[0])
        for arm_name, seed in left:
            self.console.print(f"run {runs.index((arm_name, seed)) + 1} of {len(runs)}: {arm_name}, seed {seed}")
            record = train_run(
                self.study, self.folder, (arm_name, seed), data=data, provenance=provenance, console=self.console
            )
            if record.error is not None:
                self.console.print(f"{arm_name}, seed {seed} failed: {record.error.message}", markup=False)
            self._seal_run(run_place(arm_name, seed), record)

    def _settled(self, arm: str, seed: int) -> bool:
        """Nothing is left to do for this run; one that was recorded but not sealed is sealed now."""
        place = run_place(arm, seed)
        record = _recorded(self.folder / place)
        if record is None or not record.over:
            return False
        if record.status == FAILED and self.retry_failed:
            shutil.rmtree(self.folder / place)
            self.manifest = sealed(self.manifest, self.folder, [], without=place)
            self._seal_tables()
            return False
        if f"{place}/{RECORD}" not in self.manifest.files:
            self._seal_run(place, record)
        return True

    def _refuse_other_data(self, data: DataSet) -> None:
        known = {record.data.fingerprint for record in records_of(self.folder, self.study).values()}
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
        made = table_files(self.study, records_of(self.folder, self.study))
        (self.folder / TABLES).mkdir(exist_ok=True)
        for name, content in made.items():
            write_bytes(self.folder / TABLES / name, content)
        _clean([path for path in (self.folder / TABLES).iterdir() if path.name not in made])
        self.manifest = sealed(self.manifest, self.folder, files_below(self.folder, TABLES), without=TABLES)
        write_manifest(self.folder, self.manifest)


def _recorded(place: Path) -> RunRecord | None:
    return read_record(place) if (place / RECORD).is_file() else None


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


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes in one folder would train the same runs over each other."""
    with open(folder / STUDY, "rb") as file:
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StudyError(f"another process is running the study in {folder}") from error
        yield
