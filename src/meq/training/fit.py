"""fit(): from features to a trained model, on one process or many, interrupted as often as it likes.

One update sees `batch_size x processes x accumulate` samples. Which samples those are, their dropout and their probes
depend on the seed, the step and the sample only, so the number of processes changes nothing but the time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import gather_object
from rich.console import Console
from torch import Tensor

from meq.data.contract import Batch, DataSet, Split, collate
from meq.models.base import FusionModel
from meq.objectives import Loss, Objective, task_loss
from meq.training.alarms import Vitals, raised
from meq.training.checkpoint import Checkpoints
from meq.training.config import TrainConfig
from meq.training.files import write_json
from meq.training.monitor import take_vitals
from meq.training.optimiser import Schedule, make_optimiser
from meq.training.progress import LiveBar
from meq.training.record import Progress, make_record
from meq.training.seeds import epoch_order, sample_seeds


class TrainingError(RuntimeError):
    """The run stopped because it could not go on; the message says where, why and from what it can be resumed."""


def fit(
    model: FusionModel,
    data: DataSet,
    objective: Objective,
    folder: str | Path,
    config: TrainConfig,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, validate every epoch, keep the selected weights in `folder/model`; returns the record, also on disk."""
    return Training(model, data, objective, folder, config, console).run(resume=resume)


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
    ) -> None:
        self.data, self.objective, self.folder, self.config = data, objective, Path(folder), config
        self.folder.mkdir(parents=True, exist_ok=True)
        _refuse_missing_trackers(config.trackers)
        self.accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),  # or torchrun on CPUs would start runs that ignore each other
            mixed_precision=config.precision,
            log_with=list(config.trackers) or None,
            project_dir=self.folder / "tracking",
        )
        self.main = self.accelerator.is_main_process
        optimiser = make_optimiser(model, config.learning_rate, config.weight_decay)
        self.wrapped, self.optimiser = self.accelerator.prepare(model, optimiser)
        self.model: FusionModel = self.accelerator.unwrap_model(self.wrapped)
        self.checkpoints = Checkpoints(self.folder / "checkpoints")
        self.progress = Progress()
        self.fingerprint = data.fingerprint()
        self.updates = self._updates_per_epoch()
        total = config.epochs * self.updates
        self.schedule = Schedule(total_steps=total, peak=config.learning_rate, warmup=config.warmup, decay=config.decay)
        self.bar = LiveBar(total, shown=self.main, console=console)

    def run(self, *, resume: bool) -> dict[str, Any]:
        self._begin(resume)
        started = time.monotonic() - self.progress.seconds
        with self.bar:
            while self.progress.epoch < self.config.epochs and not self.progress.stopped:
                self._train_epoch(started)
                self._finish_epoch(started)
        self._keep_last()
        record = self._record("stopped by an alarm" if self.progress.stopped else "finished")
        record["test"] = self._test()
        self._write_record(record)
        self.accelerator.end_training()
        return record

    # -- the parts of a run ------------------------------------------------------------------------------------------

    def _begin(self, resume: bool) -> None:
        found = any(self.checkpoints.folder.glob("step-*"))
        if found and not resume:
            raise TrainingError(f"{self.folder} already holds a run: resume it, or choose another folder")
        restored = self.checkpoints.load(self.model, self.optimiser, self.bar.say) if found else None
        if restored is not None:
            self._refuse_another_run()
            self.progress = Progress(**restored[1])
            self.bar.say(f"resuming {self.folder} after step {self.progress.step} of {self.schedule.total_steps}")
        if self.config.trackers:
            self.accelerator.init_trackers("meq", {name: str(x) for name, x in self.config.to_json().items()})
        self._write_record(self._record("running"))

    def _refuse_another_run(self) -> None:
        """A run goes on as it began, or its curves would be those of two different ones."""
        began, now = json.loads((self.folder / "record.json").read_text(encoding="utf-8")), self._record("running")
        for part in ("config", "model", "objective", "data", "processes"):
            old, new = began[part], now[part]
            if old != new:
                what = [name for name in new if old.get(name) != new[name]] if isinstance(new, dict) else [part]
                raise TrainingError(
                    f"{self.folder} cannot be resumed: its {part} differs in {', '.join(what)}. "
                    "Resume with the options it was begun with, or choose another folder"
                )

    def _train_epoch(self, started: float) -> None:
        self.wrapped.train()
        progress = self.progress
        for micro_batches in self._batches(progress.epoch, progress.position):
            loss = self._update(micro_batches)
            progress.loss_sum += float(loss.total.detach())
            progress.position, progress.step = progress.position + 1, progress.step + 1
            self._show(loss)
            if progress.step % self.config.checkpoint_every == 0 and progress.position < self.updates:
                self._checkpoint(started)

    def _update(self, micro_batches: list[Batch]) -> Loss:
        step = self.progress.step
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.at(step)
        for last, batch in _with_last(micro_batches):
            waiting = nullcontext() if last else self.accelerator.no_sync(self.wrapped)
            with waiting, self.accelerator.autocast():
                seeds = sample_seeds(self.config.seed, step, batch.ids)
                output = self.wrapped(batch.features, batch.masks, seeds=seeds)
                loss = self.objective(self.model, output, batch.target, seeds=seeds)
                self._refuse_non_finite(loss.total, loss, batch)
                self.accelerator.backward(loss.total / len(micro_batches))
        norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.config.clip)
        self._refuse_non_finite(torch.as_tensor(norm), loss, batch)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss

    def _finish_epoch(self, started: float) -> None:
        progress = self.progress
        score, loss = self.evaluate("dev")
        entry = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train_loss": progress.loss_sum / self.updates,
            "dev_loss": loss,
            self.data.metric.name: score,
        }
        progress.curves.append(entry)
        self._look_for_alarms()
        if score == score and (progress.best is None or score > progress.best["value"]):  # NaN is never the best
            progress.best = {"epoch": progress.epoch, "value": score}
            if self.config.select == "best" and self.main:
                self.model.save_pretrained(self.folder / "model")
        self.bar.update(progress.step, progress.epoch, loss=entry["train_loss"], metric=score)
        self.bar.end_epoch(progress.epoch)
        self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=progress.step)
        progress.epoch, progress.position, progress.loss_sum = progress.epoch + 1, 0, 0.0
        self._checkpoint(started)
        self._write_record(self._record("running"))

    def _look_for_alarms(self) -> None:
        """Every process looks at the same samples, so that all of them come to the same decision."""
        few = list(self.data.splits["dev"][: self.config.monitor_samples])
        batch = collate(few, self.data.widths).to(self.accelerator.device)
        vitals = take_vitals(self.model, batch, self.progress.epoch, radius_samples=self.config.radius_samples)
        if vitals is None:
            return
        self.progress.vitals.append(asdict(vitals))
        self.bar.update(
            self.progress.step,
            self.progress.epoch,
            jacobian=vitals.jacobian_norm,
            residual=vitals.residual,
            gate=min(vitals.gate.values(), default=float("nan")),
            cross_self=min(vitals.cross_self.values(), default=float("nan")),
            radius=vitals.radius,
        )
        for alarm in raised([Vitals(**each) for each in self.progress.vitals]):
            self.progress.alarms.append(alarm.to_json())
            self.bar.say(f"ALARM, {alarm.kind} at epoch {alarm.epoch}: {alarm.message}")
            self.progress.stopped |= self.config.stop_on_alarm

    def evaluate(self, split: str) -> tuple[float, float]:
        """The metric and the mean task loss on a split, shared out among the processes."""
        examples = self.data.splits[split]
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            mine = range(rank, len(examples), world)
            for start in range(0, len(mine), self.config.batch_size):
                part = mine[start : start + self.config.batch_size]
                batch = collate([examples[row] for row in part], self.data.widths).to(self.accelerator.device)
                logits = self.model(batch.features, batch.masks).logits
                losses = task_loss(self.objective.task)(logits, batch.target)
                rows += zip(logits.float().cpu(), batch.target.cpu(), losses.float().cpu(), strict=True)
        if world > 1:
            rows = _interleaved(gather_object([rows]))  # back in the order of the split
        columns = [torch.stack([row[column] for row in rows]) for column in range(3)]
        return self.data.metric(columns[0], columns[1]), float(columns[2].double().mean())

    # -- small matters -----------------------------------------------------------------------------------------------

    def _updates_per_epoch(self) -> int:
        per_update = self.config.batch_size * self.accelerator.num_processes * self.config.accumulate
        size = len(self.data.splits["train"])
        if size < per_update:
            raise ValueError(
                f"the train split of {self.data.name!r} has {size} examples, fewer than the {per_update} of one update "
                "(batch_size x processes x accumulate): lower one of them"
            )
        return size // per_update

    def _batches(self, epoch: int, start: int) -> Iterator[list[Batch]]:
        """The micro-batches of every update of an epoch that is still to come, for this process."""
        size, world, rank = self.config.batch_size, self.accelerator.num_processes, self.accelerator.process_index
        train: Split = self.data.splits["train"]
        order = epoch_order(self.config.seed, epoch, len(train))
        width = size * world * self.config.accumulate
        for position in range(start, self.updates):
            update = order[position * width : (position + 1) * width]
            micro = [update[(m * world + rank) * size :][:size] for m in range(self.config.accumulate)]
            yield [
                collate([train[row] for row in rows], self.data.widths).to(self.accelerator.device) for rows in micro
            ]

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
        self._write_record({**self._record("failed"), "error": message, "batch_ids": ids})
        raise TrainingError(message)

    def _show(self, loss: Loss) -> None:
        numbers = {"loss": float(loss.total.detach())}
        if "jacobian_norm" in loss.statistics:
            numbers["jacobian"] = float(loss.statistics["jacobian_norm"].nanmean())
        residuals = [float(x.nanmean()) for name, x in loss.statistics.items() if name.startswith("residual/")]
        if residuals:
            numbers["residual"] = max(residuals)
        self.bar.update(self.progress.step, self.progress.epoch, **numbers)

    def _checkpoint(self, started: float) -> None:
        self.progress.seconds = time.monotonic() - started
        if self.main:
            self.checkpoints.save(self.progress.step, self.model, self.optimiser, asdict(self.progress))
        self.accelerator.wait_for_everyone()

    def _keep_last(self) -> None:
        if self.main and (self.config.select == "last" or self.progress.best is None):
            self.model.save_pretrained(self.folder / "model")
        self.accelerator.wait_for_everyone()

    def _test(self) -> dict[str, Any] | None:
        """The selected weights on the test split, where there is a labelled one."""
        if not self.data.splits.get("test"):
            return None
        kept = type(self.model).from_pretrained(self.folder / "model")
        self.model.load_state_dict(kept.state_dict())
        score, loss = self.evaluate("test")
        return {self.data.metric.name: score, "loss": loss}

    def _record(self, status: str) -> dict[str, Any]:
        return make_record(
            status,
            self.progress,
            config=self.config.to_json(),
            model=self.model.to_config(),
            objective=repr(self.objective),
            data={"name": self.data.name, "fingerprint": self.fingerprint, "facts": dict(self.data.facts)},
            metric=self.data.metric.name,
            processes=self.accelerator.num_processes,
        )

    def _write_record(self, record: dict[str, Any]) -> None:
        if self.main:
            write_json(self.folder / "record.json", record)


def _refuse_missing_trackers(names: tuple[str, ...]) -> None:
    """Accelerate leaves out a tracker that is not installed; a run that should be tracked must not go untracked."""
    available = {str(getattr(tracker, "value", tracker)) for tracker in get_available_trackers()}
    missing = [name for name in names if name not in available]
    if missing:
        raise ValueError(f"the trackers {', '.join(missing)} are not installed: pip install {' '.join(missing)}")


def _interleaved(shares: list[list[Any]]) -> list[Any]:
    """What process r of P took was every P-th element from r on."""
    merged: list[Any] = [None] * sum(len(share) for share in shares)
    for rank, share in enumerate(shares):
        merged[rank :: len(shares)] = share
    return merged


def _with_last(batches: list[Batch]) -> Iterator[tuple[bool, Batch]]:
    for index, batch in enumerate(batches):
        yield index == len(batches) - 1, batch
