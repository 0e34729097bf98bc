"""The front door: `meq.train` and `meq.load`, which give a `meq.Run`.

run = meq.train("photos.csv", image="photo", text="caption", label="y")
run = meq.load("runs/photos")
print(run.evaluate())
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meq.data.findings import DataError
from meq.data.frames import PICTURES, TABLE, Frame, FrameFile, frame_of, unreadable
from meq.data.request import DataRequest
from meq.objectives import PENALTIES
from meq.options import by_part, checked_options
from meq.records import sha256
from meq.runs.folds import PLAN, CrossValidation, place_of_folds, train_folds
from meq.runs.load import Run, load_run
from meq.runs.train_on import place_of_run, train_request
from meq.training.arms import FITTED, PAPER, SHAPE
from meq.training.config import SMALL, TrainConfig
from meq.training.record import RECORD

Names = str | Sequence[str]
"""One column, or several."""
Place = Path | str


def load(place: Place, *, revision: str | None = None, token: str | None = None) -> Run:
    """A trained run, from its folder or by its name on the Hub. A file that has changed is an error.

    >>> run = meq.load("runs/photos")
    >>> run.labels
    ('cold', 'warm')
    """
    return load_run(place, revision=revision, token=token)


@checked_options
def train(
    data: Any,
    root: Place | None = None,
    *,
    image: Names = (),
    text: Names = (),
    audio: Names = (),
    vector: Names = (),
    label: str | None = None,
    split: str | None = None,
    group: str | None = None,
    task: str | None = None,
    image_encoder: str | None = None,
    text_encoder: str | None = None,
    region_encoder: str | None = None,
    audio_encoder: str | None = None,
    out: Place | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002, the word on the command line
    skip_bad: bool = False,
    store: Place | None = None,
    standardise: bool = True,
    arm: str = "meq",
    dim: int = SHAPE["dim"],
    heads: int = SHAPE["heads"],
    steps: int = SHAPE["steps"],
    dropout: float = SHAPE["dropout"],
    solver: str | None = None,
    backward: str | None = None,
    fast: bool = False,
    modality_dropout: float = 0.0,
    epochs: int | None = None,
    patience: int | None = None,
    least_updates: int | None = None,
    batch_size: int | None = None,
    accumulate: int = SMALL.accumulate,
    learning_rate: float = SMALL.learning_rate,
    weight_decay: float = SMALL.weight_decay,
    warmup: float = SMALL.warmup,
    decay: str = SMALL.decay,
    clip: float = SMALL.clip,
    precision: str = SMALL.precision,
    seed: int = SMALL.seed,
    select: str = SMALL.select,
    checkpoint_every: int = SMALL.checkpoint_every,
    stop_on_alarm: bool = SMALL.stop_on_alarm,
    monitor_samples: int = SMALL.monitor_samples,
    radius_samples: int = SMALL.radius_samples,
    monitor_probes: int = SMALL.monitor_probes,
    depth: str = SMALL.depth,
    random_start: float = SMALL.random_start,
    path_noise: float = SMALL.path_noise,
    supervise: int = SMALL.supervise,
    supervise_decay: float = SMALL.supervise_decay,
    average: float = SMALL.average,
    scale_inputs: float = SMALL.scale_inputs,
    class_weight: str = SMALL.class_weight,
    label_smoothing: float = SMALL.label_smoothing,
    tracker: Names = (),
    device: str | None = None,
    lambda_j: float = PAPER["jacobian-range"]["weight"],
    lambda_f: float = PAPER["residual-correction"]["weight"],
    resume: bool = False,
    folds: int | None = None,
) -> Run | CrossValidation:
    """Train a model, as `meq train` does: the same names and the same defaults, which `meq train --help` explains.

    `data` is the path of a table, the name of a data set, a pandas DataFrame, a `datasets.Dataset` or a list of
    dictionaries; a table in memory is written into the run's folder, so that the run can be scored and explained later.
    Paths of pictures and sounds start at `root`: by default the folder of the table's file, or, for a table in memory,
    the current folder. Pictures themselves, as a Dataset may hold them, are written beside the table. `image`, `text`,
    `audio` and `vector` are columns, one or a list. `set` has further options by name, such as {"model.hidden": 64}.
    After an interruption the same call with `resume=True` goes on.

    With `folds`, such as 5, a small table is cross-validated: a training per fold, and what comes back is not a run but
    their scores, `meq.runs.folds.CrossValidation`. The same call goes on with what was interrupted.

    >>> rows = [{"photo": f"{n}.png", "caption": f"picture {n}", "y": ("warm", "cold")[n % 2]} for n in range(20)]
    >>> run = meq.train(rows, image="photo", text="caption", label="y", text_encoder="words", epochs=1, out="runs/rows")
    >>> run.predict("3.png", "picture 3").answer in ("warm", "cold")
    True
    """
    given = dict(locals())
    table = frame_of(data)
    if table is None and not isinstance(data, str | Path):
        raise unreadable(data)
    columns = {f"{kind}s": _listed(given[kind]) for kind in ("image", "text", "audio", "vector")}
    parts = by_part(set or {}, ["model", "solver", "backward", *PENALTIES])
    request = DataRequest(
        data="table" if table is not None else str(data),
        root=None if root is None else Path(root),
        **columns,
        label=label,
        split=split,
        group=group,
        task=task,
        options=parts.pop("data", {}),
    )
    fixed = [name for name in FITTED if given[name] is not None]
    recipe = {each.name: given[each.name] for each in fields(TrainConfig) if each.name in given}
    recipe = {name: value for name, value in recipe.items() if name not in FITTED or name in fixed}
    config = replace(SMALL, **recipe, trackers=_listed(tracker))
    kept = None if store is None else Path(store)
    train_one = partial(
        train_request,
        encoders={
            "image": image_encoder,
            "text": text_encoder,
            "regions": region_encoder,
            "audio": audio_encoder,
        },
        skip_bad=skip_bad,
        standardise=standardise,
        arm=arm,
        shape={
            "dim": dim,
            "heads": heads,
            "steps": steps,
            "dropout": dropout,
            "modality_dropout": modality_dropout,
        },
        parts=parts,
        solver=solver,
        backward=backward,
        config=config,
        fixed=fixed,
        fast=fast,
        lambda_j=lambda_j,
        lambda_f=lambda_f,
        device=device,
        say=_say,
    )
    if folds is not None:
        place = place_of_folds(request.data, out, folds, resume=resume)
        with _Written(table, place, begun=PLAN, resume=(place / PLAN).is_file()) as file:
            request = request if file is None else _on_file(request, file)
            asked = {"folds": folds, "seed": config.seed, "skip_bad": skip_bad, "store": kept}
            return train_folds(request, place, train_one, **asked, say=_say)  # type: ignore[arg-type]
    place = place_of_run(
        request.data,
        None if out is None else Path(out),
        resume=resume,
        store=kept,
        way_on=lambda folder: f"the same call with out={str(folder)!r}, resume=True",
        say=_say,
    )
    with _Written(table, place, begun=RECORD, resume=resume) as file:
        train_one(request if file is None else _on_file(request, file), place, store=kept, resume=resume)
    return load_run(place)


def _on_file(request: DataRequest, file: FrameFile) -> DataRequest:
    """What was asked of a table in memory, asked of its file."""
    return replace(request, data=str(file.path), root=request.root or file.root or Path.cwd())


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _say(words: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(words, file=sys.stderr)


class _Written:
    """The table in memory in the run's folder for as long as the run begins; gone again if it does not come to that."""

    def __init__(self, table: Frame | None, place: Path, *, begun: str, resume: bool) -> None:
        self.table, self.place, self.resume = table, place, resume
        self.begun = place / begun  # the file that says that it came to that
        self.new = not place.exists()
        self.file: FrameFile | None = None

    def __enter__(self) -> FrameFile | None:
        if self.table is None:
            return None
        if self.resume:
            self._check_same(self.table)
        try:
            self.file = self.table.write(self.place)
        except BaseException:
            self._forget()
            raise
        return self.file

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.table is None or error is None:
            return
        if isinstance(error, Exception) and not self.begun.is_file():
            self._forget()
        if isinstance(error, DataError) and self.file is not None:
            with self.file.named_rows():
                raise error

    def _check_same(self, table: Frame) -> None:
        with TemporaryDirectory(prefix="meq-frame-") as scratch:
            now = table.write(Path(scratch))
            if (self.place / TABLE).is_file() and sha256(now.path) != sha256(self.place / TABLE):
                raise DataError(f"{self.place} holds a run on other rows than {table.what} has: give the same again, "
                                "or begin another run")  # fmt: skip

    def _forget(self) -> None:
        (self.place / TABLE).unlink(missing_ok=True)
        shutil.rmtree(self.place / PICTURES, ignore_errors=True)
        if self.new and self.place.is_dir() and not any(self.place.iterdir()):
            self.place.rmdir()
