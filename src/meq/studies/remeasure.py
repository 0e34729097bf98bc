"""Measures taken again from the weights that are there, and held against those on record.

A seal tells that a file was changed by somebody who cannot seal it anew. That a measure follows from the weights, only
taking it again can tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from meq.models.hub import WEIGHTS
from meq.records import plain
from meq.studies.build import Places, prepare_data
from meq.studies.measures import read_measured, take_measure
from meq.studies.measures.contract import FOLDER
from meq.studies.one_run import in_words, load_trained
from meq.studies.study import StudyError, read_study, run_place
from meq.studies.tables import records_of
from meq.studies.verify import Fault, Verification

CLOSE, SMALLEST = 1e-2, 1e-6
"""How far a number may lie off, relative to its size, and at least: other processors and thread counts sum differently,
and an answer on the edge may fall to the other side."""


def remeasure(folder: Path, places: Places | None = None, *, console: Console | None = None) -> Verification:
    """Take every measure of every run that has its weights again; a fault for each that differs."""
    study, found = read_study(folder), Verification()
    if not study.measures:
        found.notes.append("the study has no measures to take again")
        return found
    scored = [run for run, record in records_of(folder, study).items() if record.scored]
    there = [run for run in scored if (folder / run_place(*run) / "model" / WEIGHTS).is_file()]
    found.notes += [
        f"{in_words(run)}: no weights, so that nothing was measured again" for run in scored if run not in there
    ]
    if not there:
        return found
    prepared = prepare_data(study.data, places)
    fingerprints = {record.data.fingerprint for (arm, _), record in records_of(folder, study).items()
                    if not study.arm(arm).blank}  # fmt: skip
    if fingerprints - {prepared.data.fingerprint()}:
        raise StudyError(
            f"{folder} was run on other data than {prepared.data.name} is here: its fingerprint differs, so that "
            "measures cannot be compared"
        )
    for run in there:
        for name in study.measures:
            stored = read_measured(folder / run_place(*run), name)
            if stored is None:
                continue
            if console is not None:
                console.print(f"{in_words(run)}: measuring {name} again", highlight=False)
            again = take_measure(name, study, load_trained(study, folder, run, prepared))
            found.measures += 1
            place = f"{run_place(*run)}/{FOLDER}/{name}.json"
            differing = list(differences(plain(stored.found), plain(again.found)))
            if differing:
                more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
                found.faults.append(Fault(file=place, message=f"measured again, {differing[0]}{more}"))
    return found


def differences(stored: Any, again: Any, path: str = "") -> Iterator[str]:
    """Where two results differ, in words."""
    if isinstance(stored, Mapping) and isinstance(again, Mapping):
        for key in sorted({*stored, *again}):
            where = f"{path}.{key}" if path else str(key)
            if key not in stored or key not in again:
                yield f"{where} is {'not there any more' if key in stored else 'new'}"
            else:
                yield from differences(stored[key], again[key], where)
    elif _are_lists(stored, again) and len(stored) == len(again):
        for place, (one, other) in enumerate(zip(stored, again, strict=True)):
            yield from differences(one, other, f"{path}[{place}]")
    elif _are_rows(stored, again):  # numbers that are kept as one text, rounded: a digit may turn
        for place, (one, other) in enumerate(zip(stored.split(), again.split(), strict=True)):
            if abs(float(one) - float(other)) > CLOSE * max(1.0, abs(float(one))):
                yield f"{path}, number {place}, is {other} and the record has {one}"
    elif not _alike(stored, again):
        yield f"{path} is {again!r:.60} and the record has {stored!r:.60}"


def _are_rows(*values: Any) -> bool:
    """Texts of as many numbers each."""
    if not all(isinstance(value, str) for value in values) or len({len(value.split()) for value in values}) != 1:
        return False
    try:
        return all([float(part) for part in value.split()] for value in values)
    except ValueError:
        return False


def _are_lists(*values: Any) -> bool:
    return all(isinstance(value, Sequence) and not isinstance(value, str) for value in values)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or not (isinstance(one, int | float) and isinstance(other, int | float)):
        return bool(one == other)
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or math.isclose(one, other, rel_tol=CLOSE, abs_tol=SMALLEST)
