"""CMU-MOSEI: how positive a spoken clip is, from video, audio and words.

The same clips go around in three forms: the pickle of MulT and MultiBench and the two of MMSA, which hold padded
arrays, and the `.csd` files (HDF5) of the SDK. Each becomes `Clips`, features per token with the padding cut off; the
rest is the same for all.

In `.csd` files every modality has a clock of its own. A labelled interval of a video is a clip. Its tokens are the
words that begin in it, pauses left out; audio and video are averaged over the time of each word, and a word during
which nothing was measured gets zeros. The frames are read video by video and only the averages are kept, which are a
small part of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from meq.data.contract import TEXT, DataSet, Example, Modality, Rows, as_tensor, features, plain_example
from meq.data.files import BadRowError, read_json
from meq.data.findings import DataError, Findings, check_choice
from meq.data.hdf5 import DataSetOfFile, Group, as_float32, open_hdf5, require_h5py
from meq.data.metrics import ACC7, CLASSES, RULES, SCORES, Rule, acc7_of_scores, class_of
from meq.data.pickles import load_plain
from meq.options import checked_options

MODALITIES = ("image", "audio", "text")
SPLITS = {"train": "train", "valid": "dev", "test": "test"}
KEYS = {"image": "vision", "audio": "audio", "text": "text"}
"""What pickles call splits and modalities."""
LABELS = "CMU_MOSEI_Labels.csd"
WORDS = "CMU_MOSEI_TimestampedWords.csd"
FILES = {
    "image": "CMU_MOSEI_VisualFacet42.csd",
    "audio": "CMU_MOSEI_COVAREP.csd",
    "text": "CMU_MOSEI_TimestampedWordVectors.csd",
}
FOLDS = "folds.json"
PAUSE = "sp"
NAMED = 10
"""How many dropped clips are named where a reader looks on."""

Array = np.ndarray[Any, Any]
Target = Literal["acc7", "score"]


@checked_options
def mosei(
    root: Path,
    *,
    findings: Findings | None = None,
    layout: str | None = None,
    target: Target = "acc7",
    rule: Rule = "round",
    text: Literal["features", "raw", "auto"] = "features",
    vectors: bool = False,
) -> DataSet:
    """Sentiment of clips, from `image` (FACET), `audio` (COVAREP) and `text`.

    `target` is one of seven classes or the score itself; `rule` makes the classes: `round` as MulT and MMSA do, `sdk`
    as the SDK does. `vectors` gives the mean over the tokens of each modality, as the paper has it; `text="raw"` the
    words, for a text encoder, and "auto" these where the files have them. Values in `audio` that are not finite become
    0, as everybody has it; they are counted.
    """
    findings = Findings() if findings is None else findings
    check_choice("mosei: target", target, ("acc7", "score"))
    check_choice("mosei: rule", rule, RULES)
    check_choice("mosei: text", text, ("features", "raw", "auto"))
    layout = _detected(root) if layout is None else layout
    check_choice("mosei: layout", layout, LAYOUTS)
    name, read = LAYOUTS[layout]
    file = root / name
    clips = read(file, findings)
    wordless = any(split.words is None for split in clips.values())
    if text == "auto":
        text = "features" if wordless else "raw"
    if text == "raw" and wordless:
        raise DataError(f"{file} holds no words: text='raw' needs an MMSA file or .csd files")
    return DataSet(
        name="mosei",
        splits={
            name: Rows(
                _usable(split, name, findings, file=file, raw=text == "raw"),
                partial(_example, split, target=target, rule=rule, text=text, vectors=vectors),
            )
            for name, split in clips.items()
        },
        modalities=_modalities(clips, text),
        labels=CLASSES if target == "acc7" else (),
        head="classes" if target == "acc7" else "score",
        metric=ACC7 if target == "acc7" else acc7_of_scores(rule),
        also=() if target == "acc7" else SCORES,
        facts={"layout": layout, "target": target, "rule": rule, "text": text, "vectors": vectors, **_facts(clips)},
    )


def _detected(root: Path) -> str:
    """The layout of what lies in the folder, if it is one and no more."""
    there = [layout for layout, (file, _) in LAYOUTS.items() if (root / file).exists()]
    if not there:
        looked_for = ", ".join(file for file, _ in LAYOUTS.values())
        raise DataError(f"{root}: none of the files of CMU-MOSEI is there; looked for {looked_for}")
    if len(there) > 1:
        raise DataError(f"{root}: holds several forms of CMU-MOSEI; choose with layout= one of {', '.join(there)}")
    return there[0]


def _usable(clips: Clips, split: str, findings: Findings, *, file: Path, raw: bool) -> list[int]:
    """The rows that can be used; the others are reported."""
    seen: set[str] = set()
    rows = []
    for row, clip in enumerate(clips.ids):
        try:
            if clip in seen:
                raise BadRowError("duplicate id", "the id was used before")
            seen.add(clip)
            _check_clip(clips, row, raw=raw)
            rows.append(row)
        except BadRowError as bad:
            findings.report(bad.kind, f"{split}, clip {clip!r}: {bad}", file=file)
    return rows


def _check_clip(clips: Clips, row: int, *, raw: bool) -> None:
    score = float(clips.scores[row])
    if not np.isfinite(score):
        raise BadRowError("not finite", f"its sentiment is {score}")
    if not -3 <= score <= 3:
        raise BadRowError("wrong label", f"its sentiment is {score:g}, outside of -3 to 3")
    if clips.wrong_lengths.get(row):
        raise BadRowError("wrong length", clips.wrong_lengths[row])
    if not (clips.words[row].strip() if raw and clips.words is not None else len(clips.tokens("text", row))):
        raise BadRowError("empty text", "it has no words")
    for modality in ("image", "text"):  # in audio it is usual, and set to 0
        if not np.isfinite(clips.tokens(modality, row)).all():
            raise BadRowError("not finite", f"{modality!r} holds values that are not finite")


def _example(clips: Clips, row: int, *, target: Target, rule: Rule, text: str, vectors: bool) -> Example:
    score = float(np.float32(clips.scores[row]))
    content: dict[str, Any] = {}
    for modality in MODALITIES:
        if modality == "text" and text == "raw" and clips.words is not None:
            content[modality] = clips.words[row]
        elif len(tokens := clips.tokens(modality, row)):
            numbers = tokens.astype(np.float32)  # a copy, so the file's own values stay as they are
            numbers[~np.isfinite(numbers)] = 0
            # the mean by torch: numpy adds up in another order
            content[modality] = as_tensor(numbers).mean(0) if vectors else numbers
    facts = {"score": score} if clips.words is None else {"score": score, "text": clips.words[row]}
    return plain_example(
        id=clips.ids[row],
        content=content,
        target=class_of(score, rule) if target == "acc7" else score,
        facts=facts,
    )


def _modalities(clips: Mapping[str, Clips], text: str) -> dict[str, Modality]:
    """Widths, which all splits must share."""
    made = {}
    for modality in MODALITIES:
        widths = {name: split.width(modality) for name, split in clips.items()}
        if len(set(widths.values())) > 1:
            raise DataError(f"mosei: {modality!r} differs in width between the splits: {widths}")
        made[modality] = TEXT if modality == "text" and text == "raw" else features(next(iter(widths.values())))
    return made


def _facts(clips: Mapping[str, Clips]) -> dict[str, Any]:
    """What was done to the clips: how many values were set to 0, which clips were dropped and why."""
    return {
        # row by row, so that no second copy of the features is ever held
        "audio_values_set_to_0": {
            name: sum(int((~np.isfinite(split.tokens("audio", row))).sum()) for row in range(len(split.ids)))
            for name, split in clips.items()
        },
        "dropped_clips": {name: dict(split.dropped) for name, split in clips.items() if split.dropped},
        "split": "as in the file" if not any(split.dropped for split in clips.values()) else "without dropped clips",
    }


# -- clips -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Clips:
    """Features of all clips of a split, and which of their tokens are real."""

    ids: Sequence[str]
    scores: np.ndarray[Any, Any]
    """Sentiment, from -3 to 3."""
    features: Mapping[str, Any]
    """By modality: N T W, or one (T W) for each clip."""
    spans: Mapping[str, np.ndarray[Any, Any]]
    """By modality, N 2: the first real token, and the one past the last."""
    words: Sequence[str] | None = None
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Clips that could not be used, and why."""
    wrong_lengths: Mapping[int, str] = field(default_factory=dict)

    def tokens(self, modality: str, row: int) -> np.ndarray[Any, Any]:
        """The clip's real tokens, n W."""
        first, end = self.spans[modality][row]
        return self.features[modality][row][first:end]

    def width(self, modality: str) -> int:
        features = self.features[modality]
        return int(features.shape[-1] if isinstance(features, np.ndarray) else features[0].shape[-1])


# -- pickles of padded arrays ------------------------------------------------------------------------------------------


def read_mult(file: Path, findings: Findings) -> dict[str, Clips]:
    """Word-aligned, with rows of zeros around the words."""
    made = {}
    for ours, part, place in _parts(file, findings):
        arrays = _features(part, place)
        made[ours] = Clips(
            ids=_names(part, "id", place),
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
        if not aligned:
            lengths = _lengths(part, arrays, place)
        elif "text_bert" in part:
            lengths = dict.fromkeys(MODALITIES, _bert_lengths(part, place))
        else:
            lengths = dict.fromkeys(MODALITIES, _around_zeros(arrays["text"])[:, 1])
        made[ours] = Clips(
            ids=_names(part, "id", place),
            scores=_scores(part, "regression_labels", place),
            features=arrays,
            spans={name: np.stack([np.zeros_like(count), count], 1) for name, count in lengths.items()},
            words=_names(part, "raw_text", place) if "raw_text" in part else None,
            wrong_lengths={
                int(row): f"'{KEYS[name]}_lengths' says {count[row]}, and there are {arrays[name].shape[1]} rows"
                for name, count in lengths.items()
                for row in np.flatnonzero((count < 0) | (count > arrays[name].shape[1]))
            },
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


def _names(part: Mapping[str, Any], key: str, place: str) -> list[str]:
    """One text per clip; MulT names a clip by its video, beginning and end."""
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


def _check_count(count: int, part: Mapping[str, Any], key: str, place: str) -> None:
    if count != len(part[KEYS["text"]]):
        raise DataError(f"{place}: {key!r} has {count} entries for {len(part[KEYS['text']])} clips")


def _around_zeros(text: Array) -> Array:
    """First and past-the-last row of each clip that is not all zeros."""
    real = (text != 0).any(2)
    some = real.any(1)
    first, end = real.argmax(1), real.shape[1] - real[:, ::-1].argmax(1)
    return np.stack([np.where(some, first, 0), np.where(some, end, 0)], 1)


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


# -- .csd files of the SDK ---------------------------------------------------------------------------------------------


def read_csd(labels: Path, findings: Findings) -> dict[str, Clips]:
    """The clips of the videos that `folds.json` lists; those that fail to align are dropped, and named."""
    require_h5py()  # said before any file is missed
    folder = labels.parent
    folds = _folds(folder / FOLDS)
    with ExitStack() as opened:
        sources = {name: _data(folder / file, opened) for name, file in FILES.items()}
        sources["labels"] = _data(labels, opened)
        if (folder / WORDS).exists():
            sources["words"] = _data(folder / WORDS, opened)
        else:
            findings.absent.append(f"{WORDS}: there are no words, and a word vector of zeros is taken for a pause")
        clips = {split: _split(videos, sources) for split, videos in folds.items()}
    for split, each in clips.items():
        if each.dropped:
            named = ", ".join(f"{clip} ({why})" for clip, why in list(each.dropped.items())[:NAMED])
            rest = f" and {len(each.dropped) - NAMED} more, all in the facts" if len(each.dropped) > NAMED else ""
            findings.absent.append(f"clips of {split} that fail to align ({len(each.dropped)}): {named}{rest}")
    return clips


def _folds(file: Path) -> dict[str, list[str]]:
    """Video ids by split."""
    if not file.exists():
        raise DataError(
            f"{file}: missing. The .csd files do not say which video is in which split: write the SDK's standard folds "
            'there as {"train": [video ids], "dev": [...], "test": [...]}'
        )
    try:
        folds = read_json(file)
    except DataError as error:
        raise DataError(f"wrong JSON: {error}") from error
    folds = {"dev" if name == "valid" else name: ids for name, ids in folds.items()} if isinstance(folds, dict) else {}
    lists = [isinstance(ids, list) and all(isinstance(video, str) for video in ids) for ids in folds.values()]
    if not set(folds) & {"train", "dev", "test"} or not all(lists):
        raise DataError(f'{file}: expected {{"train": [video ids], "dev": [...], "test": [...]}}')
    home: dict[str, str] = {}
    for split, videos in folds.items():
        for video in videos:
            if video in home:
                raise DataError(f"{file}: duplicate id: video {video!r} is in {home[video]!r} and again in {split!r}")
            home[video] = split
    return folds


def _data(file: Path, opened: ExitStack) -> Group:
    """The group that holds a folder per video: /<name>/data."""
    if not file.exists():
        raise DataError(f"{file}: missing; a set of .csd files needs {LABELS}, {', '.join(FILES.values())}")
    whole = open_hdf5(file, opened)
    for name in whole.names():
        group = whole.group(name)
        if group is not None and "data" in group:
            found = group.group("data")
            if found is not None:
                return found
    raise DataError(f"{file}: holds no /<name>/data, so it is not a .csd file of the SDK")


def _split(videos: list[str], sources: Mapping[str, Group]) -> Clips:
    ids: list[str] = []
    scores: list[float] = []
    words: list[str] = []
    dropped: dict[str, str] = {}
    kept: dict[str, list[Array]] = {modality: [] for modality in MODALITIES}
    for video in videos:
        if video not in sources["labels"]:
            dropped[video] = "no labels"
            continue
        segments, labels = _sequence(sources["labels"], video, "labels")
        values = labels.read()
        opened = _open_video(video, sources)
        for number, segment in enumerate(segments):
            clip = f"{video}[{number}]"
            found = opened if isinstance(opened, str) else _clip_tokens(opened, segment)
            if isinstance(found, str):
                dropped[clip] = found
                continue
            ids.append(clip)
            scores.append(float(values[number, 0]))
            words.append(found[1])
            for modality in MODALITIES:
                kept[modality].append(found[0][modality])
    if not ids:
        raise DataError(f"mosei: no clip of the videos {videos[:3]}... could be aligned; are these the right folds?")
    for modality, clips in kept.items():
        widths = sorted({x.shape[1] for x in clips})
        if len(widths) > 1:
            raise DataError(f"{FILES[modality]}: the videos differ in width: {widths}")
    spans = {name: np.array([(0, len(x)) for x in clips]) for name, clips in kept.items()}
    known = words if "words" in sources else None
    return Clips(ids=ids, scores=np.array(scores), features=kept, spans=spans, words=known, dropped=dropped)


def _sequence(group: Group, video: str, what: str) -> tuple[Array, DataSetOfFile]:
    """Intervals (S 2) and the features, which are not read yet."""
    place = f"{group.file}, video {video!r}"
    folder = group.group(video)
    times, features = (None, None) if folder is None else (folder.data_set("intervals"), folder.data_set("features"))
    if times is None or features is None:
        raise DataError(f"{place}: no readable {what}: it needs 'intervals' and 'features'")
    shape = features.shape
    if len(shape) != 2 or shape[1] == 0 or (features.kind not in "fiu" and what != "words"):
        raise DataError(f"{place}: {what} of shape {shape} and dtype {features.dtype}, expected one row per interval")
    if times.shape != (shape[0], 2) or times.kind not in "fiu":
        raise DataError(f"{place}: {shape[0]} rows of {what} for intervals of shape {times.shape}")
    intervals = times.read().astype(np.float64)
    if not np.isfinite(intervals).all():
        raise DataError(f"{place}: intervals of {what} that are not finite")
    return intervals, features


@dataclass(frozen=True, kw_only=True, eq=False)
class _Video:
    """The words of a video without its pauses, and the frames of the other modalities, which are not read yet."""

    times: Array
    vectors: Array
    words: list[str]
    frames: Mapping[str, tuple[Array, DataSetOfFile]]


def _open_video(video: str, sources: Mapping[str, Group]) -> _Video | str:
    """The video, or why it cannot be aligned."""
    for modality in MODALITIES:
        if video not in sources[modality]:
            return f"no {modality}"
    times, features = _sequence(sources["text"], video, "word vectors")
    vectors = as_float32(features.read())
    spoken: list[str] = []  # words and pauses; none where there is no file of words
    real = (vectors != 0).any(1)
    if "words" in sources:
        if video not in sources["words"]:
            return "no words"
        spoken = [_name(word) for word in _sequence(sources["words"], video, "words")[1].read().reshape(-1)]
        if len(spoken) != len(vectors):
            return f"{len(spoken)} words and {len(vectors)} word vectors" if spoken else "no words"
        real = np.array([word != PAUSE for word in spoken], dtype=bool)
    frames = {modality: _sequence(sources[modality], video, modality) for modality in ("image", "audio")}
    words = [word for word in spoken if word != PAUSE]
    return _Video(times=times[real], vectors=vectors[real], words=words, frames=frames)


def _clip_tokens(video: _Video, segment: Array) -> tuple[dict[str, Array], str] | str:
    """Features of the clip's words, and its text; or why it has none."""
    inside = np.flatnonzero((video.times[:, 0] >= segment[0]) & (video.times[:, 0] < segment[1]))
    if not len(inside):
        return "no words"
    made = {"text": video.vectors[inside]}
    for modality, (times, frames) in video.frames.items():
        averaged = _averages(times, frames, video.times[inside])
        if averaged is None:
            return f"no {modality} during its words"
        made[modality] = averaged
    return made, " ".join(video.words[place] for place in inside if video.words)


def _averages(times: Array, frames: DataSetOfFile, words: Array) -> Array | None:
    """The mean of the frames that overlap each word, zeros where there is none; None if no word has any."""
    order = None
    if (np.diff(times[:, 0]) < 0).any():
        order = np.argsort(times[:, 0], kind="stable")
        times = times[order]
    first = np.searchsorted(np.maximum.accumulate(times[:, 1]), words[:, 0], side="right")
    end = np.searchsorted(times[:, 0], words[:, 1], side="left")
    some = end > first
    if not some.any():
        return None
    start, stop = int(first[some].min()), int(end[some].max())
    part = as_float32(frames.read(start, stop) if order is None else frames.read()[order][start:stop])
    made = np.zeros((len(words), part.shape[1]), dtype=np.float32)
    with np.errstate(invalid="ignore"):  # -inf in COVAREP: the average is not finite, and becomes 0 when it is used
        for word in np.flatnonzero(some):
            made[word] = part[first[word] - start : end[word] - start].mean(0)
    return made


LAYOUTS: Mapping[str, tuple[str, Callable[[Path, Findings], dict[str, Clips]]]] = {
    "mult": ("mosei_senti_data.pkl", read_mult),
    "mmsa-aligned": ("aligned_50.pkl", partial(read_mmsa, aligned=True)),
    "mmsa-unaligned": ("unaligned_50.pkl", partial(read_mmsa, aligned=False)),
    "csd": (LABELS, read_csd),
}
"""The file that a layout is recognised by, and what reads it."""
