"""Computes what a report shows of a trained run beyond its record, and keeps it on disk, where the report finds it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from meq.analysis.diagnosis import Diagnosis, diagnose
from meq.analysis.differential import some_samples
from meq.analysis.spectrum import leading_eigenvalues
from meq.analysis.trajectory import follow
from meq.core.solution import Solution, Stop
from meq.core.solvers import Damped
from meq.data.blanking import blank
from meq.data.contract import Batch, DataSet, Example, collate
from meq.encoders import Encoder
from meq.encoders.survey import Progress
from meq.errors import in_words, is_users
from meq.experiments.runs.analysis import SCHEMA as ANALYSIS_SCHEMA
from meq.experiments.runs.analysis import (
    DiagnosisFile,
    MapsFile,
    Origin,
    RunAnalysis,
    TrajectoryFile,
    diagnosis_file,
    read_analysis,
    trajectory_file,
)
from meq.experiments.runs.analyze import tested_maps
from meq.experiments.runs.data import Reading, as_features
from meq.experiments.runs.encoders import encoders_of_run
from meq.experiments.runs.explanation import Explanation
from meq.experiments.runs.files import RunFiles, open_run_files
from meq.experiments.runs.judged import how_chosen, judge, notable
from meq.experiments.runs.load import TrainedRun, load_run
from meq.experiments.runs.raw import arm_of, raw_data
from meq.experiments.runs.showcase_examples import ExampleMaker, explained_one_by_one
from meq.experiments.runs.showcase_file import (
    SCHEMA,
    EigenvaluesFile,
    ExampleFile,
    ShowcaseFile,
    read_showcase,
    write_showcase,
)
from meq.experiments.study import StudyError
from meq.models.iterated import Iterated

BATCH = 64
SAME = 1e-2
"""Logits computed again may differ by this much: another processor, another order of summing."""


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How much is looked at."""

    examples: int = 3
    """Of each kind: most confidently wrong, least sure, most confidently right."""
    samples: int = 4
    """Diagnosed, and asked for their eigenvalues."""
    limit: int = 500
    """Followed along the steps: the first of the split."""
    eigenvalues: int = 12

    def __post_init__(self) -> None:
        if min(self.examples, self.samples, self.limit, self.eigenvalues) < 1:
            raise StudyError(f"at least one of each is needed, got {self}")


def prepare_showcase(
    folder: Path | str,
    *,
    into: Path | None = None,
    root: Path | None = None,
    showing: Showing = Showing(),  # noqa: B008
    progress: Progress | None = None,
) -> ShowcaseFile:
    """Look at a trained run on its own data, and keep what is found in `analysis/` of its folder, or of `into`.

    What cannot be had here, such as data or encoders, is named in `missing`. A diagnosis and a trajectory that
    `meq analyze` left in the run's folder are taken over if they are of the same weights.
    """
    files = open_run_files(folder)
    into = into or files.folder
    if not files.has_weights:
        raise StudyError(f"{files.folder} has no trained weights, so there is nothing to look at")
    kept = read_showcase(into)
    if kept is not None and kept.origin.weights_sha256 == files.task.weights_sha256 and not kept.missing:  # type: ignore[union-attr]
        return kept
    found = _Look(files, root, showing, progress or _untold).found()
    write_showcase(into, found)
    return found


def _untold(what: str, done: int, total: int) -> None:
    """Nobody wants to know."""


class _Look:
    """One look at one run: what fails is written down, and the rest goes on."""

    def __init__(self, files: RunFiles, root: Path | None, showing: Showing, progress: Progress) -> None:
        split = files.reported_split
        if split is None:
            raise StudyError(f"{files.folder}: its record names no answers, so there is nothing to look at")
        self.files, self.root, self.showing, self.progress, self.split = files, root, showing, progress, split
        self.run: TrainedRun = load_run(files.folder)
        self.arm = arm_of(self.run)
        self.missing: list[str] = []
        self.reproduced: float | None = None

    def found(self) -> ShowcaseFile:
        raw = self._tried("the data of the run", "give its folder with --root", self._raw)
        encoders = self._tried("the encoders of the run", "install or give what is named", self._encoders)
        features = None
        if raw is not None and encoders is not None:
            features = self._tried("features", "mend what is named", partial(self._features, raw, encoders))
        diagnosis, trajectory, maps = self._kept_analysis()
        eigenvalues = None
        if features is not None and self._iterates:
            diagnosis = diagnosis or self._tried("the diagnosis", "report it", partial(self._diagnosed, features))
            trajectory = trajectory or self._tried("the score along k", "report it", partial(self._followed, features))
            eigenvalues = self._tried("the eigenvalues", "report it", partial(self._eigenvalues, features))
            maps = maps or self._tried("the test of the maps", "report it", partial(self._maps, features))
        examples = () if raw is None else self._examples(raw, encoders)
        return ShowcaseFile(
            schema=SCHEMA,
            origin=self._origin(),
            reproduced=self.reproduced,
            chosen=how_chosen(self.run.task.head, self.split, self.showing.examples),
            examples=examples,
            diagnosis=diagnosis,
            trajectory=trajectory,
            eigenvalues=eigenvalues,
            missing=tuple(self.missing),
            maps=maps,
        )

    @property
    def _iterates(self) -> bool:
        return isinstance(self.run.model, Iterated)

    def _tried(self, what: str, advice: str, get: Any) -> Any:
        try:
            return get()
        except Exception as error:
            if not is_users(error):  # a fault of ours is no advice: it is raised, with its place
                raise
            words = " ".join(in_words(error).split())
            self.missing.append(f"Not here: {what}. {words.rstrip('.')}. To have it, {advice}.")
            return None

    # -- the data ------------------------------------------------------------------------------------------------------

    def _raw(self) -> DataSet:
        data = raw_data(self.run, root=self.root)
        if self.split not in data.splits:
            raise StudyError(f"{data.name} has no split {self.split!r} here; it has {', '.join(data.splits)}")
        return replace(data, splits={self.split: data.splits[self.split]})

    def _encoders(self) -> dict[str, Encoder]:
        return encoders_of_run(self.run)

    def _features(self, raw: DataSet, encoders: Mapping[str, Encoder]) -> DataSet:
        """The first of the split, as the model reads them; their answers are held against the stored ones."""
        few = replace(raw, splits={self.split: raw.splits[self.split][: self.showing.limit]})
        request = self.run.request
        skipping = request is not None and request.skip_bad
        reading = Reading(on_bad="skip" if skipping else "raise", progress=self.progress)
        _, data, _ = as_features(self.run, few, encoders, reading=reading)
        if self.arm is not None and self.arm.blank:
            data = blank(data, self.arm.blank)
        self.reproduced = self._difference(data)
        return data

    def _difference(self, data: DataSet) -> float:
        """The largest difference of a logit to the stored one; infinite if the examples are others."""
        stored = self.files.predictions(self.split)
        if stored is None:
            return math.inf
        place = {id_: row for row, id_ in enumerate(stored.ids)}
        largest = 0.0
        for examples, batch in _batches(data):
            rows = [place.get(example.id, -1) for example in examples]
            if -1 in rows or not torch.equal(batch.target, stored.target[rows].to(batch.target)):
                return math.inf
            with torch.no_grad():
                logits = self.run.model(batch.features, batch.masks).logits.float()
            largest = max(largest, float((logits - stored.logits[rows]).abs().nan_to_num(0.0).max()))
        return largest

    def _origin(self) -> Origin:
        return Origin(
            schema=ANALYSIS_SCHEMA,
            data=self.run.task.data,
            split=self.split,
            same_data=self.reproduced is not None and self.reproduced <= SAME,
            weights_sha256=self.run.task.weights_sha256,
        )

    # -- the equilibrium -----------------------------------------------------------------------------------------------

    def _kept_analysis(self) -> tuple[DiagnosisFile | None, TrajectoryFile | None, MapsFile | None]:
        found: RunAnalysis | None = read_analysis(self.files.folder)
        if found is None or found.diagnosis.origin.weights_sha256 != self.run.task.weights_sha256:
            return None, None, None
        return found.diagnosis, found.trajectory, found.maps

    def _diagnosed(self, data: DataSet) -> DiagnosisFile:
        self.progress("diagnosing", 0, 1)
        answered = [batch for _, batch in _batches(data)]
        found: Diagnosis = diagnose(self.run.model, self._output(data), data=answered, samples=self.showing.samples)
        self.progress("diagnosing", 1, 1)
        return diagnosis_file(found, self._origin())

    def _maps(self, data: DataSet) -> MapsFile | None:
        model = self.run.model
        assert isinstance(model, Iterated)
        return tested_maps(model, data, self._origin(), self.progress)

    def _followed(self, data: DataSet) -> TrajectoryFile:
        model, total = self.run.model, len(data.splits[self.split])
        assert isinstance(model, Iterated)

        def told() -> Iterator[Batch]:
            done = 0
            for examples, batch in _batches(data):
                yield batch
                done += len(examples)
                self.progress("following the steps", done, total)

        horizon = 2 * model.steps
        walked = follow(model, told(), steps=range(horizon + 1), horizon=horizon, metric=data.metric)
        return trajectory_file(walked, self._origin())

    def _eigenvalues(self, data: DataSet) -> EigenvaluesFile | None:
        solution: Solution = self._output(data).solution.detach()
        finite = [row for row, stop in enumerate(solution.stop) if stop is not Stop.DIVERGED]
        few = some_samples(solution, finite[: self.showing.samples])
        if not finite:
            return None
        self.progress("eigenvalues", 0, 1)
        found = leading_eigenvalues(few.operator, few, count=self.showing.eigenvalues).values
        self.progress("eigenvalues", 1, 1)
        return EigenvaluesFile(
            real=tuple(tuple(row) for row in found.real.tolist()),
            imaginary=tuple(tuple(row) for row in found.imag.tolist()),
            damping=float(few.solver.step) if isinstance(few.solver, Damped) else None,
        )

    def _output(self, data: DataSet) -> Any:
        _, batch = next(_batches(data, size=max(self.showing.samples, 32)))
        with torch.no_grad():
            return self.run.model(batch.features, batch.masks)

    # -- the examples --------------------------------------------------------------------------------------------------

    def _examples(self, raw: DataSet, encoders: Mapping[str, Encoder] | None) -> tuple[ExampleFile, ...]:
        stored = self.files.predictions(self.split)
        if stored is None:
            self.missing.append(f"Not here: the stored answers to {self.split}, by which examples are chosen.")
            return ()
        judged = judge(stored, self.run.task.head)
        wanted = {judged.ids[each.row]: each for each in notable(judged, self.showing.examples)}
        there = {example.id: example for example in raw.splits[self.split] if example.id in wanted}
        if absent := [id_ for id_ in wanted if id_ not in there]:
            self.missing.append(f"Not here: {len(absent)} of the examples to show, such as {absent[0]!r}.")
        examples = [there[id_] for id_ in wanted if id_ in there]
        explanations = self._explanations(examples, encoders) or [None] * len(examples)
        show = ExampleMaker(self.run, stored, judged)
        kept = []
        for example, explanation in zip(examples, explanations, strict=True):
            make = partial(show, example, wanted[example.id], explanation)
            kept.append(self._tried(f"the example {example.id!r}", "mend what is named", make))
        return tuple(each for each in kept if each is not None)

    def _explanations(
        self, examples: Sequence[Example], encoders: Mapping[str, Encoder] | None
    ) -> list[Explanation | None] | None:
        if not self._iterates or encoders is None or not examples:
            return None
        if self.arm is not None and self.arm.blank:
            self.missing.append(f"Not shown: heat maps, since the arm sees zeros for {', '.join(self.arm.blank)}.")
            return None
        make = partial(explained_one_by_one, self.run, examples, encoders, self.progress)
        return self._tried("heat maps", "see the reason", make)


def _batches(data: DataSet, *, size: int = BATCH) -> Iterator[tuple[list[Example], Batch]]:
    (split,) = data.splits.values()
    for start in range(0, len(split), size):
        examples = list(split[start : start + size])
        yield examples, collate(examples, data.widths)
