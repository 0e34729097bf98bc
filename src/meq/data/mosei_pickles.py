"""CMU-MOSEI as MulT and MultiBench, and as MMSA pass it on: one pickle of padded arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meq.data.findings import DataError, Findings
from meq.data.mosei_clips import MODALITIES, Clips
from meq.data.pickles import load_plain

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
KEYS = {"image": "vision", "audio": "audio", "text": "text"}
Array = np.ndarray[Any, Any]


def read_mult(file: Path, findings: Findings) -> dict[str, Clips]:
    """Word-aligned, with rows of zeros around the words."""
    made = {}
    for ours, part, place in _parts(file, findings):
        arrays = _features(part, place)
        made[ours] = Clips(
            ids=_ids(part, place),
            scores=_scores(part, "labels", place),
            features=arrays,
            spans=dict.fromkeys(MODALITIES, _around_zeros(arrays["text"])),
        )
    return made


def read_mmsa(file: Path, findings: Findings, *, aligned: bool) -> dict[str, Clips]:
    """Padded at the end, by as much as the file says: BERT's mask if aligned, otherwise a length per modality."""
    made = {}
    for ours, part, place in _parts(file, findings):
        arrays = _features(part, place)
        lengths = _aligned_lengths(part, arrays, place) if aligned else _lengths(part, arrays, place)
        wrong = _wrong_lengths(lengths, arrays)
        made[ours] = Clips(
            ids=_ids(part, place),
            scores=_scores(part, "regression_labels", place),
            features=arrays,
            spans={name: np.stack([np.zeros_like(count), count], 1) for name, count in lengths.items()},
            words=_words(part, place),
            wrong_lengths=wrong,
        )
    return made


def _parts(file: Path, findings: Findings) -> list[tuple[str, Mapping[str, Any], str]]:
    """Our name of each split, what the file has of it, and how to call that in an error."""
    whole = load_plain(file)
    if not isinstance(whole, dict) or not any(name in whole for name in SPLITS):
        raise DataError(f"{file}: holds none of the splits {', '.join(SPLITS)}")
    parts = []
    for theirs, ours in SPLITS.items():
        if theirs not in whole:
            findings.absent.append(f"the split {ours}: {file.name} has no {theirs!r}")
        elif not isinstance(whole[theirs], dict):
            raise DataError(f"{file}, {theirs!r}: a {type(whole[theirs]).__name__}, where a dictionary should be")
        else:
            parts.append((ours, whole[theirs], f"{file}, {theirs!r}"))
    return parts


def _get(part: Mapping[str, Any], key: str, place: str) -> Any:
    if key not in part:
        raise DataError(f"{place}: missing key {key!r}; it has {', '.join(sorted(map(str, part))) or 'none'}")
    return part[key]


def _array(part: Mapping[str, Any], key: str, place: str) -> Array:
    try:
        return np.asarray(_get(part, key, place))
    except (ValueError, TypeError, OverflowError) as error:  # lists of different lengths, above all
        raise DataError(f"{place}: {key!r} is not an array: {error}") from error


def _features(part: Mapping[str, Any], place: str) -> dict[str, Array]:
    """N T W per modality, all with the same N."""
    made = {}
    for modality, key in KEYS.items():
        x = _array(part, key, place)
        if x.ndim != 3 or x.dtype.kind not in "fiu":
            raise DataError(f"{place}: {key!r} has shape {x.shape} and dtype {x.dtype}, expected numbers, N x T x W")
        made[modality] = x
    counts = {KEYS[modality]: len(x) for modality, x in made.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{place}: the modalities have different numbers of clips: {counts}")
    return made


def _scores(part: Mapping[str, Any], key: str, place: str) -> Array:
    try:
        scores = np.asarray(_get(part, key, place), dtype=np.float64)
        scores = scores.reshape(len(scores), -1)  # N, N 1 1, or N 7 with the emotions behind the sentiment
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{place}: {key!r} is not an array of numbers: {error}") from error
    _check_count(len(scores), part, key, place)
    if not scores.shape[1]:
        raise DataError(f"{place}: {key!r} holds no number for a clip")
    return scores[:, 0]


def _ids(part: Mapping[str, Any], place: str) -> list[str]:
    """One text per clip; MulT names a clip by its video, beginning and end."""
    return _names(part, "id", place)


def _names(part: Mapping[str, Any], key: str, place: str) -> list[str]:
    values = _get(part, key, place)
    if not isinstance(values, list | tuple) and not (isinstance(values, np.ndarray) and values.ndim):
        raise DataError(f"{place}: {key!r} is a {type(values).__name__}, where a list should be")
    _check_count(len(values), part, key, place)
    return [_name(each) for each in values]


def _name(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple | np.ndarray):
        return "_".join(_name(each) for each in np.asarray(value, dtype=object).reshape(-1))
    return str(value)


def _words(part: Mapping[str, Any], place: str) -> list[str] | None:
    return _names(part, "raw_text", place) if "raw_text" in part else None


def _check_count(count: int, part: Mapping[str, Any], key: str, place: str) -> None:
    if count != len(part[KEYS["text"]]):
        raise DataError(f"{place}: {key!r} has {count} entries for {len(part[KEYS['text']])} clips")


def _around_zeros(text: Array) -> Array:
    """First and past-the-last row of each clip that is not all zeros."""
    real = (text != 0).any(2)
    some = real.any(1)
    first, end = real.argmax(1), real.shape[1] - real[:, ::-1].argmax(1)
    return np.stack([np.where(some, first, 0), np.where(some, end, 0)], 1)


def _aligned_lengths(part: Mapping[str, Any], arrays: Mapping[str, Array], place: str) -> dict[str, Array]:
    if "text_bert" not in part:
        return dict.fromkeys(MODALITIES, _around_zeros(arrays["text"])[:, 1])
    return dict.fromkeys(MODALITIES, _bert_lengths(part, place))


def _bert_lengths(part: Mapping[str, Any], place: str) -> Array:
    """How many tokens BERT's mask keeps; text_bert is N 3 T: token numbers, mask, segment."""
    bert = _array(part, "text_bert", place)
    if bert.ndim != 3 or bert.shape[1] != 3 or len(bert) != len(part[KEYS["text"]]):
        raise DataError(f"{place}: 'text_bert' has shape {bert.shape}, expected {len(part[KEYS['text']])} x 3 x T")
    return (bert[:, 1] != 0).sum(1)


def _lengths(part: Mapping[str, Any], arrays: Mapping[str, Array], place: str) -> dict[str, Array]:
    lengths = {}
    for modality, key in KEYS.items():
        if modality == "text" and "text_lengths" not in part and "text_bert" in part:
            lengths[modality] = _bert_lengths(part, place)
            continue
        count = _array(part, f"{key}_lengths", place).reshape(-1)
        if len(count) != len(arrays[modality]) or count.dtype.kind not in "iuf" or not np.isfinite(count).all():
            raise DataError(f"{place}: '{key}_lengths' is not one number for each of {len(arrays[modality])} clips")
        lengths[modality] = count.astype(np.int64)
    return lengths


def _wrong_lengths(lengths: Mapping[str, Array], arrays: Mapping[str, Array]) -> dict[int, str]:
    wrong = {}
    for modality, count in lengths.items():
        longest = arrays[modality].shape[1]
        for row in np.flatnonzero((count < 0) | (count > longest)):
            wrong[int(row)] = f"'{KEYS[modality]}_lengths' says {count[row]}, and there are {longest} rows"
    return wrong
