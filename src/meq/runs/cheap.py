"""The cheap baselines of a comparison on disk: what they answered, and how they came to it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meq.data.contract import DataSet
from meq.records import SCHEMA, FormatError, read_cached, sha256, write_sealed
from meq.runs.pooled import Baseline, Pooled, PooledError, left_out, pool, recipes
from meq.training.predictions import Predictions, labelled, read_predictions, write_predictions
from meq.training.record import HashedFile

BASELINES = "baselines"
FILE = "baselines.json"


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A baseline that was fitted, and where its answers are."""

    name: str
    kind: str
    """constant, one modality, linear or trees."""
    modalities: tuple[str, ...]
    parameters: int
    chosen: Mapping[str, float]
    seconds: float
    metrics: Mapping[str, Mapping[str, float]]
    """By split and name, as in the record of a run."""
    predictions: Mapping[str, HashedFile]


@dataclass(frozen=True, kw_only=True)
class FittedAll:
    """All baselines of one data set, and what is said of those that are missing."""

    schema: int = SCHEMA
    fingerprint: str
    """Of the features."""
    fitted: tuple[Fitted, ...]
    left_out: tuple[str, ...]


def fit_baselines(
    data: DataSet, folder: Path, *, numbers: Sequence[str] = (), say: Callable[[str], None] = lambda words: None
) -> FittedAll:
    """Fit every cheap baseline that there is for this data, or read what was fitted to it before.

    `numbers` are the modalities that came as numbers, which gradient boosting reads.
    """
    fingerprint = data.fingerprint()
    known = read_cached(FittedAll, folder / FILE)
    if known is not None and known.fingerprint == fingerprint:
        return known
    fitted: list[Fitted] = []
    said: list[str] = []
    try:
        pooled = pool(data)
    except PooledError as error:
        said.append(left_out("all of them", error))
    else:
        _warm_up(numbers)
        for kind, fit in recipes(pooled, numbers):
            try:
                fitted.append(_fit_one(kind, fit, pooled, folder, str(len(fitted))))
            except (ImportError, PooledError) as error:
                said.append(left_out(kind, error))
                continue
            shown = fitted[-1].metrics["dev"][data.metric.name]
            say(f"{fitted[-1].name}: {data.metric.name} {shown:.4f} on dev, {fitted[-1].seconds:.1f} s")
    found = FittedAll(fingerprint=fingerprint, fitted=tuple(fitted), left_out=tuple(said))
    write_sealed(folder / FILE, found)
    return found


def read_answers(folder: Path, fitted: Fitted, split: str) -> Predictions:
    """What a baseline answered; an error if the file is not the one that was written."""
    file = fitted.predictions[split]
    path = folder / file.file
    if not path.is_file() or sha256(path) != file.sha256:
        raise FormatError(f"{path} is missing or has changed: remove {folder}, and the same command makes it again")
    return read_predictions(path)


def _warm_up(numbers: Sequence[str]) -> None:
    """What is imported at first use takes seconds, and is no part of the time that fitting takes."""
    import torch

    torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])
    if numbers:
        with suppress(ImportError):
            import sklearn.ensemble  # noqa: F401


def _fit_one(kind: str, fit: Callable[[], Baseline], pooled: Pooled, folder: Path, number: str) -> Fitted:
    for split in ("train", "dev"):
        pooled.split(split)  # nor is reading
    began = time.perf_counter()
    made = fit()
    seconds = time.perf_counter() - began
    scored = [name for name, split in pooled.data.splits.items() if labelled(split)]
    files = {}
    for split in scored:
        name = f"{number}-{re.sub(r'[^a-z0-9]+', '-', made.name.lower()).strip('-')}/{split}.parquet"
        write_predictions(folder / name, made.predict(split))
        files[split] = HashedFile(file=name, sha256=sha256(folder / name))
    return Fitted(
        name=made.name,
        kind=kind,
        modalities=made.modalities,
        parameters=made.parameters,
        chosen=dict(made.chosen),
        seconds=seconds,
        metrics={split: made.scores(split) for split in scored},
        predictions=files,
    )
