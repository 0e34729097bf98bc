"""How much modalities, columns, tokens and words count for a run's answers; kept in `analysis/importance.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meq.analysis.answers import Estimate
from meq.analysis.importance import Importances, Part, PartImportance, measure_importance
from meq.analysis.tables import number
from meq.data.contract import Batch, DataSet, collate
from meq.options import checked_options, whole_number
from meq.records import SCHEMA, SINCE, alone, read_cached, write_sealed
from meq.runs.analyze import FOLDER, Origin, list_in_study
from meq.runs.load import TrainedRun
from meq.runs.own_data import ReadOptions, chosen_split, run_data
from meq.runs.words import LEAST_EXAMPLES, MOST_EXAMPLES, WordImportance, measure_words
from meq.runs.worth import spread
from meq.showing import Tabular
from meq.studies.study import StudyError
from meq.tables import Cell, Table, as_text
from meq.training.predictions import batched, labelled

IMPORTANCE = "importance.json"
BATCH = 64
TOKEN_SAMPLES, TOKEN_REPEATS = 128, 3
"""Tokens are many: they are looked at on fewer examples, and shuffled less often."""
TOKEN_PARTS = 36
"""Of a modality with more tokens, neighbours are taken together."""
MOST_COLUMNS = 64
KINDS = ("modality", "column", "token")
WORDS = 40
"""The most frequent words of a text modality that are left out, one after the other."""
SHOWN = 12
"""Tokens and words in the printed tables; the frame and the file have all of them."""


@dataclass(frozen=True, kw_only=True)
class Importance(Tabular):
    """What the score loses on one split when a part of the input is shuffled across it, or taken away."""

    schema: int = SCHEMA
    origin: Origin
    samples: int
    score_name: str
    score: Estimate
    repeats: int
    seed: int
    parts: tuple[PartImportance, ...]
    """Modalities, then columns, then tokens."""
    notes: tuple[str, ...] = ()
    words: tuple[WordImportance, ...] = field(default=(), metadata=SINCE)
    """Of texts, the one that counts most first; over the examples that have the word, not over all."""

    def ranked(self, kind: str) -> list[PartImportance]:
        """The parts of a kind, the one that counts most first."""
        return sorted((each for each in self.parts if each.kind == kind), key=lambda each: -each.shuffled.value)

    def rows(self) -> list[dict[str, Any]]:
        return [*(self._row(each) for kind in KINDS for each in self.ranked(kind)), *map(_word_row, self.words)]

    def _row(self, each: PartImportance) -> dict[str, Any]:
        taken = each.removed
        return {
            "part": each.name,
            "kind": each.kind,
            "rows": each.samples,
            **{"shuffled": each.shuffled.value, "shuffled_low": each.shuffled.low, "shuffled_high": each.shuffled.high},
            "spread": each.spread,
            "changed": each.changed,
            "removed": None if taken is None else taken.value,
            "removed_low": None if taken is None else taken.low,
            "removed_high": None if taken is None else taken.high,
        }

    def table(self) -> Table:
        shown: list[dict[str, Cell]] = [
            {
                "part": each.name,
                "kind": each.kind,
                "rows": each.samples,
                "shuffled": _with_interval(each.shuffled),
                "spread": each.spread,
                "changed": each.changed,
                "removed": None if each.removed is None else _with_interval(each.removed),
            }
            for kind in KINDS
            for each in self.ranked(kind)[: SHOWN if kind == "token" else None]
        ]
        tokens = len(self.ranked("token")) - SHOWN
        more = [f"And {tokens} tokens more that count less."] if tokens > 0 else []
        where = f"{self.origin.data}, split {self.origin.split}"
        return Table.of(
            f"What counts: {self.score_name} {self.score} on {self.samples:,} examples of {where}",
            shown,
            titles={
                "shuffled": "lost, shuffled",
                "spread": "spread over repeats",
                "changed": "answers changed",
                "removed": "lost, removed",
            },
            notes=[*self.notes, *more],
        )

    def words_table(self) -> Table | None:
        """The words that count most; None where there are no texts."""
        if not self.words:
            return None
        shown: list[dict[str, Cell]] = [
            {
                "word": each.word,
                "modality": each.modality,
                "rows": each.found,
                **({} if each.probability is None else {"probability": _with_interval(each.probability)}),
                "removed": _with_interval(each.removed),
                "changed": each.changed,
            }
            for each in self.words[:SHOWN]
        ]
        more = len(self.words) - len(shown)
        return Table.of(
            "What single words count",
            shown,
            titles={
                "rows": "examples with it",
                "probability": "lost, probability of the true answer",
                "removed": f"lost, {self.score_name}",
                "changed": "answers changed",
            },
            notes=[self._words_meaning(), *([f"And {more} words more that count less."] if more else [])],
        )

    def remarks(self) -> list[str]:
        return [*self.notes, *([self._words_meaning()] if self.words else [])]

    def _words_meaning(self) -> str:
        return (
            f"Words: the {len(self.words)} most frequent that {LEAST_EXAMPLES} examples or more have, each left out of "
            f"the texts that have it, which are then encoded anew; the mean over those examples, at most "
            f"{MOST_EXAMPLES} of them, with 95 % intervals. Below 0: the model does better without the word."
        )

    def __str__(self) -> str:
        parts = [self.table(), self.words_table()]
        return "\n".join(as_text(each).rstrip() + "\n" for each in parts if each is not None).rstrip()


def _word_row(each: WordImportance) -> dict[str, Any]:
    sure = each.probability
    return {
        "part": each.name,
        "kind": "word",
        "rows": each.found,
        "changed": each.changed,
        **{"removed": each.removed.value, "removed_low": each.removed.low, "removed_high": each.removed.high},
        "probability": None if sure is None else sure.value,
        "probability_low": None if sure is None else sure.low,
        "probability_high": None if sure is None else sure.high,
    }


def _with_interval(found: Estimate) -> str:
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


@checked_options
def importance_of_run(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    split: str | None = None,
    samples: int = 512,
    repeats: int = 10,
    tokens: bool = True,
    words: int = WORDS,
    seed: int = 0,
    reading: ReadOptions = ReadOptions(),  # noqa: B008
    keep: bool = True,
) -> Importance:
    """Shuffle and remove each modality, column and token of the run's own data, or of other labelled data.

    On test where it is labelled, or else on dev. Each part takes `repeats` + 1 answers to `samples` examples, spread
    over the split; `tokens`, of which there are many, are looked at on fewer. Of texts, the most frequent `words` are
    left out as well, see `meq.runs.words`. Kept in the run's folder, where reports find it, unless it is of other data.
    """
    if repeats < 1 or samples < 2:
        raise StudyError(f"`repeats` must be at least 1 and `samples` at least 2, got {repeats} and {samples}")
    whole_number("`words`", words, least=0)
    ready = run_data(run, data, root=root, reading=reading)
    made = chosen_split(ready.data, split or reported_split(ready.data))
    ((name, examples),) = made.splits.items()
    if not labelled(examples):
        raise StudyError(f"{made.name}: {name} has no labels, and importance is what the score loses")
    model = run.model_read()
    batches = _batches(made, name, samples)
    wholes = [Part(name=each, modality=each) for each in made.modalities]
    parts = [*wholes, *_columns(run)]
    found = measure_importance(model, batches, parts, repeats=repeats, seed=seed, progress=reading.progress)
    measured, notes = list(found.parts), [_meaning(found, repeats)]
    if tokens:
        few = _batches(made, name, min(samples, TOKEN_SAMPLES))
        if places := _token_parts(few):
            often = min(repeats, TOKEN_REPEATS)
            seen = measure_importance(model, few, places, repeats=often, seed=seed, progress=reading.progress)
            measured += seen.parts
            notes.append(f"Tokens: by their place, on {seen.samples:,} of the examples, {often} repeats.")
    counted = {"words": words, "samples": samples, "seed": seed}
    spoken = measure_words(run, ready, name, **counted, progress=reading.progress)
    if words and not spoken and "text" in {each.kind for each in ready.encoders.values()}:
        notes.append(f"Words: none could be left out of {LEAST_EXAMPLES} examples or more.")
    result = Importance(
        origin=Origin(data=made.name, split=name, same_data=ready.same, weights_sha256=run.task.weights_sha256),
        samples=found.samples,
        score_name=found.score_name,
        score=found.score,
        repeats=repeats,
        seed=seed,
        parts=tuple(measured),
        notes=tuple(notes),
        words=tuple(spoken),
    )
    if keep and data is None and run.place is not None:
        _write(run.place, result)
    return result


def reported_split(data: DataSet) -> str:
    """test where it is labelled, or else dev, or else the first that is."""
    names = [name for name in ("test", "dev", *data.splits) if name in data.splits and labelled(data.splits[name])]
    if not names:
        raise StudyError(f"{data.name}: there are no labels in {', '.join(data.splits)}, and a score needs some")
    return names[0]


def _meaning(found: Importances, repeats: int) -> str:
    return (
        f"Lost: {found.score_name} over all examples, with 95 % intervals over examples and {repeats} repeats. "
        "Shuffled: each example gets the part of another one. Removed: it is missing; a column has its mean. A part "
        "that others can stand in for loses little, and models that were trained without missing modalities may lose "
        "too much."
    )


def _batches(data: DataSet, split: str, samples: int) -> list[Batch]:
    parts = batched(spread(data.splits[split], samples), BATCH)
    return [collate(part, data.widths, data.answering) for part in parts]


def _columns(run: TrainedRun) -> list[Part]:
    """The columns that were joined to a vector by a pattern such as audio_*."""
    found = []
    for modality, columns in run.task.columns.items():
        if 1 < len(columns) == run.task.widths.get(modality) and len(columns) <= MOST_COLUMNS:
            found += [Part(name=name, modality=modality, numbers=(at,)) for at, name in enumerate(columns)]
    return found


def _token_parts(batches: list[Batch]) -> list[Part]:
    """The places of a modality's tokens, neighbours together where there are many; none of modalities of one token."""
    found = []
    for modality in dict.fromkeys(name for batch in batches for name in batch.features):
        longest = max(x.shape[-2] for batch in batches if (x := batch.features.get(modality)) is not None)
        size = -(-longest // TOKEN_PARTS)
        if longest < 2:
            continue
        for first in range(0, longest, size):
            places = tuple(range(first, min(first + size, longest)))
            numbered = f"{first + 1}" if len(places) == 1 else f"{first + 1}-{places[-1] + 1}"
            found.append(Part(name=f"{modality} {numbered}", modality=modality, tokens=places))
    return found


# -- on disk -----------------------------------------------------------------------------------------------------------


def _write(run: Path, found: Importance) -> None:
    with alone(run, f"a run is being trained in {run}: what was measured is of weights that it may replace"):
        write_sealed(run / FOLDER / IMPORTANCE, found)
        list_in_study(run.resolve(), f"{FOLDER}/{IMPORTANCE}")


def read_importance(run: Path, weights_sha256: str | None = None) -> Importance | None:
    """What `meq importance` left in the run's folder; None if it never ran, or of other weights than those given."""
    found = read_cached(Importance, run / FOLDER / IMPORTANCE)
    if found is None or weights_sha256 is None:
        return found
    return found if found.origin.weights_sha256 == weights_sha256 else None
