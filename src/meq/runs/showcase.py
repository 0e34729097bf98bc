"""What a report shows of a trained run beyond its record, computed and kept on disk, where the report finds it.

Explained examples, the diagnosis, the score along the steps, eigenvalues, and a list of what could not be had here.
`report.json` is computed from the weights and the data. One of a version of meq that kept other fields is not read: the
next `meq report` computes it again.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from meq.analysis.diagnosis import Diagnosis
from meq.analysis.products import some_samples
from meq.analysis.removal import Faithfulness
from meq.core.solution import Solution, Stop
from meq.data.content import Content, DrawnPicture, Picture, Regions
from meq.data.contract import DataSet, Example
from meq.data.findings import OnBad
from meq.data.pictures import open_picture
from meq.data.transforms import blank
from meq.encoders import Encoder
from meq.encoders.contract import Progress
from meq.errors import in_words, is_users
from meq.models.iterated import IteratedModel
from meq.records import SCHEMA, BusyError, alone, read_cached, write_sealed
from meq.runs.analyze import (
    FOLDER,
    IterationSpectrum,
    Origin,
    TrajectorySummary,
    analysis_of,
    diagnose_split,
    first_output,
    follow_split,
    maps_of_split,
    no_progress,
)
from meq.runs.evaluate import ScoredAnswers, TokenScore, how_chosen, notable_answers, score_answers, token_scores
from meq.runs.explain import Explainer
from meq.runs.explanation import Explanation
from meq.runs.load import TrainedRun, load_run
from meq.runs.own_data import (
    ReadOptions,
    arm_of,
    as_features,
    chosen_split,
    encoders_of_run,
    kept_features,
    raw_data,
    study_above,
)
from meq.runs.run_files import RunFiles, open_run_files
from meq.runs.worth import TRAINED_ON, Worth, measure_worth, spread
from meq.studies.compare import Records
from meq.studies.study import STUDY, Study, StudyError, read_study, run_place
from meq.studies.tables import records_of
from meq.training.checkpoint import busy
from meq.training.predictions import Predictions, predict_split

SHOWCASE = "report.json"
QUALITY, LONGEST = 88, 320
"""Of kept pictures: WebP's quality, and the pixels of the longer side."""
SAME = 1e-2
"""Logits computed again may differ by this much: another processor, another order of summing."""


@dataclass(frozen=True, kw_only=True)
class ShowcaseOptions:
    """How many examples and samples are examined."""

    examples: int = 3
    """Of each kind: most confidently wrong, least sure, most confidently right."""
    samples: int = 4
    """Diagnosed, and asked for their eigenvalues."""
    limit: int = 500
    """Followed along the steps: the first of the split."""
    eigenvalues: int = 12
    store: Path | None = None
    """A feature store to read and to keep in what is new; that of training is read unless given."""

    def __post_init__(self) -> None:
        if min(self.examples, self.samples, self.limit, self.eigenvalues) < 1:
            raise StudyError(f"at least one of each is needed, got {self}")


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownExample:
    """An example that is shown, and why."""

    id: str
    reason: str
    answer: str
    truth: str
    confidence: float
    """NaN for a number."""
    texts: Mapping[str, str]
    pictures: Mapping[str, str]
    """WebP in base 64."""
    explanation: Explanation | None
    """Without its contents, which stand above. None for a model that does not iterate, and where its encoders are not
    here."""

    def explained(self) -> Explanation | None:
        """The explanation with its contents."""
        if self.explanation is None:
            return None
        views = {}
        for name, view in self.explanation.views.items():
            picture = opened_picture(self.pictures[name]) if name in self.pictures else None
            content: Content = self.texts.get(name, torch.zeros(view.attribution.shape[1]))
            if picture is not None:
                content = DrawnPicture(name, picture.copy)
            views[name] = replace(view, content=content, picture=picture)
        return replace(self.explanation, views=views)


@dataclass(frozen=True, kw_only=True, eq=False)
class Showcase:
    """Everything that a report shows of a run beyond its record."""

    schema: int = SCHEMA
    origin: Origin
    """`same_data` here: ids, targets and answers are those that were stored at the end of training."""
    reproduced: float | None
    """The largest difference between the stored logits and those computed again; None where none were."""
    chosen: str
    """How the examples were chosen."""
    examples: tuple[ShownExample, ...]
    diagnosis: Diagnosis | None
    trajectory: TrajectorySummary | None
    eigenvalues: IterationSpectrum | None
    maps: Faithfulness | None
    """What the maps are worth; None where that was not tested."""
    tokens: tuple[TokenScore, ...]
    """With answers per token: how many are right, by modality; empty for other heads, and where features are not here.
    Of the examples that were computed again."""
    worth: Worth | None
    """What each modality is worth; None where it was not measured, or of too few examples."""
    missing: tuple[str, ...]
    """What could not be computed, why, and what to do about it."""


def write_showcase(run: Path, found: Showcase) -> Path:
    path = run / FOLDER / SHOWCASE
    write_sealed(path, found)
    return path


def read_showcase(run: Path) -> Showcase | None:
    """What `meq report` has computed for the run of this folder; None if it has not, or a version with other fields."""
    return read_cached(Showcase, run / FOLDER / SHOWCASE)


def opened_picture(kept: str) -> Image.Image:
    return open_picture(base64.b64decode(kept), name="a picture kept for the report")


# -- which run, and where it is kept -----------------------------------------------------------------------------------


def best_run(folder: Path, study: Study, records: Records) -> tuple[str, int] | None:
    """The run of the reference arm that did best on dev, of those whose weights are there."""
    known = {
        run: record.selected.value
        for run, record in records.items()
        if run[0] == study.reference and record.scored and record.selected.value is not None
    }
    there = {run: value for run, value in known.items() if open_run_files(folder / run_place(*run)).has_weights}
    return max(there, key=lambda run: there[run]) if there else None


def look_for_report(
    folder: Path | str,
    *,
    scratch: Path,
    root: Path | None = None,
    options: ShowcaseOptions = ShowcaseOptions(),  # noqa: B008
    progress: Progress | None = None,
) -> tuple[Path | None, tuple[str, ...]]:
    """Look at the run, or at the best run of a study's reference arm: where that is kept, and what is missing.

    It is kept in the run's own folder. A study's folder is sealed, and other processes may be writing to it: there, and
    where the run's folder cannot be written to, it is kept below `scratch`. None: nothing can be looked at.
    """
    folder = Path(folder)
    if (folder / STUDY).is_file():
        study = read_study(folder)
        run = best_run(folder, study, records_of(folder, study))
        if run is None:
            return None, ()
        place = run_place(*run)
        found = prepare_showcase(folder / place, into=scratch / place, root=root, options=options, progress=progress)
        return scratch, found.missing
    files = open_run_files(folder)
    if not files.has_weights or files.reported_split is None:
        return None, ()
    into = files.folder if os.access(files.folder, os.W_OK) and study_above(files.folder) is None else scratch
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(files.folder, busy(files.folder)))
        except BusyError:  # it is being trained again: only who trains writes there
            into = scratch
        return into, prepare_showcase(files.folder, into=into, root=root, options=options, progress=progress).missing


def prepare_showcase(
    folder: Path | str,
    *,
    into: Path | None = None,
    root: Path | None = None,
    options: ShowcaseOptions = ShowcaseOptions(),  # noqa: B008
    progress: Progress | None = None,
) -> Showcase:
    """Look at a trained run on its own data, and keep what is found in `analysis/` of its folder, or of `into`.

    What cannot be had here, such as data or encoders, is named in `missing`. A diagnosis and a trajectory that
    `meq diagnose` left in the run's folder are taken over if they are of the same weights.
    """
    files = open_run_files(folder)
    into = into or files.folder
    if files.task is None or not files.has_weights:
        raise StudyError(f"{files.folder} has no trained weights, so there is nothing to look at")
    kept = read_showcase(into)
    if kept is not None and kept.origin.weights_sha256 == files.task.weights_sha256 and not kept.missing:
        return kept
    found = _Builder(files, root, options, progress or no_progress).build()
    write_showcase(into, found)
    return found


# -- computing it ------------------------------------------------------------------------------------------------------


class _Builder:
    """Computes the showcase of one run. What cannot be computed goes into `missing`, and the rest goes on."""

    def __init__(self, files: RunFiles, root: Path | None, options: ShowcaseOptions, progress: Progress) -> None:
        split = files.reported_split
        if split is None:
            raise StudyError(f"{files.folder}: its record names no answers, so there is nothing to look at")
        self.files, self.root, self.options, self.progress, self.split = files, root, options, progress, split
        self.run: TrainedRun = load_run(files.folder)
        self.stored = files.predictions(split)
        self.arm = arm_of(self.run)
        self.missing: list[str] = []
        self.reproduced: float | None = None
        self.tokens: tuple[TokenScore, ...] = ()

    @contextmanager
    def trying(self, what: str, advice: str) -> Iterator[None]:
        """An error that the user can do something about becomes an entry in `missing`."""
        try:
            yield
        except Exception as error:
            if not is_users(error):  # a fault of ours is no advice: it is raised, with its place
                raise
            words = " ".join(in_words(error).split())
            self.missing.append(f"Not here: {what}. {words.rstrip('.')}. To have it, {advice}.")

    def build(self) -> Showcase:
        run, options = self.run, self.options
        raw: DataSet | None = None
        features: DataSet | None = None
        encoders: Mapping[str, Encoder] | None = None
        with self.trying("the data of the run", "give its folder with --root"):
            whole = raw_data(run, root=self.root)
            raw = chosen_split(whole, self.split)
        with self.trying("the encoders of the run", "install or give what is named"):
            # some of the examples are explained later
            encoders = encoders_of_run(run, remember=2 * options.limit, store=options.store)
        if raw is not None and encoders is not None:
            with self.trying("features", "mend what is named"):
                features = self._features(raw, encoders)
        worth = None
        if features is not None and encoders is not None:
            with self.trying("what each modality is worth", "report it"):
                beside = self._with_train(whole, features, encoders)
                worth = measure_worth(run.model, beside, self.split, progress=self.progress)
        kept = analysis_of(run)
        diagnosis, trajectory, maps = (kept.diagnosis, kept.trajectory, kept.maps) if kept else (None, None, None)
        eigenvalues, model, among = None, run.model, max(options.samples, 32)
        if features is not None and isinstance(model, IteratedModel):
            if diagnosis is None:
                with self.trying("the diagnosis", "report it"):
                    diagnosis = diagnose_split(
                        model,
                        features,
                        samples=options.samples,
                        among=among,
                        limit=options.limit,
                        progress=self.progress,
                    )
            if trajectory is None:
                with self.trying("the score along k", "report it"):
                    every = range(2 * model.steps + 1)
                    trajectory = follow_split(model, features, limit=options.limit, steps=every, progress=self.progress)
            with self.trying("the eigenvalues", "report it"):
                eigenvalues = self._eigenvalues(first_output(model, features, among).solution.detach())
            if maps is None:
                with self.trying("the test of the maps", "report it"):
                    maps = maps_of_split(model, features, self.progress)
        return Showcase(
            examples=() if raw is None else self._examples(raw, encoders),
            origin=Origin(
                data=run.task.data,
                split=self.split,
                same_data=self.reproduced is not None and self.reproduced <= SAME,
                weights_sha256=run.task.weights_sha256,
            ),
            reproduced=self.reproduced,
            chosen=how_chosen(run.task.head, self.split, options.examples),
            diagnosis=diagnosis,
            trajectory=trajectory,
            eigenvalues=eigenvalues,
            maps=maps,
            tokens=self.tokens,
            worth=worth,
            missing=tuple(self.missing),
        )

    def _features(self, raw: DataSet, encoders: Mapping[str, Encoder]) -> DataSet:
        """The first of the split, as the model reads them; their answers are held against the stored ones."""
        few = replace(raw, splits={self.split: raw.splits[self.split][: self.options.limit]})
        request = self.run.request
        skipping = request is not None and request.skip_bad
        store = self.options.store
        reading = ReadOptions(on_bad="skip" if skipping else "raise", store=store, progress=self.progress)
        data = as_features(self.run, few, encoders, reading=reading)
        if self.arm is not None and self.arm.blank:
            data = blank(data, self.arm.blank)
        self.reproduced = self._difference(data)
        return data

    def _with_train(self, raw: DataSet, features: DataSet, encoders: Mapping[str, Encoder]) -> DataSet:
        """The features with those of train and dev, for linear models; without where they would have to be encoded."""
        if not all(name in raw.splits for name in ("train", "dev")):
            return features
        if encoders and kept_features(self.run) is None:
            return features
        wanted = {"train": spread(raw.splits["train"], TRAINED_ON), "dev": raw.splits["dev"]}
        on_bad: OnBad = "skip" if self.run.request is not None and self.run.request.skip_bad else "raise"
        made = as_features(self.run, replace(raw, splits=wanted), encoders, reading=ReadOptions(on_bad=on_bad))
        if self.arm is not None and self.arm.blank:
            made = blank(made, self.arm.blank)
        return replace(features, splits={**made.splits, **features.splits})

    def _difference(self, data: DataSet) -> float:
        """The largest difference of a logit to the stored one; infinite if the examples are others."""
        if self.stored is None:
            return math.inf
        place = {id_: row for row, id_ in enumerate(self.stored.ids)}
        rows = [place.get(example.id, -1) for example in data.splits[self.split]]
        if -1 in rows:
            return math.inf
        again = predict_split(self.run.model, data, self.split, batch_size=self.run.batch_size)
        if self.run.task.head == "tokens":
            self.tokens = token_scores(again, data, self.split)
        logits, target = self.stored.logits[rows], self.stored.target[rows]
        if self.run.task.head == "tokens":  # filled up to the longest of the whole split, and these to their own
            logits, target = (x[:, : again.logits.shape[1]] for x in (logits, target))
        if not torch.equal(again.target, target.to(again.target)):
            return math.inf
        return float((again.logits - logits).abs().nan_to_num(0.0).max())

    def _eigenvalues(self, solution: Solution) -> IterationSpectrum | None:
        finite = [row for row, stop in enumerate(solution.stop) if stop is not Stop.DIVERGED]
        if not finite:
            return None
        few = some_samples(solution, finite[: self.options.samples])
        self.progress("eigenvalues", 0, 1)
        found = IterationSpectrum.of(few, count=self.options.eigenvalues)
        self.progress("eigenvalues", 1, 1)
        return found

    def _examples(self, raw: DataSet, encoders: Mapping[str, Encoder] | None) -> tuple[ShownExample, ...]:
        if self.stored is None:
            self.missing.append(f"Not here: the stored answers to {self.split}, by which examples are chosen.")
            return ()
        scored = score_answers(self.stored, self.run.task.head)
        reasons = notable_answers(scored, self.options.examples)
        wanted = {scored.ids[row]: row for row in reasons}
        there = {example.id: example for example in raw.splits[self.split] if example.id in wanted}
        if absent := [id_ for id_ in wanted if id_ not in there]:
            self.missing.append(f"Not here: {len(absent)} of the examples to show, such as {absent[0]!r}.")
        examples = [there[id_] for id_ in wanted if id_ in there]
        explanations = self._explanations(examples, encoders)
        shown = []
        for example in examples:
            row = wanted[example.id]
            answer, truth = _answer_and_truth(row, example, self.stored, scored, self.run.labels)
            explanation = explanations.get(example.id)
            with self.trying(f"the example {example.id!r}", "mend what is named"):
                texts, pictures = _shown_contents(example, explanation)
                if explanation is not None:
                    bare = {name: replace(each, content="", picture=None) for name, each in explanation.views.items()}
                    explanation = replace(explanation, views=bare)
                shown.append(
                    ShownExample(
                        id=example.id,
                        reason=reasons[row],
                        answer=answer,
                        truth=truth,
                        confidence=float(scored.confidence[row]),
                        texts=texts,
                        pictures=pictures,
                        explanation=explanation,
                    )
                )
        return tuple(shown)

    def _explanations(
        self, examples: Sequence[Example], encoders: Mapping[str, Encoder] | None
    ) -> dict[str, Explanation]:
        """By example, at the first steps, half way, at K and at 2 K; none for a model that does not iterate."""
        if not isinstance(self.run.model, IteratedModel) or encoders is None or not examples:
            return {}
        if self.arm is not None and self.arm.blank:
            self.missing.append(f"Not shown: heat maps, since the arm sees zeros for {', '.join(self.arm.blank)}.")
            return {}
        found: dict[str, Explanation] = {}
        with self.trying("heat maps", "see the reason"):
            explainer = Explainer(self.run, encoders=encoders)
            steps = sorted({0, 1, 2, 3, explainer.read // 2, explainer.read, 2 * explainer.read})
            for done, example in enumerate(examples):  # one at a time, so that large models fit
                self.progress("explaining examples", done, len(examples))
                (found[example.id],) = explainer([example], steps=steps)
            self.progress("explaining examples", len(examples), len(examples))
            return found
        return {}


def _shown_contents(example: Example, explanation: Explanation | None) -> tuple[dict[str, str], dict[str, str]]:
    """Texts, and pictures as WebP in base 64. What was explained comes first, so that the places of its tokens fit."""
    contents: dict[str, Any] = dict(example.content)
    if explanation is not None:
        contents |= {name: view.content for name, view in explanation.views.items()}
    texts, pictures = {}, {}
    for name, content in contents.items():
        if isinstance(content, str):
            texts[name] = content
        elif isinstance(content, tuple) and all(isinstance(each, str) for each in content):
            texts[name] = "\n".join(f"{place}. {each}" for place, each in enumerate(content, start=1))
        elif isinstance(content, Regions | Picture):
            small = (content.picture if isinstance(content, Regions) else content).open().convert("RGB")
            small.thumbnail((LONGEST, LONGEST))
            out = io.BytesIO()
            small.save(out, "WEBP", quality=QUALITY)
            pictures[name] = base64.b64encode(out.getvalue()).decode()
    return texts, pictures


def _answer_and_truth(
    row: int, example: Example, stored: Predictions, scored: ScoredAnswers, labels: Sequence[str]
) -> tuple[str, str]:
    """In words: what was stored at the end of training, not what is computed now, and the true answer."""
    if scored.head == "score":
        truth = "" if example.target is None else f"{float(example.target):.4g}"
        return f"{float(stored.logits[row, 0]):.4g}", truth

    def named(place: int) -> str:
        if place < 0:
            return "not finite"
        return labels[place] if scored.head != "choices" and place < len(labels) else f"choice {place + 1}"

    return named(int(scored.answer[row])), named(int(scored.truth[row]))
