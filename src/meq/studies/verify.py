"""The seal of a study's folder, and its verification.

The manifest lists the hash of every file. It is written in one form only and holds a hash of its own content, so that a
byte changed anywhere in it, a space included, is found as surely as one in a file that it lists. `verify` checks that
every file has its hash, that every score follows from the stored answers, and every table from the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meq.data.metrics import UnknownMetricError, metric_named
from meq.models.hub import WEIGHTS
from meq.records import FormatError, SealedFile, plain, read_sealed, refuse_outside, sealed_files, sha256, write_sealed
from meq.studies.compare import Records, answers_of, examples_digest
from meq.studies.measures import measured_of, read_measured
from meq.studies.measures.contract import FOLDER as MEASURES
from meq.studies.measures.contract import MeasureFile, Values
from meq.studies.one_run import read_borrowed
from meq.studies.study import STUDY, TABLES, Study, read_study, run_place
from meq.studies.tables import OLDER_FORMS, TABLE_FORMAT, is_interval_file, table_files
from meq.training.predictions import Predictions, PredictionsError, read_predictions, scores
from meq.training.record import RECORD, HashedFile, RunRecord, read_record, same_score

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the folder held when it was last sealed."""

    schema: int
    study: str
    table_format: int
    """The form of the tables: another version of meq may write them differently."""
    files: Mapping[str, SealedFile]
    """By path, relative to the folder, with forward slashes."""
    seal: str = ""
    """SHA-256 of the manifest without this field."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_sealed(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Manifest:
    """The manifest, if not a byte of it has changed since it was written."""
    path = folder / MANIFEST
    try:
        manifest = read_sealed(Manifest, path)
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing") from error
    refuse_outside(path, manifest.files)
    return manifest


def sealed(manifest: Manifest, folder: Path, files: Iterable[str], *, without: str | None = None) -> Manifest:
    """The manifest with these files hashed again. All others keep their hash, so that a change stays visible.

    Files below the folder `without` are forgotten first.
    """
    kept = {name: entry for name, entry in manifest.files.items() if not (without and name.startswith(f"{without}/"))}
    return replace(manifest, files=dict(sorted({**kept, **sealed_files(folder, files)}.items())))


def may_be_absent(name: str) -> bool:
    """Checkpoints and weights are large: a study can be kept and verified without them."""
    return "/checkpoints/" in name or name.endswith(f"/model/{WEIGHTS}")


def files_below(folder: Path, place: str = "") -> list[str]:
    """Every file, relative to the folder, sorted."""
    below = (folder / place).rglob("*")
    return sorted(path.relative_to(folder).as_posix() for path in below if not path.is_dir() or path.is_symlink())


# -- verification ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A file that is damaged, missing or not expected, or a number that does not follow from the files."""

    file: str
    message: str


@dataclass(kw_only=True)
class Verification:
    """What was checked, and the faults that were found."""

    faults: list[Fault] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    """Checkpoints that are not there."""
    notes: list[str] = field(default_factory=list)
    hashes: int = 0
    metrics: int = 0
    tables: int = 0
    measures: int = 0
    """Taken again, where that was asked for."""

    @property
    def ok(self) -> bool:
        return not self.faults

    def add(self, place: str, part: Verification) -> None:
        """What was found in a folder of this one."""
        self.faults += [replace(fault, file=f"{place}/{fault.file}") for fault in part.faults]
        self.unverified += [f"{place}/{name}" for name in part.unverified]
        self.notes += [f"{place}: {note}" for note in part.notes]
        self.hashes, self.metrics = self.hashes + part.hashes, self.metrics + part.metrics
        self.tables, self.measures = self.tables + part.tables, self.measures + part.measures


def verify(folder: Path, *, require_checkpoints: bool = False) -> Verification:
    """Rehash every file, recompute every metric, rebuild every table. The folder is only read."""
    return _Verifier(folder, require_checkpoints).run()


class _Verifier:
    def __init__(self, folder: Path, require_checkpoints: bool) -> None:
        self.folder, self.require_checkpoints = folder, require_checkpoints
        self.found = Verification()
        self.changed: set[str] = set()
        """Files with a fault, which are not read any further."""
        self.examples: dict[str, bytes] = {}
        """By split: a hash of its ids and targets, which all runs must share."""

    def run(self) -> Verification:
        study = manifest = None
        try:
            study = read_study(self.folder)
        except ValueError as error:
            if not (self.folder / MANIFEST).is_file():
                raise  # not a study at all
            self._fault(STUDY, str(error))
        try:
            manifest = read_manifest(self.folder)
            self._hashes(manifest)
        except FormatError as error:
            self._fault(MANIFEST, str(error))
            self.found.notes.append("without its manifest no file's hash can be checked")
        if study is None:
            return self.found
        records = {run: record for run in study.runs() if (record := self._record(study, *run)) is not None}
        if manifest is not None:
            self._unlisted(manifest, study, records)
        self._same_data(study, records)
        for (arm, seed), record in records.items():
            self._run(run_place(arm, seed), record)
        self._tables(study, records, manifest)
        return self.found

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _hashes(self, manifest: Manifest) -> None:
        for name, entry in manifest.files.items():
            path = self.folder / name
            if path.is_file() and entry.matches(path):
                self.found.hashes += 1
            elif path.is_file():
                self._fault(name, "changed since it was sealed: its SHA-256 differs")
            elif not may_be_absent(name):
                self._fault(name, "missing")
            elif self.require_checkpoints:
                self._fault(name, "missing, and checkpoints are required")
            else:
                self.found.unverified.append(name)

    def _unlisted(self, manifest: Manifest, study: Study, records: Records) -> None:
        """Files that the manifest does not list are faults; those of unfinished runs are only noted."""
        open_runs = {f"{run_place(*run)}/": run for run in study.runs() if run not in records}
        for name in files_below(self.folder):
            if name in manifest.files or name == MANIFEST or name in self.changed:
                continue
            if not any(name.startswith(place) for place in open_runs):
                self._fault(
                    name, "not listed in the manifest: it was added, or the study was interrupted before sealing"
                )
        self.found.notes += [f"{arm}, seed {seed}: no finished record" for arm, seed in open_runs.values()]

    def _record(self, study: Study, arm: str, seed: int) -> RunRecord | None:
        """The record of a run that is over, if it is what the study asks for."""
        place = run_place(arm, seed)
        name = f"{place}/{RECORD}"
        if name in self.changed or not (self.folder / name).is_file():
            return None
        try:
            record = read_record(self.folder / place)
        except ValueError as error:
            self._fault(name, str(error))
            return None
        if not record.over:
            return None
        expected = {"study": study.name, "arm": arm, "config": study.config(arm, seed).to_json()}
        if (borrowed := read_borrowed(self.folder / place)) is not None:
            expected |= {"study": borrowed.study, "arm": borrowed.arm}
            if sha256(self.folder / name) != borrowed.record_sha256:
                self._fault(name, "not the record that was taken over from another study")
        for part, value in expected.items():
            if plain(getattr(record, part)) != plain(value):
                self._fault(name, f"its {part} is not what the study has for {arm}, seed {seed}")
        return record

    def _same_data(self, study: Study, records: Records) -> None:
        """Arms that see the same modalities were trained on the same features."""
        first: dict[tuple[str, ...], str] = {}
        for (arm, seed), record in records.items():
            known = first.setdefault(study.arm(arm).blank, record.data.fingerprint)
            if record.data.fingerprint != known:
                self._fault(f"{run_place(arm, seed)}/{RECORD}", "it was trained on other data than the first run")

    def _run(self, place: str, record: RunRecord) -> None:
        if record.checkpoint is not None:
            self._recorded(place, record.checkpoint, f"model/{WEIGHTS}")
        if record.predictions.keys() != record.metrics.keys():
            self._fault(f"{place}/{RECORD}", "it has not the same splits among its predictions and its metrics")
        for split, file in record.predictions.items():
            if self._recorded(place, file, f"predictions/{split}.parquet") and split in record.metrics:
                self._metrics(place, record, split)

    def _recorded(self, place: str, file: HashedFile, expected: str) -> bool:
        """Whether a file lies where the record says, with the hash that the record has."""
        name = f"{place}/{expected}"
        if file.file != expected:
            self._fault(f"{place}/{RECORD}", f"it places {expected} at {file.file!r}")
        elif name not in self.changed and (self.folder / name).is_file():
            if sha256(self.folder / name) == file.sha256:
                return True
            self._fault(name, "not the file that the record speaks of: its SHA-256 differs")
        return False

    def _metrics(self, place: str, record: RunRecord, split: str) -> None:
        name = f"{place}/predictions/{split}.parquet"
        try:
            predictions = read_predictions(self.folder / name)
            self._examples(name, record, split, predictions)
            metrics = [metric_named(each, record.data.facts) for each in record.metrics[split] if each != "loss"]
            again = scores(metrics, record.objective.task, predictions)
        except UnknownMetricError as error:
            self._fault(f"{place}/{RECORD}", str(error))
            return
        except (PredictionsError, ValueError, RuntimeError, IndexError) as error:
            self._fault(name, f"its metrics cannot be computed: {error}")
            return
        for metric, value in record.metrics[split].items():
            self.found.metrics += 1
            if not same_score(value, again.get(metric, math.nan)):
                self._fault(
                    f"{place}/{RECORD}", f"{metric} on {split} is {value!r}, the predictions give {again[metric]!r}"
                )

    def _examples(self, name: str, record: RunRecord, split: str, predictions: Predictions) -> None:
        """Every run must answer the same examples: all of the split, each once."""
        ids = list(predictions.ids)
        if len(ids) != record.data.splits.get(split) or len(set(ids)) < len(ids):
            self._fault(
                name, f"{len(ids)} answers to {record.data.splits.get(split)} examples, or an id that is there twice"
            )
        digest = examples_digest(predictions)
        if self.examples.setdefault(split, digest) != digest:
            self._fault(name, "its examples or targets are not those of the first run")

    def _tables(self, study: Study, records: Records, manifest: Manifest | None) -> None:
        if any(name.endswith(f"/{RECORD}") for name in self.changed) or STUDY in self.changed:
            self.found.notes.append("the tables were not rebuilt: the study or a record is damaged")
            return
        form = TABLE_FORMAT if manifest is None else manifest.table_format
        if form != TABLE_FORMAT and form not in OLDER_FORMS:
            words = f"written in form {form}, this version of meq writes form {TABLE_FORMAT}: "
            words += "the command that ran the study rebuilds them"
            self._fault(MANIFEST, f"the tables cannot be compared: {words}")
            return
        whole = not any("/predictions/" in name for name in self.changed)
        if not whole:
            self.found.notes.append("the intervals over examples were not rebuilt: answers are damaged")
        measured = self._measured(study, records)
        answers = answers_of(self.folder) if whole else None
        made = (self.folder / TABLES).is_dir() or records
        rebuilt = table_files(study, records, measured, answers=answers, form=form) if made else {}
        there = (
            {Path(name).name for name in files_below(self.folder, TABLES)} if (self.folder / TABLES).is_dir() else set()
        )
        for name in sorted(rebuilt.keys() | there):
            if not whole and is_interval_file(name):
                continue
            place = f"{TABLES}/{name}"
            self.found.tables += 1
            if name not in rebuilt:
                self._fault(place, "it does not follow from the records")
            elif name not in there or (self.folder / place).read_bytes() != rebuilt[name]:
                self._fault(place, "it differs from the table that the records give")

    def _measured(self, study: Study, records: Records) -> dict[str, Values]:
        """Measures must be of the recorded weights, with the options of the study."""
        for run, record in records.items():
            for name, options in study.measures.items():
                place = f"{run_place(*run)}/{MEASURES}/{name}.json"
                measured = read_measured(self.folder / run_place(*run), name)
                if measured is None:
                    if record.scored:
                        self.found.notes.append(f"{run[0]}, seed {run[1]}: {name} was not measured")
                    continue
                checkpoint = record.checkpoint
                if checkpoint is None or measured.weights_sha256 != checkpoint.sha256:
                    self._fault(place, "it was measured on other weights than the record speaks of")
                if plain(measured.options) != plain(options):
                    self._fault(place, "it was measured with other options than the study has")
                self._same_score(place, measured, record)
        return measured_of(self.folder, study)

    def _same_score(self, place: str, measured: MeasureFile, record: RunRecord) -> None:
        """A measure that reads a whole split at the read depth must find the score of the record."""
        found = measured.found
        if measured.measure != "steps" or measured.options.get("limit") is not None or not found:
            return
        scored = record.metrics.get(found["split"], {}).get(found["metric"], math.nan)
        self.found.metrics += 1
        if not math.isclose(scored, found["answer"]["all"], abs_tol=1e-3):
            self._fault(place, f"its score is {found['answer']['all']!r}, the record has {scored!r}")

    def _fault(self, name: str, message: str) -> None:
        self.changed.add(name)
        self.found.faults.append(Fault(file=name, message=message.replace(f"{self.folder / name}: ", "")))
