"""The way from raw data to features that a model reads: encode what needs it, standardise what is to be.

Training, studies, measures and trained runs all go this way, so that new data is treated as that of training was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from meq.data.contract import DataSet
from meq.data.findings import Finding, Findings
from meq.data.request import DataRequest
from meq.data.splitting import CALIBRATION
from meq.data.table_files import is_table
from meq.data.transforms import Standardisation, standardise
from meq.devices import chosen_device
from meq.encoders import Encoder
from meq.encoders.catalogue import OFFLINE, check_request, encoders_by_kind, preferred_names
from meq.encoders.contract import Progress
from meq.encoders.encode import encode_and_count
from meq.encoders.store import FeatureStore, StoreError
from meq.training.profile import profile_of
from meq.training.record import Provenance, RunRequest, read_request

Asked = TypeVar("Asked", bound=DataRequest)

FEATURES = "features"
"""The folder, in that of a run, of the features that it was trained on, unless it was given another store."""
CALIBRATED = 0.5
"""The share of a table's dev split that is kept apart for calibration, where that leaves rows enough to either."""
LISTED_ROWS = 5
"""How many bad rows are named one by one."""


def prepare(
    raw: DataSet,
    encoders: Mapping[str, Encoder],
    *,
    standardised: Standardisation | Collection[str] | None = None,
    store: FeatureStore | Path | None = None,
    findings: Findings | None = None,
    progress: Progress | None = None,
) -> tuple[DataSet, Standardisation | None]:
    """Encode by modality, and standardise by known statistics or by those of the train split.

    `standardised` is what training came to, or names the modalities to take statistics of; others stay as they are.
    With a `store` the encoders' features are kept there. `findings` decides what a content that cannot be encoded does,
    and is told of it.
    """
    if not encoders:
        return _standardise(raw, standardised)
    names = standardised.mean if isinstance(standardised, Standardisation) else standardised or ()
    # Either order gives the same features. Numbers go first: encoded rows know their fingerprint without being read,
    # as long as nothing changes them afterwards.
    numbers_only = encoders.keys().isdisjoint(names)
    data, statistics = _standardise(raw, standardised) if numbers_only else (raw, None)
    findings = Findings() if findings is None else findings
    encoded = encode_and_count(data, encoders, store=store, on_bad=findings.on_bad, progress=progress)
    findings.kept += encoded.findings.kept
    findings.counts.update(encoded.findings.counts)
    return (encoded.data, statistics) if numbers_only else _standardise(encoded.data, standardised)


def _standardise(
    data: DataSet, standardised: Standardisation | Collection[str] | None
) -> tuple[DataSet, Standardisation | None]:
    if standardised is not None and not isinstance(standardised, Standardisation):
        scaled = {name: modality for name, modality in data.modalities.items() if name in standardised}
        standardised = standardise(replace(data, modalities=scaled))[1] if scaled else None
    return (data, None) if standardised is None else (standardised.apply(data), standardised)


def own_store(run: Path) -> FeatureStore:
    """The store in a run's folder: in full precision, so that what is read is what the encoders gave to the digit."""
    return FeatureStore(folder=run / FEATURES, dtype="float32")


def prepare_request(
    request: DataRequest,
    encoders: Mapping[str, str | None],
    *,
    store: Path | None = None,
    run: Path | None = None,
    skip_bad: bool = False,
    standardised: bool = True,
    device: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda words: None,
    check: Callable[[DataSet], None] = lambda data: None,
    kept: RunRequest | None = None,
) -> tuple[DataSet, Provenance]:
    """The data set that was asked for, read and encoded, and where its features come from.

    `encoders` maps kinds of content to encoders' names. What has none of its own gets an encoder whose weights came
    with pip if it is installed, unless the set is drawn by a program, and otherwise the built-in one of its kind. A run
    that is resumed keeps the encoders of its request, `kept`. Numbers that come with the
    data are standardised by the train split; what encoders make is left as it is. Features are kept in the `store`, or
    else in the folder of the `run` that is trained on them, or else in memory. Encoders run on the `device`. `say` is
    told what is done. `check` may refuse the data once it is read and before it is encoded. Of a table that a `run` is
    trained on, a part of dev is kept apart for calibration, unless the request says otherwise.
    """
    if run is not None:
        before = read_request(run)
        request = keeping_apart(request, None if before is None else before.options)
    check_request(request, encoders)
    findings = Findings("skip" if skip_bad else "raise")
    raw = request.open(findings)
    check(raw)
    for words in findings.notes:
        say(words)
    if is_table(request.data) and CALIBRATION in raw.splits:
        dev, apart = len(raw.splits["dev"]), len(raw.splits[CALIBRATION])
        say(f"calibration: {apart:,} rows choose nothing and are kept apart for probabilities; dev: {dev:,}")
    asked = {kind: name for kind, name in encoders.items() if name is not None}
    named = preferred_names(request, raw, asked) if kept is None else {**kept.encoders, **asked}
    chosen = encoders_by_kind(raw, named, device=chosen_device(device))
    if chosen:
        say("encoders: " + ", ".join(f"{modality} by {encoder.name}" for modality, encoder in chosen.items()))
        missing = [kind for kind in OFFLINE if kind in named and kind not in asked and named[kind] != OFFLINE[kind]]
        if missing:
            say(f"better encoders of {' and '.join(missing)} come with: pip install 'meq[offline]'")
    numbers = [name for name, modality in raw.modalities.items() if modality.kind == "features"]
    scaled = numbers if standardised else None
    ready = partial(prepare, raw, chosen, standardised=scaled, findings=findings, progress=progress)
    if store is not None or run is None:
        data, statistics = ready(store=store)
    else:
        try:
            data, statistics = ready(store=own_store(run))
        except StoreError as error:  # nobody asked for it: what cannot be kept is no reason not to train
            say(f"features are not kept: {error}")
            data, statistics = ready()
    say_left_out(findings, say)
    source = raw if statistics is None else statistics.apply(raw)
    provenance = Provenance(
        source_fingerprint=source.fingerprint() if chosen else None,
        standardisation=statistics,
        kinds={name: encoder.kind for name, encoder in chosen.items()},
        specs={name: encoder.spec for name, encoder in chosen.items()},
        profile=profile_of(raw),
        request=RunRequest(**vars(request), encoders=dict(named), store=store, skip_bad=skip_bad),
    )
    return data, provenance


def keeping_apart(request: Asked, began: Mapping[str, Any] | None) -> Asked:
    """The request with a share of dev for calibration, unless it says one itself.

    `began` are the options of what is gone on with, None for what is new: what was begun without goes on without.
    """
    if not is_table(request.data) or CALIBRATION in request.options:
        return request
    share = CALIBRATED if began is None else began.get(CALIBRATION, 0.0)
    return replace(request, options={**request.options, CALIBRATION: share}) if share else request


def say_left_out(findings: Findings | Sequence[Finding], say: Callable[[str], None]) -> None:
    """How many rows were left out, and the first of them with their places."""
    if not len(findings):
        return
    say(f"left out as bad: {len(findings):,}")
    for finding in islice(findings, LISTED_ROWS):
        say(f"  {finding}")
    if len(findings) > LISTED_ROWS:
        say(f"  and {len(findings) - LISTED_ROWS:,} more")
