"""CMU-MOSEI: how positive a spoken clip is, from video, audio and words.

The same clips go around in three forms: the pickle of MulT and MultiBench, the two of MMSA, and the `.csd` files of the
SDK. Each becomes `Clips`, features per token with the padding cut off; the rest of this file is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from meq.data.contract import TEXT, DataSet, Example, Modality, Rows, as_tensor, features, plain_example
from meq.data.findings import DataError, Findings, check_choice
from meq.data.metrics import ACC7, CLASSES, RULES, SCORES, Rule, acc7_of_scores, class_of
from meq.data.mosei_forms import LABELS, MODALITIES, Clips, read_csd, read_mmsa, read_mult
from meq.options import checked_options

Target = Literal["acc7", "score"]


LAYOUTS: Mapping[str, tuple[str, Callable[[Path, Findings], dict[str, Clips]]]] = {
    "mult": ("mosei_senti_data.pkl", read_mult),
    "mmsa-aligned": ("aligned_50.pkl", partial(read_mmsa, aligned=True)),
    "mmsa-unaligned": ("unaligned_50.pkl", partial(read_mmsa, aligned=False)),
    "csd": (LABELS, read_csd),
}
"""The file that a layout is recognised by, and what reads it."""


@checked_options
def mosei(
    root: Path,
    *,
    findings: Findings | None = None,
    layout: str | None = None,
    target: Target = "acc7",
    rule: Rule = "round",
    text: Literal["features", "raw"] = "features",
    vectors: bool = False,
) -> DataSet:
    """Sentiment of clips, from `image` (FACET), `audio` (COVAREP) and `text`.

    `target` is one of seven classes or the score itself; `rule` makes the classes: `round` as MulT and MMSA do, `sdk`
    as the SDK does. `vectors` gives the mean over the tokens of each modality, as the paper has it; `text="raw"` the
    words, for a text encoder. Values in `audio` that are not finite become 0, as everybody has it; they are counted.
    """
    findings = Findings() if findings is None else findings
    check_choice("mosei: target", target, ("acc7", "score"))
    check_choice("mosei: rule", rule, RULES)
    check_choice("mosei: text", text, ("features", "raw"))
    layout = _detected(root) if layout is None else layout
    check_choice("mosei: layout", layout, LAYOUTS)
    name, read = LAYOUTS[layout]
    file = root / name
    clips = read(file, findings)
    if text == "raw" and any(split.words is None for split in clips.values()):
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
        problem = _problem(clips, row, seen, raw=raw)
        seen.add(clip)
        if problem is None:
            rows.append(row)
        else:
            kind, message = problem
            findings.report(kind, f"{split}, clip {clip!r}: {message}", file=file)
    return rows


def _problem(clips: Clips, row: int, seen: set[str], *, raw: bool) -> tuple[str, str] | None:
    score = float(clips.scores[row])
    if clips.ids[row] in seen:
        return "duplicate id", "the id was used before"
    if not np.isfinite(score):
        return "not finite", f"its sentiment is {score}"
    if not -3 <= score <= 3:
        return "wrong label", f"its sentiment is {score:g}, outside of -3 to 3"
    if clips.wrong_lengths.get(row):
        return "wrong length", clips.wrong_lengths[row]
    empty = not clips.words[row].strip() if raw and clips.words is not None else not len(clips.tokens("text", row))
    if empty:
        return "empty text", "it has no words"
    for modality in ("image", "text"):  # in audio it is usual, and set to 0
        if not np.isfinite(clips.tokens(modality, row)).all():
            return "not finite", f"{modality!r} holds values that are not finite"
    return None


def _example(clips: Clips, row: int, *, target: Target, rule: Rule, text: str, vectors: bool) -> Example:
    score = float(np.float32(clips.scores[row]))
    content: dict[str, Any] = {}
    for modality in MODALITIES:
        if modality == "text" and text == "raw" and clips.words is not None:
            content[modality] = clips.words[row]
        elif len(tokens := clips.tokens(modality, row)):
            content[modality] = _numbers(tokens, vectors=vectors)
    facts = {"score": score} if clips.words is None else {"score": score, "text": clips.words[row]}
    return plain_example(
        id=clips.ids[row],
        content=content,
        target=class_of(score, rule) if target == "acc7" else score,
        facts=facts,
    )


def _numbers(tokens: np.ndarray[Any, Any], *, vectors: bool) -> Any:
    numbers = tokens.astype(np.float32)  # a copy, so the file's own values stay as they are
    numbers[~np.isfinite(numbers)] = 0
    return as_tensor(numbers).mean(0) if vectors else numbers  # by torch: numpy adds up in another order


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
