"""A trained run: the model, its labels, what is done to an example before, and the verbs of the command line.

run = meq.load("runs/photos")
print(run.evaluate())
run.predict("new.csv").save("answers.csv")
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from huggingface_hub import HfApi

from meq.data.frames import on_disk
from meq.devices import chosen_device
from meq.errors import require
from meq.models.anytime import Anytime
from meq.models.base import FusionModel
from meq.models.hub import CONFIG, WEIGHTS
from meq.models.iterated import IteratedModel
from meq.models.quantise import LEAST_WEIGHTS, quantise
from meq.options import checked_options
from meq.records import SEAL
from meq.registry import imported
from meq.runs.calibrate import CALIBRATION, Calibration, Probabilities
from meq.showing import Shown
from meq.studies.study import StudyError
from meq.training.bundle import CARD, TASK, Task
from meq.training.predictions import BATCH_SIZE
from meq.training.record import RunRecord, RunRequest, read_request
from meq.web.limits import Limits

if TYPE_CHECKING:
    from meq.analysis.audit_findings import Audit
    from meq.runs.analyze import RunAnalysis
    from meq.runs.answers import Answer, Answers
    from meq.runs.cost import RunCost
    from meq.runs.evaluate import Evaluation
    from meq.runs.explanation import Contrast, Explanation
    from meq.runs.export import ExportedRun
    from meq.runs.importance import Importance
    from meq.runs.own_data import ReadOptions
    from meq.runs.quantise import QuantisedRun
    from meq.training.calibration import StopCalibration

Options = TypeVar("Options")

UPLOADED = (CONFIG, WEIGHTS, TASK, CARD, SEAL, CALIBRATION)
"""What belongs to a model and goes to the Hub with it; whatever else lies in its folder stays here."""
DRAWN = {"report": "meq.viz.report:write_report", "explanation": "meq.viz.animation:draw_explanation"}
"""What draws: by name, since viz reads runs, and not the other way round."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run(Shown):
    """A model that is ready to answer, with the verbs of the command line.

    >>> run = meq.load("runs/photos")
    >>> answers = run.predict("new.csv")  # a list of answers, one for each row
    >>> answers[0].answer in run.labels, len(answers)
    (True, 3)
    >>> one = run.predict("0.png", "a warm picture")
    >>> one.answer in run.labels, 0 <= one.confidence <= 1
    (True, True)
    """

    model: FusionModel
    task: Task
    record: RunRecord | None
    """None for a model that was loaded without the rest of its run."""
    folder: Path
    """Where its files lie."""
    sealed: bool = False
    """Whether there were hashes of all its files to check; runs of older versions have those of some only."""
    calibration: Calibration | None = None
    """What was calibrated after its training."""

    @property
    def anytime(self) -> Anytime | None:
        """The calibrated rule that its answers are read by; None: all are read at the model's own depth K."""
        stopping = None if self.calibration is None else self.calibration.stopping
        return None if stopping is None else stopping.anytime

    def model_read(self, steps: int | None = None) -> FusionModel:
        """The model as it answers: read at step `steps`, or unless given by the calibrated rule, or else at K.

        It shares all weights with `model`, which stays as it is: instruments look at K, and threads at what they ask.
        """
        if steps is None and self.anytime is None:
            return self.model
        if not isinstance(self.model, IteratedModel):
            kind = type(self.model).__name__
            raise StudyError(f"the run's model, {kind}, does not iterate: there are no steps to read it at")
        other = copy.copy(self.model)
        other.anytime = None if steps is not None else self.anytime
        other.steps = self.model.steps if steps is None else steps
        return other

    def quantised(self, *, least_weights: int = LEAST_WEIGHTS) -> Run:
        """The run with an int8 model, see `meq.quantise`: `run.quantised().predict(examples)`. A calibrated rule stays.

        `evaluate(int8=True)` says what that changes; `meq.runs.quantise.save_quantised` writes it.
        """
        if self.model.int8 is not None:
            raise StudyError(f"{self.folder} holds an int8 model already: leave out --int8 (int8=True)")
        return replace(self, model=quantise(self.model, least_weights=least_weights))

    @property
    def not_sealed(self) -> str | None:
        """What to know of a run without a seal, which is not finished, or of an older version; else None."""
        if self.unfinished is not None:
            return self.unfinished
        words = f"{self.folder} is not sealed: only its weights were checked, as with runs of older versions of meq"
        return None if self.sealed else words

    def move_to(self, device: str | None) -> None:
        """Let its model compute on that device, which must be there; it stays where it is if none is named.

        Encoders that are loaded from then on compute there too.
        """
        if device is not None:
            self.model.to(chosen_device(device))

    @property
    def unfinished(self) -> str | None:
        """Which weights these are, where the run did not come to its end; None where it did."""
        if self.record is None or self.record.scored:
            return None
        found, epochs = self.record.selected, self.record.config["epochs"]
        which = "the best weights so far"
        if found.epoch is not None and found.value is not None:
            which += (
                f", of epoch {found.epoch} of {epochs} (counted from 0), with {found.metric} {found.value:.4f} on dev"
            )
        return f"{self.place} is not finished (its record says: {self.record.status}): these are {which}"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.task.labels

    @property
    def batch_size(self) -> int:
        """How many examples are answered at a time: as many as in training, so that padding, and bits, are the same."""
        return BATCH_SIZE if self.record is None else int(self.record.config["batch_size"])

    @property
    def place(self) -> Path | None:
        """The run's own folder; None for a model without the rest of its run."""
        return self.folder.parent if self.folder.name == "model" else None

    @property
    def request(self) -> RunRequest | None:
        """What it was asked to train on; None for a run of a study, and for a model without the rest of its run."""
        return None if self.place is None else read_request(self.place)

    # -- the verbs of the command line, by the same names; each result prints itself ----------------------------------

    @checked_options
    def predict(
        self,
        data: Any,
        *more: Any,
        root: Path | str | None = None,
        id: str | None = None,  # noqa: A002, the word on the command line
        columns: Sequence[str] | None = None,
        steps: int | None = None,
        full: bool = False,
        int8: bool = False,
        skip_bad: bool = False,
        store: Path | str | None = None,
        device: str | None = None,
        encoders: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        raw: bool = False,
        coverage: float | None = None,
    ) -> Answers | Answer:
        """Answers to a table with the columns of training (a path, a DataFrame, a Dataset, a list of dictionaries).

        `run.predict("new.csv", "pictures")` takes paths from a folder, `run.predict("0.png", "a warm picture")` answers
        one example, and a list of `meq.data.Example` is answered too. No label is needed, and an empty cell is a
        missing modality. `columns` of the table stand beside the answers: all unless named. Rows are read at step
        `steps`, or with `full` at K; else by the calibrated rule, or at K. `encoders` maps kinds of content to folders
        that have moved, or, for examples, modalities to encoders. Probabilities are those of the run's temperature, or
        `raw`; `coverage`, such as 0.9, asks for sets of classes, or intervals, that hold the true answer so often.
        """
        from meq.runs.predict import answers_to

        self.move_to(device)
        return answers_to(
            self.quantised() if int8 else self,
            data,
            more,
            root=_path(root),
            id_column=id,
            columns=columns,
            steps=self.depth_read(steps, full),
            on_bad="skip" if skip_bad else "raise",
            store=_path(store),
            encoders=encoders,
            batch_size=batch_size,
            raw=raw,
            coverage=coverage,
        )

    def predict_table(
        self, path: Path | str, *, root: Path | None = None, skip_bad: bool = False, steps: int | None = None
    ) -> Answers:
        """The older name of `predict` for a table in a file."""
        from meq.runs.predict import predict_table

        return predict_table(self, path, root=root, on_bad="skip" if skip_bad else "raise", steps=steps)

    @checked_options
    def evaluate(
        self,
        data: Any = None,
        root: Path | str | None = None,
        *,
        split: str | None = None,
        steps: int | None = None,
        full: bool = False,
        int8: bool = False,
        skip_bad: bool = False,
        store: Path | str | None = None,
        device: str | None = None,
        encoders: Mapping[str, str | None] | None = None,
        worth: bool = True,
    ) -> Evaluation:
        """Scores on every labelled split of its own data, or on a table with the same columns, in a file or in memory.

        With `int8` those of its int8 model, beside the float one's and the share of answers that changed.
        """
        from meq.runs.evaluate import evaluate_run
        from meq.runs.own_data import ReadOptions

        reading = ReadOptions(on_bad="skip" if skip_bad else "raise", encoders=encoders, store=_path(store))
        depth = self.depth_read(steps, full)
        self.move_to(device)
        with _given(data, root) as (name, begin):
            return evaluate_run(
                self, name, root=begin, split=split, reading=reading, steps=depth, int8=int8, worth=worth
            )

    @checked_options
    def importance(
        self,
        data: Any = None,
        root: Path | str | None = None,
        *,
        split: str | None = None,
        samples: int | None = None,
        repeats: int | None = None,
        tokens: bool = True,
        words: int | None = None,
        seed: int | None = None,
        skip_bad: bool = False,
        store: Path | str | None = None,
    ) -> Importance:
        """How much modalities, columns, tokens and words count, shuffled and removed; kept in the run's folder."""
        from meq.runs.importance import importance_of_run

        asked = {"samples": samples, "repeats": repeats, "words": words, "seed": seed}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        with _given(data, root) as (name, begin):
            reading = _reading(skip_bad, store)
            return importance_of_run(self, name, root=begin, split=split, tokens=tokens, reading=reading, **given)

    @checked_options
    def explain(
        self,
        *contents: Any,
        out: Path | str | None = None,
        steps: int | None = None,
        method: str | None = None,
        instead: str | None = None,
        token: str | None = None,
        animation: str = "gif",
        store: Path | str | None = None,
        encoders: Mapping[str, str | None] | None = None,
    ) -> Explanation | Contrast:
        """What the model makes of one example, step by step: `run.explain("0.png", "a warm picture")`.

        `steps` is the last step to look at, `instead` another text to compare with. Pictures and an `animation` are
        drawn into the folder `out`, if one is given.
        """
        from meq.runs.explain import explain_contents

        found = explain_contents(
            self,
            contents,
            steps=steps,
            method=method,
            instead=instead,
            token=token,
            store=_path(store),
            encoders=encoders,
        )
        if out is not None:
            imported(DRAWN["explanation"])(found, Path(out), form=animation)
        return found

    @checked_options
    def diagnose(
        self,
        data: Any = None,
        root: Path | str | None = None,
        *,
        split: str | None = None,
        samples: int | None = None,
        limit: int | None = None,
        horizon: int | None = None,
        steps: int | None = None,
        skip_bad: bool = False,
        store: Path | str | None = None,
    ) -> RunAnalysis:
        """Is its equilibrium healthy, who moves whom, what does each step add? Kept in the run's folder."""
        from meq.runs.analyze import AnalysisOptions, analyze_run

        options = _options(AnalysisOptions, split=split, samples=samples, limit=limit, horizon=horizon, steps=steps)
        reading = _reading(skip_bad, store)
        with _given(data, root) as (name, begin):
            return analyze_run(self, name, root=begin, options=options, reading=reading)

    @checked_options
    def audit(
        self,
        data: Any = None,
        root: Path | str | None = None,
        *,
        split: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
        skip_bad: bool = False,
        store: Path | str | None = None,
    ) -> Audit:
        """Is it iterating at all, and does it keep what it finds? Five questions and a verdict."""
        from meq.runs.audit import AuditOptions, audit_run

        options = _options(AuditOptions, split=split, samples=samples, seed=seed)
        with _given(data, root) as (name, begin):
            return audit_run(self, name, root=begin, options=options, reading=_reading(skip_bad, store))

    @checked_options
    def calibrate(
        self,
        *,
        stop: bool = False,
        temperature: bool = False,
        coverage: bool = False,
        root: Path | str | None = None,
        rule: str | None = None,
        risk: float | None = None,
        confidence: float | None = None,
        most: int | None = None,
        split: str | None = None,
        seed: int | None = None,
        skip_bad: bool = False,
        store: Path | str | None = None,
    ) -> StopCalibration | Probabilities:
        """With `stop`, when answers are read; with `temperature` and `coverage`, what probabilities are worth.

        One of the two at a time. Both keep what they find with the weights: load the run again to use it.
        """
        from meq.runs.calibrate import StopOptions, calibrate_probabilities, calibrate_run

        where: dict[str, Any] = {"root": _path(root), "reading": _reading(skip_bad, store)}
        if stop == (temperature or coverage):
            raise StudyError(
                f"{'two things' if stop else 'nothing'} to calibrate {'were' if stop else 'was'} named: give `stop` "
                "for when answers are read, or else `temperature`, `coverage` or both"
            )
        if not stop:
            where |= {} if split is None else {"split": split}
            return calibrate_probabilities(self, temperature=temperature, coverage=coverage, **where)
        options = _options(StopOptions, rule=rule, risk=risk, confidence=confidence, most=most, split=split, seed=seed)
        return calibrate_run(self, options, **where)

    @checked_options
    def cost(
        self,
        *,
        batch: int | None = None,
        steps: Sequence[int] | None = None,
        tokens: Mapping[str, int] | None = None,
        passes: int | None = None,
        rounds: int | None = None,
        encoders: Sequence[str] = (),
        device: str | None = None,
        store: Path | str | None = None,
    ) -> RunCost:
        """Time, FLOPs and memory of a forward pass, and of one more step."""
        from meq.runs.cost import cost_of_run

        asked = {"batch_size": batch, "steps": steps, "tokens": tokens, "passes": passes, "rounds": rounds}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        return cost_of_run(self, **given, encoders=encoders, device=device, store=_path(store))

    @checked_options
    def quantise(self, out: Path | str, *, least_weights: int = LEAST_WEIGHTS) -> QuantisedRun:
        """Write its model with int8 weights into a folder that is not there yet; `meq.load` loads it."""
        from meq.runs.quantise import save_quantised

        return save_quantised(self, Path(out), least_weights=least_weights)

    @checked_options
    def report(
        self,
        out: Path | str | None = None,
        *,
        root: Path | str | None = None,
        only_files: bool = False,
        store: Path | str | None = None,
    ) -> Path:
        """Write one HTML file on the run, to be read without meq; its path. Nothing is opened."""
        from meq.runs.showcase import ShowcaseOptions, look_for_report

        if self.place is None:
            raise StudyError(f"{self.folder} is a model without the rest of its run, which a report is made from")
        require("matplotlib", "a report")
        write, looks = imported(DRAWN["report"]), None
        with TemporaryDirectory(prefix="meq-report-") as scratch:
            if not only_files:
                options = ShowcaseOptions(store=_path(store))
                looks, _ = look_for_report(self.place, scratch=Path(scratch), root=_path(root), options=options)
            place: Path = write(self.place, _path(out), looks=looks)
        return place

    def depth_read(self, steps: int | None, full: bool) -> int | None:
        """The step that `steps` or `full` ask for; None where neither does."""
        if steps is not None and full:
            raise ValueError("`steps` and `full` say two different depths: give one of them")
        return getattr(self.model, "steps", None) if full else steps

    @checked_options
    def serve(
        self,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        allow_hosts: Sequence[str] = (),
        auth: str | None = None,
        limits: Limits = Limits(),  # noqa: B008
        steps: int | None = None,
    ) -> None:
        """Answer over HTTP until Ctrl-C, as `meq serve` does; needs `pip install 'meq[serve]'`.

        Only this machine can reach it, unless `host` says otherwise, and then it needs `auth`, "USER:PASSWORD".
        """
        from meq.runs.serve import serve
        from meq.web.gate import Password

        password = None if auth is None else Password.of(auth)
        serve(self, host=host, port=port, allow_hosts=allow_hosts, password=password, limits=limits, steps=steps)

    @checked_options
    def export(self, *, onnx: Path | str, steps: int | None = None) -> ExportedRun:
        """Write the run as ONNX, with a loop that needs neither torch nor meq; needs `pip install 'meq[onnx]'`."""
        from meq.runs.export import export_run

        return export_run(self, onnx, steps=steps)

    def push_to_hub(self, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
        """Upload the model and its task, which `load_run(repo_id)` loads again; returns the address."""
        api = HfApi(token=token)
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=self.folder,
            allow_patterns=list(UPLOADED),
            commit_message="Upload a trained run",
        )
        return str(address)

    def __str__(self) -> str:
        widths = ", ".join(f"{name} ({self.task.kinds.get(name, 'features')})" for name in self.task.widths)
        lines = [f"{type(self.model).__name__} in {self.place or self.folder}, trained on {self.task.data}: {widths}"]
        for split, found in ({} if self.record is None else self.record.metrics).items():
            metric = self.record.metric if self.record is not None else ""
            lines.append(f"{split}: {metric} {found[metric]:.4f}" if metric in found else split)
        return "\n".join(lines)

    __repr__ = __str__


TrainedRun = Run
"""The older name."""


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)


def _given(data: Any, root: Path | str | None) -> AbstractContextManager[tuple[str | None, Path | None]]:
    """Other data than the run's own, a table in memory too, and where its paths start."""
    return nullcontext((None, _path(root))) if data is None else on_disk(data, _path(root))


def _options(kind: type[Options], **given: Any) -> Options:
    """Options with what was given; what was not keeps the default that stands with them."""
    return kind(**{name: value for name, value in given.items() if value is not None})


def _reading(skip_bad: bool, store: Path | str | None) -> ReadOptions:
    from meq.runs.own_data import ReadOptions

    return ReadOptions(on_bad="skip" if skip_bad else "raise", store=_path(store))
