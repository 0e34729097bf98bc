"""Data for a trained run: its own, read again, or new data that goes the way its own went in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.findings import Finding, Findings, OnBad
from meq.data.request import DataRequest
from meq.data.table_files import is_table
from meq.data.table_new import Known, has_column, new_rows
from meq.data.table_rows import SingleColumns
from meq.encoders import Encoder
from meq.encoders.encode import encode_and_count
from meq.encoders.survey import Progress
from meq.experiments.build import Places, prepare_data
from meq.experiments.runs.encoders import encoders_of_run
from meq.experiments.runs.load import TrainedRun
from meq.experiments.runs.raw import arm_of, own_study, raw_data
from meq.experiments.study import StudyError, read_study


@dataclass(frozen=True, kw_only=True, eq=False)
class Ready:
    """A data set as features that the run's model reads."""

    data: DataSet
    same: bool
    """It is the very data that the run was trained and scored on, by its fingerprint."""
    left_out: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data is read: what a bad row does, which encoders lie elsewhere, where features are kept, who is told."""

    on_bad: OnBad = "raise"
    encoders: Mapping[str, str | None] | None = None
    """By kind of content: names or folders, see `encoders_of_run`."""
    store: Path | None = None
    progress: Progress | None = None


def own_data(run: TrainedRun, *, root: Path | None = None, reading: Reading = Reading()) -> Ready:  # noqa: B008
    """The data that the run was trained on; `root` where it, or what it lies in, has moved."""
    request = run.request
    if request is None:
        return _of_study(run, root, reading)
    kept = Path(request.store) if request.store is not None and Path(request.store).is_dir() else None
    reading = replace(
        reading,
        on_bad="skip" if request.skip_bad else reading.on_bad,
        store=kept if reading.store is None else reading.store,
    )
    findings = Findings(reading.on_bad)
    return _ready(run, raw_data(run, root=root, findings=findings), findings, reading)


def other_data(
    run: TrainedRun,
    data: str,
    *,
    root: Path | None = None,
    labelled: bool | None = True,
    reading: Reading = Reading(),  # noqa: B008
) -> Ready:
    """Another table with the same columns, or a data set by name.

    A table has one split, "all", or those of the column that the run's own splits came from, if it has one. `labelled`
    None means: if it has the column of labels.
    """
    findings = Findings(reading.on_bad)
    if not is_table(data):
        options = run.request.options if run.request is not None and run.request.data == data else {}
        opened = DataRequest(data=data, root=root, options=options).open(findings)
        if tuple(opened.labels) != run.labels:
            raise StudyError(f"{data} has the labels {_listed(opened.labels)}, the run {_listed(run.labels)}")
        return _ready(run, opened, findings, reading)
    encoders = encoders_of_run(run, chosen=reading.encoders)
    single = _single(run, data, labelled)
    options = _table_options(run)
    rows = new_rows(
        data,
        known_of(run, encoders),
        root=root or _same_root(run, data),
        single=single,
        delimiter=options.get("delimiter"),
        findings=findings,
    )
    return _ready(run, rows, findings, reading, encoders)


def known_of(run: TrainedRun, encoders: Mapping[str, Encoder]) -> Known:
    """What training settled about its table. For a run on other data, columns are named as its modalities."""
    widths = run.task.widths
    return Known(
        columns={name: run.task.columns.get(name, (name,)) for name in widths},
        kinds={name: encoders[name].kind if name in encoders else "features" for name in widths},
        widths=widths,
        head=run.task.head,
        labels=run.labels,
        separator=str(_table_options(run).get("separator", "|")),
    )


def as_features(
    run: TrainedRun,
    data: DataSet,
    encoders: Mapping[str, Encoder],
    *,
    reading: Reading = Reading(),  # noqa: B008
) -> tuple[DataSet, DataSet, list[Finding]]:
    """The data as it is encoded and as the model reads it, standardised as in training; and what was left out."""
    scaling = run.task.standardisation
    first = scaling is not None and scaling.mean.keys().isdisjoint(encoders)
    source = scaling.apply(data) if scaling is not None and first else data
    made, findings = source, []
    if encoders:
        done = encode_and_count(source, encoders, store=reading.store, on_bad=reading.on_bad, progress=reading.progress)
        made, findings = done.data, list(done.findings)
    return source, made if scaling is None or first else scaling.apply(made), findings


def chosen_split(data: DataSet, split: str) -> DataSet:
    """The data set with one of its splits only."""
    if split not in data.splits:
        raise StudyError(f"{data.name} has no split {split!r}: {nearest(split, data.splits)}")
    return replace(data, splits={split: data.splits[split]})


def _ready(
    run: TrainedRun,
    data: DataSet,
    findings: Findings,
    reading: Reading,
    encoders: Mapping[str, Encoder] | None = None,
) -> Ready:
    encoders = encoders_of_run(run, chosen=reading.encoders) if encoders is None else encoders
    source, made, more = as_features(run, data, encoders, reading=reading)
    expected = run.task.source_fingerprint or run.task.data_fingerprint
    return Ready(data=made, same=source.fingerprint() == expected, left_out=(*findings, *more))


def _of_study(run: TrainedRun, root: Path | None, reading: Reading) -> Ready:
    """A run of a study, which says in its own folder what its runs were trained on, and what an arm sees of it."""
    prepared = prepare_data(read_study(own_study(run)).data, Places(data=root, store=reading.store))
    arm = arm_of(run)
    data = prepared.data if arm is None else prepared.seen_by(arm)
    found = prepared.provenance.source_fingerprint or data.fingerprint()
    return Ready(data=data, same=found == (run.task.source_fingerprint or run.task.data_fingerprint))


def _single(run: TrainedRun, path: str, labelled: bool | None) -> SingleColumns:
    """The columns of label, id and split, as in training; of splits only where the table has them."""
    request, options = run.request, _table_options(run)
    delimiter = options.get("delimiter")
    wanted = {"id": options.get("id"), "split": None if request is None else request.split}
    found = {
        name: column if column and has_column(path, column, delimiter=delimiter) else None
        for name, column in wanted.items()
    }
    label = run.task.label or "label"
    if labelled is None:
        labelled = has_column(path, label, delimiter=delimiter)
    return SingleColumns(label=label if labelled else None, group=None, **found)


def _same_root(run: TrainedRun, path: str) -> Path | None:
    """For the run's own table, the root of training; for another one, its own folder."""
    request = run.request
    own = request is not None and request.root is not None and request.data == path
    return Path(str(request.root)) if request is not None and own else None


def _table_options(run: TrainedRun) -> Mapping[str, Any]:
    return {} if run.request is None or not is_table(run.request.data) else run.request.options


def _listed(labels: Any) -> str:
    return ", ".join(list(labels)[:8]) + (", ..." if len(labels) > 8 else "")
