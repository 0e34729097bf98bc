"""Data for a trained run: its own, read again wherever that is described, or new data that goes the same way.

What a run was trained on is described in one of three places: the request.json in its folder (`meq train`,
`train_on`), the study.json of the study it lies in, or, for a data set that is made on the spot, its record. Its
encoders are made again from what its task.json says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from meq.data.contract import DataSet, Modality, Split, features
from meq.data.findings import DataError, Findings, OnBad
from meq.data.frames import TABLE
from meq.data.metrics import ACCURACY
from meq.data.request import DATA_SETS, DataRequest, open_data
from meq.data.table import SingleColumns, TableSchema, has_column, new_rows
from meq.data.table_files import is_table
from meq.data.transforms import blank
from meq.devices import device_of
from meq.encoders import Encoder
from meq.encoders.catalogue import EncoderError, encoder_from_spec, specs_from_name
from meq.encoders.contract import Progress
from meq.encoders.known import REMEMBERED, KnownEncoder
from meq.encoders.store import FeatureStore, Identity, ReadOnlyStore
from meq.options import nearest
from meq.runs.load import TrainedRun
from meq.studies.build import Places, open_raw
from meq.studies.study import STUDY, ArmConfig, StudyError, read_study
from meq.training.prepare import own_store, prepare
from meq.training.record import EncoderFacts, RunRequest


class UnknownDataError(StudyError):
    """Nothing that was kept of a run says what it was trained on."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How data is read and encoded."""

    on_bad: OnBad = "raise"
    """What a bad row does: it is an error, or it is skipped."""
    encoders: Mapping[str, str | None] | None = None
    """By kind of content: names or folders of encoders that lie elsewhere than in training, see `encoders_of_run`."""
    store: Path | None = None
    """A feature store to read and to keep in what is new; unless given, that of training is read and not changed."""
    progress: Progress | None = None
    """Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """A data set as features that the run's model reads."""

    data: DataSet
    same: bool
    """It is the very data that the run was trained and scored on, by its fingerprint."""
    left_out: Findings
    """Rows that could not be read or encoded, where those are skipped."""
    raw: DataSet
    """The same before it was encoded."""
    encoders: Mapping[str, Encoder]
    """What encoded it, by modality."""


def run_data(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    labelled: bool | None = True,
    reading: ReadOptions = ReadOptions(),  # noqa: B008
) -> RunData:
    """The data that the run was trained on; or a table with the same columns, or a data set by name.

    `root` is where the data, or what it lies in, has moved to. A table has one split, "all", or those of the column
    that the run's own splits came from, if it has one. `labelled` None means: if it has the column of labels.
    """
    request = run.request
    if data is None and request is not None and request.skip_bad:
        reading = replace(reading, on_bad="skip")
    findings = Findings(reading.on_bad)
    given = {kind: name for kind, name in (reading.encoders or {}).items() if name is not None}
    if data is not None and is_table(data):
        encoders = encoders_of_run(run, chosen=given)
        raw = _other_table(run, data, encoders, root=root, labelled=labelled, findings=findings)
    else:
        raw = (
            raw_data(run, root=root, findings=findings)
            if data is None
            else _other_set(run, data, root=root, findings=findings)
        )
        study = study_of(run)
        named = {} if study is None else read_study(study).data.encoders
        by_kind = {run.task.kinds[name]: encoder for name, encoder in named.items() if name in run.task.kinds}
        encoders = encoders_of_run(run, chosen={**by_kind, **given})
    ready = as_features(run, raw, encoders, findings=findings, reading=reading)
    arm = arm_of(run) if data is None else None
    if arm is not None and arm.blank:
        ready = blank(ready, arm.blank)
    return RunData(data=ready, same=_is_data_of(run, raw, ready), left_out=findings, raw=raw, encoders=encoders)


def _is_data_of(run: TrainedRun, raw: DataSet, data: DataSet) -> bool:
    """Whether this is the data of training, by the fingerprint of what was encoded, or of features that came so."""
    source, scaling = run.task.source_fingerprint, run.task.standardisation
    if source is None:
        return data.fingerprint() == run.task.data_fingerprint
    if scaling is not None and scaling.mean.keys().isdisjoint(run.task.encoders):
        raw = scaling.apply(raw)  # numbers that came with the data are standardised before the rest is encoded
    return raw.fingerprint() == source


# -- reading it --------------------------------------------------------------------------------------------------------


def raw_data(
    run: TrainedRun,
    *,
    root: Path | None = None,
    findings: Findings | None = None,
    sizes: Mapping[str, int] | None = None,
) -> DataSet:
    """What the run was trained on, read again and not encoded; `root` where it has moved to.

    `findings` decides what a bad row does; unless given, what it did in training. Of a data set that is made on the
    spot, `sizes` are made by split: thousands take long where a few examples will do.
    """
    request, study = run.request, study_of(run)
    if request is not None:
        request = own_table(request, run.place)
        if is_table(request.data) and not Path(request.data).is_file():
            raise DataError(
                f"{request.data}, which the run was trained on, is not here: give the table's place after the run's"
            )
        findings = Findings("skip" if request.skip_bad else "raise") if findings is None else findings
        options = {**request.options, **_sizes_of(request.data, sizes)}
        if is_table(request.data) and request.task is None:
            options.setdefault("task", run.task.head)  # what was settled in training is not asked again
        return replace(request, root=root or request.root, options=options).open(findings)
    if study is not None:
        config = read_study(study).data
        return open_raw(replace(config, options={**config.options, **_sizes_of(config.name, sizes)}), Places(data=root))
    name, few = run.task.data, _sizes_of(run.task.data, sizes)
    if (run.record is not None or few) and name in DATA_SETS and DATA_SETS[name].embedded:
        facts = {} if run.record is None else run.record.data.facts
        options = {option: facts[option] for option in DATA_SETS[name].options if option in facts}
        return open_data(name, **{**options, **few})
    raise UnknownDataError(
        f"{run.folder.parent} does not say what it was trained on: it has no request.json, and is no run of a "
        "study. Give a data set or a table after it; what `meq train`, `train_on` or a study trains says it itself"
    )


def own_table(request: RunRequest, place: Path | None) -> RunRequest:
    """The request of a run on a table in memory, whose file goes where the run's folder goes."""
    given = Path(request.data)
    if place is None or given.name != TABLE or given.is_file() or not (place / TABLE).is_file():
        return request
    root = place if request.root == given.parent else request.root
    return replace(request, data=str(place / TABLE), root=root)


def study_of(run: TrainedRun) -> Path | None:
    """The folder of the study that a run belongs to."""
    return study_above(run.folder.parent) if run.record is not None and run.record.study is not None else None


def study_above(run: Path) -> Path | None:
    """The folder of the study that a run's folder lies in."""
    parents = run.resolve().parents
    return parents[2] if len(parents) > 2 and (parents[2] / STUDY).is_file() else None


def arm_of(run: TrainedRun) -> ArmConfig | None:
    """The arm of the run's study, which may set a solver or blank a modality; None for a run of no study.

    By the run's place, not by its record: a run that was taken over from another study has that one's name for its arm.
    """
    folder = study_of(run)
    if folder is None:
        return None
    study, name = read_study(folder), run.folder.resolve().parents[1].name
    known = [arm.name for arm in study.arms]
    if name not in known:
        raise StudyError(f"{folder} has no arm {name!r}, in whose folder the run lies: {nearest(name, known)}")
    return study.arm(name)


def _sizes_of(name: str, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """The sizes that a data set has options for, if it is made on the spot."""
    if name not in DATA_SETS or not DATA_SETS[name].embedded:
        return {}
    return {option: size for option, size in (sizes or {}).items() if option in DATA_SETS[name].options}


def _other_set(run: TrainedRun, name: str, *, root: Path | None, findings: Findings) -> DataSet:
    """A data set by its name, with the labels of training."""
    request = run.request
    options = request.options if request is not None and request.data == name else {}
    opened = DataRequest(data=name, root=root, options=options).open(findings)
    if tuple(opened.labels) != run.labels:
        theirs, ours = (
            ", ".join(list(labels)[:8]) + (", ..." if len(labels) > 8 else "") for labels in (opened.labels, run.labels)
        )
        raise StudyError(f"{name} has the labels {theirs}, the run {ours}")
    return opened


def _other_table(
    run: TrainedRun,
    path: str,
    encoders: Mapping[str, Encoder],
    *,
    root: Path | None,
    labelled: bool | None,
    findings: Findings,
) -> DataSet:
    """A table with the columns of training; id and split are read where it has those columns too."""
    request, options = run.request, table_options(run)
    if root is None and request is not None and request.data == path:
        root = request.root  # the run's own table begins where it did in training, another one in its folder
    label, delimiter = run.task.label or "label", options.get("delimiter")
    if labelled is None:
        labelled = has_column(path, label, delimiter=delimiter)
    wanted = {"id": options.get("id"), "split": None if request is None else request.split}
    there = {
        name: column if column and has_column(path, column, delimiter=delimiter) else None
        for name, column in wanted.items()
    }
    single = SingleColumns(label=label if labelled else None, group=None, **there)
    return table_rows(run, path, single, encoders, root=root, findings=findings)


def table_rows(
    run: TrainedRun,
    path: Path | str,
    single: SingleColumns,
    encoders: Mapping[str, Encoder],
    *,
    root: Path | None,
    findings: Findings,
) -> DataSet:
    """The rows of a table with the columns of training; for a run on other data, columns are named as modalities."""
    widths, options = run.task.widths, table_options(run)
    known = TableSchema(
        columns={name: run.task.columns.get(name, (name,)) for name in widths},
        kinds={name: encoders[name].kind if name in encoders else "features" for name in widths},
        widths=widths,
        head=run.task.head,
        labels=run.labels,
        separator=str(options.get("separator", "|")),
    )
    return new_rows(path, known, root=root, single=single, delimiter=options.get("delimiter"), findings=findings)


def as_features(
    run: TrainedRun,
    raw: DataSet,
    encoders: Mapping[str, Encoder],
    *,
    findings: Findings | None = None,
    reading: ReadOptions = ReadOptions(),  # noqa: B008
) -> DataSet:
    """Raw data as the run's model reads it: encoded, and standardised by the statistics of training.

    What training has encoded is read from its store, and not encoded again.
    """
    scaling, store = run.task.standardisation, kept_features(run) if reading.store is None else reading.store
    findings = Findings(reading.on_bad) if findings is None else findings
    return prepare(raw, encoders, standardised=scaling, store=store, findings=findings, progress=reading.progress)[0]


def examples_as_features(run: TrainedRun, examples: Split, encoders: Mapping[str, Encoder] | None = None) -> Split:
    """Examples as the run's model reads them; a modality without an encoder holds features already."""
    encoders = encoders or {}
    modalities: dict[str, Modality] = {name: features(width) for name, width in run.task.widths.items()}
    modalities |= {name: Modality(kind=encoder.kind) for name, encoder in encoders.items()}  # type: ignore[arg-type]
    data = DataSet(
        name="new",
        splits={"new": examples},
        modalities=modalities,
        labels=run.labels,
        head=run.task.head,
        metric=ACCURACY,
    )
    return as_features(run, data, encoders).splits["new"]


def chosen_split(data: DataSet, split: str) -> DataSet:
    """The data set with one of its splits only."""
    if split not in data.splits:
        raise StudyError(f"{data.name} has no split {split!r}: {nearest(split, data.splits)}")
    return replace(data, splits={split: data.splits[split]})


def table_options(run: TrainedRun) -> Mapping[str, Any]:
    """The options that the run's own table was read with; none for a run on other data."""
    return {} if run.request is None or not is_table(run.request.data) else run.request.options


# -- what training has encoded, and the encoders it was done by --------------------------------------------------------


def kept_features(run: TrainedRun) -> ReadOnlyStore | None:
    """The features that the run was trained on, to be read only; None where they were not kept, or are gone.

    The store that training was told to use, or else the one in the run's folder, which goes where the run goes.
    """
    if run.place is None:
        return None
    request = run.request
    if request is not None and request.store is not None:
        return read_only(request.store)
    kept = own_store(run.place)
    return ReadOnlyStore(folder=kept.folder, dtype=kept.dtype) if kept.folder.is_dir() else None


def read_only(folder: Path) -> ReadOnlyStore | None:
    """A store of features that nothing is added to; None where it is not there."""
    kept = FeatureStore(folder=folder)
    return ReadOnlyStore(folder=kept.folder, dtype=kept.dtype) if kept.folder.is_dir() else None


def encoders_of_run(
    run: TrainedRun,
    *,
    chosen: Mapping[str, str | None] | None = None,
    batch_size: int = 32,
    device: str | None = None,
    remember: int = REMEMBERED,
    store: Path | None = None,
) -> dict[str, KnownEncoder]:
    """Every encoder that the run's features were made by, by modality, checked by revision and hash.

    Each reads what training has encoded, and the last `remember` contents that it was asked for, instead of encoding
    them again; where the features of training are kept, it is loaded when something else comes. `chosen` maps kinds of
    content (image, text, audio, regions) to names or folders, for models that lie elsewhere than they did in training.
    What cannot be had, or is another one, is an error that says what to install or to give. A `store` that is given is
    read in place of that of training. They compute on the `device`; where the run's model does, unless one is named.
    """
    device = str(device_of(run.model)) if device is None else device
    folders = dict(run.request.encoders) if run.request is not None else {}
    named = {kind: name for kind, name in (chosen or {}).items() if name is not None}
    made: dict[tuple[EncoderFacts, str | None], KnownEncoder] = {}
    kept = kept_features(run) if store is None else read_only(store)
    for modality, facts in run.task.encoders.items():
        kind = run.task.kinds.get(modality)
        if (facts, kind) not in made:
            load = partial(_encoder, run, modality, {**folders, **named}, batch_size=batch_size, device=device)
            dtype, width = "float32" if kept is None else kept.dtype, run.task.widths[modality]
            known = Identity(
                name=facts.name,
                revision=facts.revision,
                weight_hash=facts.sha256,
                kind=kind or "",
                width=width,
                dtype=dtype,
            )
            encoder = KnownEncoder(known, load, store=kept, remember=remember)
            if kept is None or kind in named or not (kept.folder / known.folder).is_dir():
                loaded = load()  # what is wrong with it is said now
                encoder = KnownEncoder(
                    Identity.of(loaded, dtype), partial(_same, loaded), store=kept, remember=remember
                )
            made[facts, kind] = encoder
    return {name: made[facts, run.task.kinds.get(name)] for name, facts in run.task.encoders.items()}


def _same(encoder: Encoder) -> Encoder:
    return encoder


def _encoder(run: TrainedRun, modality: str, folders: Mapping[str, str], *, batch_size: int, device: str) -> Encoder:
    """The first that is the one of training; else the error of the likeliest."""
    expected, problem = run.task.encoders[modality], None
    if modality in run.task.specs:
        specs = [spec for spec in [run.task.specs[modality]] if spec]  # none where the encoder had none
    else:  # of an older run: those that fit the encoder's name
        kind = run.task.kinds.get(modality)
        specs = [*specs_from_name(expected.name, expected.revision, kind=kind, modality=modality)]
    for spec in specs:
        try:
            encoder = encoder_from_spec(spec, folder=folders.get(spec["kind"]), batch_size=batch_size, device=device)
            check_encoder(modality, encoder, expected)
            return encoder
        except (EncoderError, StudyError, ImportError) as error:
            problem = problem or error
    reason = problem or (
        "Its class was not registered when the run was trained (meq.encoders.register_encoder): give the encoder itself"
    )
    raise EncoderError(f"{modality!r} was encoded by {_shown(expected)}, which cannot be had here. {reason}")


def check_encoder(modality: str, encoder: Encoder, expected: EncoderFacts) -> None:
    """An error if it is not the encoder that the modality was encoded by in training."""
    given = EncoderFacts(name=encoder.name, revision=encoder.revision, sha256=encoder.weight_hash)
    if given != expected:
        raise StudyError(
            f"{modality!r} was encoded by {_shown(expected)} in training, and {_shown(given)} is something else"
        )


def _shown(facts: EncoderFacts) -> str:
    return f"{facts.name} ({facts.revision}, {facts.sha256[:12]})"
