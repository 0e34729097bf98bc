"""What a trained run is told about itself after training: when to stop, and what its probabilities are worth.

Calibrated on its own data, and kept beside its weights in `calibration.json`.

The file has a seal of its own and names the weights it is of, so that the seals of the run stay as they are. It goes to
the Hub with the model, and `load_run` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meq.analysis.probabilities import HAVE_SETS
from meq.data.splitting import CALIBRATION as APART
from meq.data.splitting import LEAST_ROWS
from meq.records import SCHEMA, SINCE, alone, read_sealed, write_sealed
from meq.runs.probabilities import Coverage, Temperature, calibration_answers, fitted_temperature, measured_coverage
from meq.training.calibration import StopCalibration, calibrate_stopping, checked_promise

if TYPE_CHECKING:
    from meq.runs.load import TrainedRun
    from meq.runs.own_data import ReadOptions

CALIBRATION = "calibration.json"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was calibrated of a run after its training."""

    schema: int = SCHEMA
    weights_sha256: str
    stopping: StopCalibration | None = field(default=None, metadata=SINCE)
    """When its answers are read."""
    temperature: Temperature | None = field(default=None, metadata=SINCE)
    """What its logits are divided by before they become probabilities."""
    coverage: Coverage | None = field(default=None, metadata=SINCE)
    """What its sets of answers are made with."""


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """What is promised, and where it is calibrated."""

    rule: str | None = None
    """residual, change, agreement or confidence; all are tried unless given, and the one with the fewest steps kept."""
    risk: float = 0.01
    """The accuracy that stopping early may cost against the full depth."""
    confidence: float = 0.95
    """The share of resamples in which it costs no more."""
    most: int | None = None
    """The full depth; three times the read depth K, and at least 24, unless given."""
    split: str = "dev"
    """The split to calibrate and check with; half of it each. Best one that nothing was chosen by."""
    seed: int = 0
    """Which sample is in which half, and which resamples are drawn."""


def calibrate_run(
    run: TrainedRun,
    options: StopOptions = StopOptions(),  # noqa: B008
    *,
    root: Path | None = None,
    reading: ReadOptions | None = None,
    keep: bool = True,
) -> StopCalibration:
    """Calibrate when the run's answers are read, on its own data; kept beside its weights unless told otherwise.

    Load the run again to use what was kept.
    """
    from meq.runs.own_data import ReadOptions, chosen_split, run_data

    reading = ReadOptions() if reading is None else reading
    promise = {"rule": options.rule, "risk": options.risk, "confidence": options.confidence, "most": options.most}
    checked_promise(run.model, **promise)  # type: ignore[arg-type]
    ready = run_data(run, root=root, reading=reading)
    found = calibrate_stopping(
        run.model,
        chosen_split(ready.data, options.split),
        options.split,
        seed=options.seed,
        batch_size=run.batch_size,
        progress=reading.progress,
        **promise,  # type: ignore[arg-type]
    )
    found = replace(found, notes=(*found.notes, *_origin(run, options.split, same=ready.same)))
    if keep:
        _keep(run, stopping=found)
    return found


@dataclass(frozen=True, kw_only=True)
class Probabilities:
    """What was fitted of a run's probabilities; None for what was not asked for."""

    temperature: Temperature | None
    coverage: Coverage | None

    def __str__(self) -> str:
        return "\n\n".join(str(each) for each in (self.temperature, self.coverage) if each is not None)


def calibrate_probabilities(
    run: TrainedRun,
    *,
    temperature: bool = True,
    coverage: bool = True,
    split: str = APART,
    root: Path | None = None,
    reading: ReadOptions | None = None,
    keep: bool = True,
) -> Probabilities:
    """Fit a temperature, and what sets of answers are made with, on a split that chose nothing; kept with the weights.

    The rows that training kept apart are that split. Load the run again to use what was kept.
    """
    from meq.runs.own_data import ReadOptions

    if not (temperature or coverage):
        raise ValueError("nothing to calibrate was named: `temperature`, `coverage` or both")
    found, source = calibration_answers(run, split, reading=reading or ReadOptions(), root=root)
    source = replace(source, notes=tuple(_origin(run, split)))
    head = run.task.head
    made = Probabilities(
        temperature=fitted_temperature(found, head, source) if temperature else None,
        coverage=measured_coverage(found, head, source) if coverage else None,
    )
    if keep:
        _keep(run, **{name: value for name, value in vars(made).items() if value is not None})
    return made


def calibrate_trained(folder: Path | str, *, again: bool = True) -> Probabilities | None:
    """After training: calibrate with the rows that were kept apart; None where there are not enough of them.

    Unless `again`, weights whose probabilities were calibrated before are left as they are, which is None too.
    """
    from meq.runs.load import load_run
    from meq.runs.run_files import open_run_files

    files = open_run_files(folder)
    apart = files.predictions(APART)
    if apart is None or len(apart.ids) < LEAST_ROWS or not files.has_weights:
        return None
    if not again and files.task is not None:
        known = read_calibration(Path(folder) / "model", files.task.weights_sha256)
        if known is not None and (known.temperature is not None or known.coverage is not None):
            return None
    run = load_run(folder)
    head = run.task.head
    return calibrate_probabilities(run, temperature=head != "score", coverage=head in HAVE_SETS)


def _origin(run: TrainedRun, split: str, *, same: bool = True) -> list[str]:
    """What was chosen by the split before, in words."""
    chosen = None if run.record is None else run.record.selected
    words = []
    if not same:
        words.append("the data is not that of training, or has changed since: fingerprints differ")
    if chosen is None:
        words.append(f"whether the weights were chosen on {split} is not known: the run's record is not here")
    elif chosen.by == "last" or chosen.split != split:
        words.append(f"nothing was chosen on {split} before")
    else:
        words.append(
            f"the weights are those of the best epoch on {split}, so that accuracies there, and with them the promise, "
            "are a little too kind: name a split that chose nothing, or train with select='last'"
        )
    if split == "test":
        words.append(
            "test has now calibrated the run: scores on test are no longer those of data that nothing was chosen by"
        )
    return words


def _keep(run: TrainedRun, **changes: Any) -> None:
    """Write what was found beside what was calibrated before."""
    place = run.folder.parent if run.folder.name == "model" else run.folder
    with alone(place, f"a run is being trained in {place}: its rule would be of weights that may be replaced"):
        weights = run.task.weights_sha256
        before = read_calibration(run.folder, weights) or Calibration(weights_sha256=weights)
        write_sealed(run.folder / CALIBRATION, replace(before, **changes))
        if run.folder.name == "model":
            from meq.runs.analyze import list_in_study

            list_in_study(place.resolve(), f"model/{CALIBRATION}")


def read_calibration(model_folder: Path, weights_sha256: str) -> Calibration | None:
    """What lies beside a model's weights; None if nothing does, or if it is of other weights."""
    path = model_folder / CALIBRATION
    if not path.is_file():
        return None
    found = read_sealed(Calibration, path)
    return found if found.weights_sha256 == weights_sha256 else None
