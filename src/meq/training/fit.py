"""fit(): from features to a trained model, on one process or many, interrupted as often as it likes.

One update sees `batch_size x processes x accumulate` samples. Which samples those are, their dropout and their probes
depend on the seed, the step and the sample only, and losses and gradients are means over all of them, however they are
shared out. What the number of processes does change is the order in which floating-point numbers are summed: the same
update made by one process and by two agrees to rounding, not to the bit, and training carries the difference on.
`tests/training/test_processes.py` holds the weights after two small epochs to a distance of 1e-9 of their norm in
float64 and 1e-3 in float32. The same run on the same number of processes is the same to the bit, interrupted or not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from meq.data.context import Context, context_of
from meq.data.contract import Batch, DataSet
from meq.errors import Interrupted
from meq.models.base import FusionModel, Output
from meq.models.hub import WEIGHTS
from meq.objectives import Loss, Objective
from meq.records import SEAL, is_full, sha256
from meq.training.alarms import Vitals, raised, take_vitals, vitals_of
from meq.training.bundle import seal_run, write_bundle, write_weights
from meq.training.checkpoint import CheckpointError, GoneError, RunFolder
from meq.training.config import TrainConfig, check_depth, check_model, check_splits, check_trackers
from meq.training.imbalance import NONE, class_weights
from meq.training.predictions import Predictions, labelled, predict_split, scores
from meq.training.record import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    STOPPED,
    Progress,
    Provenance,
    RunError,
    RunRecord,
    Session,
    blank_record,
    differences,
    holds_scores,
    notes_on,
    read_record,
    selected,
    session,
    write_record,
    write_request,
)
from meq.training.terminal import LiveBar, StopRequests
from meq.training.updates import (
    Schedule,
    TrainingError,
    average_weights,
    averaged,
    drawn_depth,
    examples_per_update,
    make_optimiser,
    sample_seeds,
    scale_inputs,
    update_batches,
)


def fit(
    model: FusionModel,
    data: DataSet,
    objective: Objective,
    folder: str | Path,
    config: TrainConfig,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> RunRecord:
    """Train, validate every epoch, keep the selected weights in `folder/model`; returns the record, also on disk."""
    return Training(model, data, objective, folder, config, console).run(resume=resume)


@contextmanager
def _asking_for(device: str | None) -> Iterator[None]:
    """Accelerate reads from the environment which device it is to take; what this process starts later is not told."""
    before = os.environ.get(DEVICE)
    if device is not None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(f"device={device!r} is for one process: the launcher gives each of several its own")
        os.environ[DEVICE] = device
    try:
        yield
    finally:
        os.environ.pop(DEVICE, None)
        if before is not None:
            os.environ[DEVICE] = before


def _shaped(objective: Objective, data: DataSet, config: TrainConfig) -> Objective:
    """The objective with what the recipe says of its loss; the very same where that changes nothing."""
    told: dict[str, Any] = {"decay": config.supervise_decay}
    if config.class_weight != NONE:
        told["class_weights"] = class_weights(data, config)
    if config.label_smoothing:
        told["label_smoothing"] = config.label_smoothing
    changed = any(getattr(objective, name) != value for name, value in told.items())
    return replace(objective, **told) if changed else objective


def _is(device: torch.device, asked: torch.device) -> bool:
    return device.type == asked.type and (asked.index is None or (device.index or 0) == asked.index)


DEVICE = "ACCELERATE_TORCH_DEVICE"
MORE_EPOCHS = "a run that is over can be given more epochs, never fewer; one that is interrupted is finished first"


class Training:
    """One run."""

    def __init__(
        self,
        model: FusionModel,
        data: DataSet,
        objective: Objective,
        folder: str | Path,
        config: TrainConfig,
        console: Console | None = None,
        *,
        provenance: Provenance | None = None,
        device: str | None = None,
    ) -> None:
        """`device`: where to train; what Accelerate finds unless given."""
        self.data, self.folder, self.config = data, Path(folder), config
        self.provenance = Provenance() if provenance is None else provenance
        check_trackers(config.trackers)
        check_model(model, data)
        check_depth(model, config)
        check_splits(data, config)
        self.objective = _shaped(objective, data, config)
        self.place = RunFolder(self.folder)
        self.checkpoints = self.place.checkpoints
        with _asking_for(device):
            self.accelerator = Accelerator(
                # without an accelerator said: or torchrun on CPUs would start runs that ignore each other
                cpu=device == "cpu" or not torch.accelerator.is_available(),
                mixed_precision=config.precision,
                log_with=list(config.trackers) or None,
                project_dir=self.folder / "tracking",
            )
        if device is not None and not _is(self.accelerator.device, torch.device(device)):
            raise ValueError(
                f"this process trains on {self.accelerator.device} already, and not on {device!r}: Accelerate keeps "
                "the device of a process's first run"
            )
        self.main = self.accelerator.is_main_process
        if config.scale_inputs:
            scale_inputs(model, data, config)  # a resumed run reads its weights afterwards
        optimiser = make_optimiser(model, config.learning_rate, config.weight_decay)
        self.wrapped, self.optimiser = self.accelerator.prepare(model, optimiser)
        self.model: FusionModel = self.accelerator.unwrap_model(self.wrapped)
        self.progress = Progress()
        self.sessions: tuple[Session, ...] = ()
        self.answers: Predictions | None = None
        """Those of the newest epoch to dev; None where that epoch was another process's, before the run was resumed."""
        self.saved: tuple[str, Predictions] | None = None
        """The SHA-256 of the weights as they were saved, and what they answered to dev before."""
        self.started = 0.0
        """When the clock of `progress.seconds` would have begun, had the run never been interrupted."""
        processes = self.accelerator.num_processes
        self.updates = len(data.splits["train"]) // examples_per_update(config, processes)
        """Per epoch."""
        total = config.epochs * self.updates
        self.blank = blank_record(self.model, self.objective, data, config, self.provenance, processes=processes)
        self.schedule = Schedule(total_steps=total, peak=config.learning_rate, warmup=config.warmup, decay=config.decay)
        self.bar = LiveBar(total, shown=self.main, console=console)
        self.stop = StopRequests(shown=self.main and not self.bar.console.quiet)

    def run(self, *, resume: bool) -> RunRecord:
        """Train to the end. Ctrl-C and SIGTERM end it after the update under way, with a checkpoint to go on from.

        While it runs, the folder is this process's own: another one that wants to train there gets a BusyError.
        """
        with self.place.held(self.accelerator), self.stop:
            self._begin(resume)
            try:
                record = self._run()
                if self.main:
                    self.place.refuse_gone()
                    seal_run(self.folder, record)  # before the record: whoever finds a finished one finds it sealed
                    write_record(self.folder, record)
            except KeyboardInterrupt:
                self._write_record(self._record(INTERRUPTED))
                raise
            except Exception as error:
                told = self._in_words(error)
                self._write_ending(told, passing=is_full(error) or isinstance(error, torch.OutOfMemoryError))
                if told is error:
                    raise
                raise told from error
        self.accelerator.end_training()
        return record

    def _run(self) -> RunRecord:
        self.started = time.monotonic() - self.progress.seconds
        with self.bar:
            while self.progress.epoch < self.config.epochs and not self._ended():
                self._train_epoch()
                self._finish_epoch()
                self._stop_if_asked(self._mean_and_stop(0.0)[1])
        if self.main and (self.config.select == "last" or self.progress.best is None):
            self._save_model()
        self.accelerator.wait_for_everyone()
        with self.stop.at_once():
            return self._scored(self._record(STOPPED if self.progress.stopped else FINISHED))

    def _ended(self) -> bool:
        return self.progress.stopped or self.progress.ended is not None

    # -- the parts of a run ------------------------------------------------------------------------------------------

    def _begin(self, resume: bool) -> None:
        found = bool(self.checkpoints.all())
        if found and not resume:
            raise TrainingError(f"{self.folder} already holds a run: resume it, or choose another folder")
        if not found and holds_scores(self.folder):
            raise TrainingError(
                f"{self.folder} holds a run that is over, and its checkpoints are gone: choose another folder"
            )
        self.place.refuse_too_little_room(self.accelerator, self.model)
        restored = self.checkpoints.load(self.model, self.optimiser, self.bar.say) if found else None
        if restored is not None:
            further = self._refuse_another_run()
            self.progress = Progress(**restored[1])
            self.bar.say(f"resuming {self.folder} after step {self.progress.step} of {self.schedule.total_steps}")
            if further:
                self._go_further()
        if self.main:
            self.place.clean()
            (self.folder / SEAL).unlink(missing_ok=True)  # written anew at the end
            if self.provenance.request is not None and not found:
                write_request(self.folder, self.provenance.request)
        self.sessions += (session(self.progress.step, self.accelerator.device, self.config.epochs),)
        if self.config.trackers:
            self.accelerator.init_trackers("meq", {name: str(x) for name, x in self.config.to_json().items()})
        self._write_record(self._record("running"))

    def _refuse_another_run(self) -> bool:
        """A run goes on as it began, or its curves would be those of two different ones. Whether it goes further: one
        that is over may be given more epochs."""
        began = read_record(self.folder)
        further = began.scored and self.config.epochs > int(began.config["epochs"])
        found = differences(began, self._record("running"))
        if further:
            found = {part: [name for name in what if name != "epochs"] for part, what in found.items()}
        for part, what in found.items():
            if what:
                advice = f" ({MORE_EPOCHS})" if what == ["epochs"] else ""
                raise TrainingError(
                    f"{self.folder} cannot be resumed: its {part} differs in {', '.join(what)}{advice}. "
                    "Resume with the options it was begun with, or choose another folder"
                )
        self.sessions = began.sessions
        return further

    def _go_further(self) -> None:
        """A run that was over has more epochs to go: whatever ended it counts no longer, and patience counts anew."""
        progress = self.progress
        progress.stopped, progress.ended, progress.since = False, None, progress.epoch
        rate = self.schedule.at(progress.step)
        self.bar.say(
            f"training further, from epoch {progress.epoch} to {self.config.epochs}; the learning rate is that of a "
            f"run of {self.config.epochs} epochs at this step, {rate:.2g}"
        )
        if self.main:  # before the record says so: whoever resumes what is killed now finds that it goes on
            self.checkpoints.save(progress.step, self.model, self.optimiser, asdict(progress))

    def _train_epoch(self) -> None:
        self.wrapped.train()
        progress = self.progress
        batches = update_batches(
            self.data, self.config, self.accelerator, epoch=progress.epoch, start=progress.position
        )
        for micro_batches in batches:
            loss, mean = self._update(micro_batches)
            mean, stop = self._mean_and_stop(mean)
            progress.loss_sum += mean
            progress.position, progress.step = progress.position + 1, progress.step + 1
            self._show(loss, mean)
            due = progress.step % self.config.checkpoint_every == 0 and progress.position < self.updates
            if due or stop:
                self._checkpoint()
            self._stop_if_asked(stop)

    def _update(self, micro_batches: list[Batch]) -> tuple[Loss, float]:
        """One step of the optimiser: what the last micro-batch gave, and the mean loss over this process's."""
        step, losses = self.progress.step, []
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.at(step)
        for batch in micro_batches:
            waiting = nullcontext() if batch is micro_batches[-1] else self.accelerator.no_sync(self.wrapped)
            with waiting, self.accelerator.autocast():
                seeds = sample_seeds(self.config.seed, step, batch.ids)
                with drawn_depth(self.model, self.config, step, batch.ids):
                    output = self.wrapped(batch.features, batch.masks, seeds=seeds)
                loss = self.objective(self.model, output, batch.target, seeds=seeds)
                self._refuse_non_finite(loss.total, loss, batch)
                self.accelerator.backward(loss.total / len(micro_batches))
            losses.append(float(loss.total.detach()))
        norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.config.clip)
        self._refuse_non_finite(torch.as_tensor(norm), loss, batch)
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.config.average:
            average_weights(self.model, self.optimiser, self.config.average, step)
        return loss, sum(losses) / len(losses)

    def _show(self, loss: Loss, mean: float) -> None:
        numbers = {"loss": mean}
        if "jacobian_norm" in loss.statistics:
            numbers["jacobian"] = float(loss.statistics["jacobian_norm"].nanmean())
        residuals = [float(x.nanmean()) for name, x in loss.statistics.items() if name.startswith("residual/")]
        if residuals:
            numbers["residual"] = max(residuals)
        self.bar.update(self.progress.step, self.progress.epoch, **numbers)

    def _mean_and_stop(self, loss: float) -> tuple[float, bool]:
        """The mean over all processes, and whether one of them was asked to stop: then all stop at the same step."""
        asked = self.stop.noted is not None
        if self.accelerator.num_processes == 1:
            return loss, asked
        told = torch.tensor([loss, float(asked)], dtype=torch.float64, device=self.accelerator.device)
        mean, some = self.accelerator.reduce(told, "mean").tolist()
        return mean, some > 0

    def _stop_if_asked(self, stop: bool) -> None:
        """Only at a step that has its checkpoint."""
        if stop:
            self.bar.say(f"stopped after step {self.progress.step} of {self.schedule.total_steps}, with a checkpoint")
            raise Interrupted(*([] if self.stop.noted is None else [self.stop.noted]))

    def _finish_epoch(self) -> None:
        progress = self.progress
        self.answers, first = self._predict_dev()
        found = scores((self.data.metric,), self.objective.task, self.answers)
        score, loss = found[self.data.metric.name], found["loss"]
        entry = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train_loss": progress.loss_sum / self.updates,
            "dev_loss": loss,
            self.data.metric.name: score,
        }
        progress.curves.append(entry)
        self._look_for_alarms(first)
        if score == score and (progress.best is None or score > progress.best["value"]):  # NaN is never the best
            progress.best = {"epoch": progress.epoch, "value": score}
            if self.config.select == "best" and self.main:
                self._save_model()
        self.bar.update(progress.step, progress.epoch, loss=entry["train_loss"], metric=score)
        self.bar.end_epoch(progress.epoch)
        self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=progress.step)
        self._look_for_patience()
        progress.epoch, progress.position, progress.loss_sum = progress.epoch + 1, 0, 0.0
        self._checkpoint()
        self._write_record(self._record("running"))

    def _look_for_patience(self) -> None:
        """Stop where the score on dev has not risen for long, in this process as in all others."""
        progress, patience = self.progress, self.config.patience
        best = -1 if progress.best is None else int(progress.best["epoch"])
        waited = progress.epoch - max(best, progress.since - 1)
        last = progress.epoch + 1 >= self.config.epochs
        if not patience or waited < patience or progress.step < self.config.least_updates or last:
            return
        of = "no epoch had a score" if progress.best is None else f"the best is epoch {best}"
        progress.ended = (
            f"stopped early after epoch {progress.epoch} of at most {self.config.epochs} (counted from 0): "
            f"{self.data.metric.name} on dev had not risen for {waited} epochs, {of} (patience {patience})"
        )
        self.bar.say(progress.ended)

    def _look_for_alarms(self, first: Output | None) -> None:
        """Every process looks at the same samples, so that all of them come to the same decision."""
        with averaged(self.model, self.optimiser):
            vitals = self._vitals(first)
        if vitals is None:
            return
        self.progress.vitals.append(asdict(vitals))
        least = {"gate": vitals.gate, "cross_self": vitals.cross_self}
        self.bar.update(
            self.progress.step,
            self.progress.epoch,
            jacobian=vitals.jacobian_norm,
            residual=vitals.residual,
            **{name: min(values.values()) for name, values in least.items() if values},  # not every model has a gate
            radius=vitals.radius,
        )
        for alarm in raised([Vitals(**each) for each in self.progress.vitals]):
            self.progress.alarms.append(asdict(alarm))
            self.bar.say(f"ALARM, {alarm.kind} at epoch {alarm.epoch}: {alarm.message}")
            self.progress.stopped |= self.config.stop_on_alarm

    def _vitals(self, first: Output | None) -> Vitals | None:
        """Of the first dev samples: those of the scores' first batch where it holds them all, or of an own pass."""
        config, dev = self.config, self.data.splits["dev"]
        few, told = min(config.monitor_samples, len(dev)), min(config.batch_size, len(dev))
        samples = {"radius_samples": config.radius_samples, "probes": config.monitor_probes}
        # of several processes each has answered others, and what is measured is not rounded as the scores may be
        alike = self.accelerator.num_processes == 1 and config.precision == "no" and few <= told
        if alike and first is not None and first.solution is not None:
            rows = len(first.solution.steps) // told * few  # of multiple choice every choice is a row
            return vitals_of(self.model, first, self.progress.epoch, rows=rows, **samples)
        batch = self.data.collate(list(dev[:few])).to(self.accelerator.device)
        return take_vitals(self.model, batch, self.progress.epoch, **samples)

    def _predict_dev(self) -> tuple[Predictions, Output | None]:
        """Answers to dev, which may take long: a run that is asked to stop comes back to them. And the first output."""
        outputs: list[Output] = []
        try:
            with averaged(self.model, self.optimiser), self.stop.at_once():
                answers = self._predict("dev", look=lambda output: None if outputs else outputs.append(output))
                return answers, outputs[0] if outputs else None
        except Interrupted:
            self._save_checkpoint()  # other processes may be elsewhere by now: nobody is waited for
            raise

    def _predict(self, split: str, look: Callable[[Output], None] | None = None) -> Predictions:
        size = self.config.batch_size
        return predict_split(self.model, self.data, split, accelerator=self.accelerator, batch_size=size, look=look)

    def _scores(self, predictions: Predictions) -> dict[str, float]:
        return scores((self.data.metric, *self.data.also), self.objective.task, predictions)

    def _context(self, found: Predictions) -> Context:
        data = self.data
        return context_of((data.metric,), found.logits, found.target, head=data.head, labels=data.labels)

    def _scored(self, record: RunRecord) -> RunRecord:
        """The selected weights on every labelled split that was not trained on."""
        weights = self.folder / "model" / WEIGHTS
        if not weights.is_file():
            raise GoneError(f"{weights} is gone: it was removed while the run went on. Train again in another folder")
        self.model.load_state_dict(load_file(weights))
        self.model.eval()
        splits = [name for name, split in self.data.splits.items() if name != "train" and labelled(split)]
        known = self._known_answers(weights)
        answers = {split: known[split] if split in known else self._predict(split) for split in splits}
        record = replace(
            record,
            metrics={split: self._scores(found) for split, found in answers.items()},
            context={split: self._context(found) for split, found in answers.items()},
        )
        record = replace(record, notes=notes_on(record, len(self.data.splits["dev"])))
        return write_bundle(record, self.folder, self.data, self.provenance, answers) if self.main else record

    def _known_answers(self, weights: Path) -> dict[str, Predictions]:
        """By split: what the weights in this file have answered, as far as this process has asked them.

        The same bits as if they were asked again: the same weights, as their hash says, batches, device and mode. Of
        several processes only the first has saved them, and all ask again.
        """
        if self.saved is None or self.accelerator.num_processes > 1 or sha256(weights) != self.saved[0]:
            return {}
        return {"dev": self.saved[1]}

    # -- what is kept on disk ------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        self._save_checkpoint()
        self.accelerator.wait_for_everyone()

    def _save_checkpoint(self) -> None:
        self.progress.seconds = time.monotonic() - self.started
        if self.main:
            self.place.refuse_gone()
            self.checkpoints.save(self.progress.step, self.model, self.optimiser, asdict(self.progress))

    def _save_model(self) -> None:
        self.place.refuse_gone()
        with averaged(self.model, self.optimiser):
            hashed = write_weights(self.model, self.folder, self.blank, self.data, self.provenance)
        self.saved = None if self.answers is None else (hashed, self.answers)

    def _record(self, status: str) -> RunRecord:
        progress = self.progress
        return replace(
            self.blank,
            status=status,
            sessions=self.sessions,
            selected=selected(progress, self.config.select, self.data.metric.name),
            curves=tuple(progress.curves),
            vitals=tuple(progress.vitals),
            alarms=tuple(progress.alarms),
            steps=progress.step,
            wall_seconds=progress.seconds,
            ending=progress.ended,
        )

    def _write_record(self, record: RunRecord) -> None:
        if self.main and not self.place.gone():
            write_record(self.folder, record)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _refuse_non_finite(self, value: Tensor, loss: Loss, batch: Batch) -> None:
        """Stop before the weights are touched; every process stops with the one that saw it."""
        bad = (~torch.isfinite(value.detach())).float()
        if self.accelerator.num_processes > 1:
            bad = self.accelerator.reduce(bad, "sum")
        if not bool(bad > 0):
            return
        rows = (~torch.isfinite(loss.per_sample)).nonzero().flatten().tolist()
        ids = [batch.ids[row] for row in rows] or batch.ids
        good = self.checkpoints.newest()
        message = (
            f"the loss or its gradient is not finite at step {self.progress.step} "
            f"(batch {', '.join(ids[:8])}{', ...' if len(ids) > 8 else ''}). The weights were not changed by it; the "
            f"last good checkpoint is {good or 'none: the run had not reached one'}"
        )
        raise TrainingError(message, ids)

    def _in_words(self, error: Exception) -> Exception:
        """Errors that a user can do something about, in words that say what; any other as it is."""
        if self.place.gone():
            return self.place.gone_error()
        if is_full(error) and not isinstance(error, CheckpointError):
            return self.place.full_error()
        if isinstance(error, torch.OutOfMemoryError):
            return TrainingError(
                f"the device has not enough memory for this run at step {self.progress.step} (batch_size "
                f"{self.config.batch_size}, accumulate {self.config.accumulate}). Resume it with half the batch_size "
                "and twice the accumulate: every update sees the same samples, a part of them at a time"
            )
        return error

    def _write_ending(self, error: Exception, *, passing: bool) -> None:
        """Failed; or only interrupted, where what stood in the way may pass and the run can be resumed."""
        message = str(error).replace(f"{self.folder}/", "")  # the folder may be moved
        told = RunError(kind=type(error).__name__, message=message, batch_ids=getattr(error, "batch_ids", ()))
        record = replace(self._record(INTERRUPTED if passing else FAILED), error=told)
        try:
            self._write_record(record)
        except OSError as again:  # the record on disk says "running", from which a run is resumed just as well
            if not is_full(again):
                raise
