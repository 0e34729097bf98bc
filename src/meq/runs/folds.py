"""k-fold cross validation of a small table: every row is answered once by a model that has not seen it.

The table is copied into the folder with a column per fold that says train, dev or test, so that every fold is a plain
run on a plain table, which `meq evaluate` and all others read as they read any. Groups are never torn apart, and
classes are shared out evenly. The same call goes on with what was interrupted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from meq.data.contract import Rows
from meq.data.findings import Findings
from meq.data.folds import fold_of_rows
from meq.data.metrics import metric_named
from meq.data.request import DataRequest
from meq.data.table import TableRow
from meq.data.table_files import is_table, open_table
from meq.options import whole_number
from meq.records import SCHEMA, check_folder, read_cached, sha256, write_bytes, write_sealed
from meq.runs.train_on import RUNS, data_name, train_on
from meq.showing import Tabular
from meq.studies.compare import DRAWS, bounds, drawn_scores, mean, spread
from meq.tables import Table, as_files, as_text
from meq.training.bundle import TASK, read_task
from meq.training.predictions import Predictions, read_predictions, write_predictions
from meq.training.prepare import FEATURES
from meq.training.record import RECORD, RunRecord, read_record

TABLE, PLAN, RESULT, ANSWERS = "table.jsonl", "folds.json", "cross_validation.json", "out_of_fold"
DEV_PARTS = 5
"""Of the rows that are left once the test rows of a fold are taken, one part of so many is dev."""
ID, FOLD = "meq_id", "meq_fold"

TrainFold = Callable[[DataRequest, Path, bool], object]
"""Trains on a request into a folder; the last says whether a run that was begun there goes on."""


@dataclass(frozen=True, kw_only=True)
class FoldPlan:
    """Which rows of which table are tested in which fold."""

    schema: int = SCHEMA
    table: str
    table_sha256: str
    folds: int
    seed: int
    fold: Mapping[str, int]
    """By the id of a row, counted from 1."""


@dataclass(frozen=True, kw_only=True)
class FoldLine:
    """One fold: how many rows it has of each kind, and how its model did on those that it did not see."""

    fold: int
    train: int
    dev: int
    test: int
    score: float
    on_dev: float
    epoch: int | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CrossValidation(Tabular):
    """All folds, their mean and spread, and the score of all answers together; prints itself."""

    schema: int = SCHEMA
    data: str
    folder: str
    metric: str
    lines: tuple[FoldLine, ...]
    mean: float | None
    spread: float | None
    """The sample standard deviation over folds."""
    together: float
    """The metric of all out-of-fold answers at once, where every row counts the same."""
    low: float | None
    high: float | None

    def table(self) -> Table:
        """One line per fold."""
        return Table.of(
            f"{self.data}: {len(self.lines)} folds ({self.metric})",
            [asdict(line) for line in self.lines],
            titles={"score": f"{self.metric} on test", "on_dev": "on dev"},
            digits={"seconds": 1},
            notes=self.remarks(),
        )

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(line) for line in self.lines]

    def remarks(self) -> list[str]:
        spread = "" if self.spread is None else f", spread over folds {self.spread:.4f}"
        within = "" if self.low is None or self.high is None else f" (95 % {self.low:.4f} to {self.high:.4f})"
        rows = sum(line.test for line in self.lines)
        return [
            f"Mean {self.mean:.4f}{spread}. All {rows:,} out-of-fold answers together: {self.together:.4f}{within}.",
            f"Spread: the sample standard deviation; 95 %: the middle of {DRAWS:,} draws of the rows. Folds share "
            "their training rows, so that the spread says less than that of independent trainings would.",
        ]

    def __str__(self) -> str:
        return as_text(self.table())


def cross_validate(
    request: DataRequest,
    folder: Path | str,
    train: TrainFold | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
    skip_bad: bool = False,
    say: Callable[[str], None] = lambda words: None,
) -> CrossValidation:
    """Train on every fold what is not trained yet, and put the answers together; all of it is kept in the folder.

    `train` makes one run; as `meq.runs.train_on` does unless given.
    """
    check_folds(request, folds)
    train = train or (lambda request, place, begun: train_on(request, place, resume=begun))
    folder = Path(folder)
    plan = _plan(request, folder, folds, seed, skip_bad)
    for fold in range(1, folds + 1):
        place = folder / f"fold-{fold}"
        if not _is_over(place):
            say(f"fold {fold} of {folds}: {place}")
            train(fold_request(request, folder, fold), place, (place / RECORD).is_file())
    found, answers = _collect(request, folder, plan)
    write_sealed(folder / RESULT, found)
    write_predictions(folder / f"{ANSWERS}.parquet", answers)
    for name, content in as_files({"folds": found.table()}).items():
        write_bytes(folder / name, content)
    return found


def place_of_folds(data: str, out: Path | str | None, folds: int, *, resume: bool = False) -> Path:
    """Where so many folds of a table go, and go on; said before the data is read if they cannot."""
    whole_number("`folds`", folds, least=2)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("`folds` are trained one after the other in one process: start it without torchrun")
    if resume:
        raise ValueError("leave out `resume`: with `folds` the same call goes on by itself")
    place = RUNS / f"{data_name(data)}-{folds}-folds" if out is None else Path(out)
    check_folder(place, "`out`")
    return place


def train_folds(
    request: DataRequest,
    folder: Path,
    train_one: Callable[..., object],
    *,
    folds: int,
    seed: int,
    skip_bad: bool = False,
    store: Path | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> CrossValidation:
    """What `meq train --folds` and `meq.train(folds=...)` do: all folds share one store of features.

    `train_one` is `meq.runs.train_on.train_request` with everything said but the request, the folder, `store` and
    `resume`.
    """
    kept = store or folder / FEATURES

    def train(asked: DataRequest, place: Path, begun: bool) -> None:
        train_one(asked, place, store=kept, resume=begun)

    found = cross_validate(request, folder, train, folds=folds, seed=seed, skip_bad=skip_bad, say=say)
    say(f"out-of-fold answers: {folder / f'{ANSWERS}.csv'}; a run per fold: {folder / 'fold-1'}, ...")
    return found


def check_folds(request: DataRequest, folds: int) -> None:
    """An error for a request that cannot be laid into folds, before anything is read."""
    whole_number("`folds`", folds, least=2)
    if not is_table(request.data):
        raise ValueError(f"`folds` are for tables: {request.data!r} has splits of its own, leave it out")
    for name, value in {"split": request.split, "fractions": request.options.get("fractions")}.items():
        if value is not None:
            raise ValueError(f"`folds` makes splits of its own, and {name} says others: leave one of them out")
    request.check()


def fold_request(request: DataRequest, folder: Path, fold: int) -> DataRequest:
    """What a fold is trained on: the copy of the table, and the column that says which rows are its own."""
    options = {name: value for name, value in request.options.items() if name not in ("seed", "delimiter")}
    root = request.root if request.root is not None else Path(request.data).parent
    return replace(
        request,
        data=str(folder / TABLE),
        root=root.resolve(),
        split=f"meq_split_{fold}",
        options={**options, "id": options.get("id", ID)},
    )


# -- the table with its folds ------------------------------------------------------------------------------------------


def _plan(request: DataRequest, folder: Path, folds: int, seed: int, skip_bad: bool) -> FoldPlan:
    """The folds that the folder has, or new ones; an error if it has others than are asked for."""
    source = sha256(Path(request.data))
    known = read_cached(FoldPlan, folder / PLAN)
    if known is not None:
        asked = {"table_sha256": source, "folds": folds, "seed": seed}
        changed = [name.replace("_sha256", "") for name, value in asked.items() if getattr(known, name) != value]
        if changed:
            raise ValueError(
                f"{folder} holds a cross validation with another {' and '.join(changed)}: choose another folder"
            )
        return known
    rows = _rows(request, skip_bad)
    groups = [row.group for row in rows]
    classes = None if isinstance(rows[0].label, float | tuple) else [row.label for row in rows]
    tested = fold_of_rows(groups, classes, folds, seed=seed)
    splits = [_splits_of(fold, tested, groups, classes, seed) for fold in range(folds)]
    _copy_table(request, folder / TABLE, rows, tested, splits)
    plan = FoldPlan(
        table=Path(request.data).name,
        table_sha256=source,
        folds=folds,
        seed=seed,
        fold={row.id: at + 1 for row, at in zip(rows, tested, strict=True)},
    )
    write_sealed(folder / PLAN, plan)
    return plan


def _rows(request: DataRequest, skip_bad: bool) -> list[TableRow]:
    """The rows that can be used, by line, with their groups and labels."""
    halves = {**request.options, "fractions": {"train": 0.5, "dev": 0.5}}  # whichever: only the rows are asked for
    raw = replace(request, options=halves).open(Findings("skip" if skip_bad else "raise"))
    rows = [row for split in raw.splits.values() if isinstance(split, Rows) for row in split.rows]
    return sorted(rows, key=lambda row: row.line)


def _splits_of(
    fold: int, tested: Sequence[int], groups: Sequence[str], classes: Sequence[Any] | None, seed: int
) -> list[str]:
    """The split of every row in one fold: its own rows are test, a part of the others is dev."""
    others = [at for at, place in enumerate(tested) if place != fold]
    kinds = None if classes is None else [classes[at] for at in others]
    parts = min(DEV_PARTS, len({groups[at] for at in others}))
    if parts < 2:
        raise ValueError(
            "with these folds one group would be left to learn from, and none to choose by: use more folds"
        )
    places = fold_of_rows([groups[at] for at in others], kinds, parts, seed=seed)
    sizes, wanted = Counter(places), len(others) / parts
    dev = min(range(parts), key=lambda part: (abs(sizes[part] - wanted), part))  # groups may differ much in size
    found = ["test"] * len(tested)
    for at, part in zip(others, places, strict=True):
        found[at] = "dev" if part == dev else "train"
    return found


def _copy_table(
    request: DataRequest, path: Path, rows: Sequence[TableRow], tested: Sequence[int], splits: Sequence[Sequence[str]]
) -> None:
    """All columns of the rows that are used, and those that say where each row belongs."""
    file = open_table(request.data, delimiter=request.options.get("delimiter"))
    columns = [name for name in file.columns() if name]
    added = [ID, FOLD, *(f"meq_split_{fold + 1}" for fold in range(len(splits)))]
    if taken := [name for name in added if name in columns]:
        raise ValueError(f"{request.data} has a column {taken[0]!r}, which folds need for themselves: rename it")
    cells = dict(file.rows(columns, Findings("skip")))
    lines = []
    for at, row in enumerate(rows):
        own = [row.id, tested[at] + 1, *(split[at] for split in splits)]
        values = [_plain(cell) for cell in cells[row.line]]
        found = dict(zip([*columns, *added], [*values, *own], strict=True))
        lines.append(json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(lines).encode())


def _plain(cell: Any) -> Any:
    """A cell as JSON has it: arrays as lists, NaN as nothing, dates and the like as texts."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    if isinstance(cell, list):
        return [_plain(each) for each in cell]
    if isinstance(cell, float) and not math.isfinite(cell):
        return None if math.isnan(cell) else str(cell)
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


# -- what came out -----------------------------------------------------------------------------------------------------


def _is_over(place: Path) -> bool:
    if not (place / RECORD).is_file():
        return False
    record = read_record(place)
    if record.error is not None and record.over:
        raise ValueError(f"{place} failed: {record.error.message}; remove the folder to train it again")
    return record.over


def _collect(request: DataRequest, folder: Path, plan: FoldPlan) -> tuple[CrossValidation, Predictions]:
    places = [folder / f"fold-{fold}" for fold in range(1, plan.folds + 1)]
    records = [read_record(place) for place in places]
    parts = [read_predictions(place / "predictions" / "test.parquet") for place in places]
    answers = _in_order(parts, list(plan.fold))
    metric = records[0].metric
    low, high = bounds(drawn_scores(records[0], metric, answers))
    lines = tuple(_line(number, record) for number, record in enumerate(records, 1))
    write_bytes(folder / f"{ANSWERS}.csv", _as_csv(answers, plan, _labels(places[0])).encode())
    found = CrossValidation(
        data=plan.table,
        folder=str(folder),
        metric=metric,
        lines=lines,
        mean=mean(line.score for line in lines),
        spread=spread(line.score for line in lines),
        together=_score(records[0], answers),
        low=low,
        high=high,
    )
    return found, answers


def _line(fold: int, record: RunRecord) -> FoldLine:
    return FoldLine(
        fold=fold,
        **{name: record.data.splits[name] for name in ("train", "dev", "test")},
        score=record.metrics["test"][record.metric],
        on_dev=record.metrics["dev"][record.metric],
        epoch=record.selected.epoch,
        seconds=record.wall_seconds,
    )


def _in_order(parts: Sequence[Predictions], ids: Sequence[str]) -> Predictions:
    """The answers of all folds in the order of the table."""
    logits, target = torch.cat([part.logits for part in parts]), torch.cat([part.target for part in parts])
    places = {name: at for at, name in enumerate(name for part in parts for name in part.ids)}
    order = torch.tensor([places[name] for name in ids])
    return Predictions(ids=list(ids), logits=logits[order], target=target[order])


def _score(record: RunRecord, answers: Predictions) -> float:
    return metric_named(record.metric, record.data.facts)(answers.logits, answers.target)


def _labels(place: Path) -> tuple[str, ...] | None:
    """The names of the classes; None where answers are scores, or several labels."""
    task = read_task(place / "model" / TASK)
    return tuple(task.labels) if task.head in ("classes", "ordinal") else None


def _as_csv(answers: Predictions, plan: FoldPlan, labels: Sequence[str] | None) -> str:
    """id, fold, target and answer, in the table's own words; of classes the probability of each as well."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if labels is None:
        writer.writerow(["id", "fold", "target", "answer"])
        for name, target, row in zip(answers.ids, answers.target.tolist(), answers.logits.tolist(), strict=True):
            writer.writerow([name, plan.fold[name], target, row[0] if len(row) == 1 else row])
        return out.getvalue()
    writer.writerow(["id", "fold", "target", "answer", *(f"p({label})" for label in labels)])
    shares = answers.logits.double().softmax(1)
    for name, target, row in zip(answers.ids, answers.target.tolist(), shares, strict=True):
        shown = [f"{share:.6f}" for share in row.tolist()]
        writer.writerow([name, plan.fold[name], labels[target], labels[int(row.argmax())], *shown])
    return out.getvalue()
