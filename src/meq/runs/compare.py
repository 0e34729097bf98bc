"""A comparison that tells the truth: the equilibrium, fusion baselines of its size, and what can be had for nothing.

    found = meq.compare("photos.csv", image="photo", text="caption", label="y")
    print(found)

The trained arms are a study, in FOLDER/study, which `meq study verify` checks; the cheap baselines lie beside it, in
FOLDER/baselines. All see the same splits and features. The same call goes on with what was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meq.data.request import DataRequest
from meq.data.table_files import is_table
from meq.options import checked_options
from meq.records import SCHEMA, write_bytes, write_sealed
from meq.runs.calibrate import calibrate_trained
from meq.runs.cheap import BASELINES, FittedAll, fit_baselines, read_answers
from meq.runs.compare_config import COMPARED, COMPARED_SEEDS, CompareConfig
from meq.runs.leaderboard import Entrant, Leaderboard, leaderboard_table, make_leaderboard
from meq.runs.request_of import Columns, request_of
from meq.runs.train_on import data_name
from meq.showing import Tabular
from meq.studies.build import Places, open_raw, places_of, prepare_data
from meq.studies.compare import Records, answers_of, drawn_scores
from meq.studies.runner import choose_executor, run_study
from meq.studies.settings import EQUILIBRIUM, Setting, baseline, equilibrium, read_by, setting_for, study_of
from meq.studies.study import STUDY, ArmConfig, Study, read_study, run_place
from meq.studies.tables import records_of
from meq.studies.workers import Executor
from meq.tables import Table, as_files, as_text
from meq.training.arms import ARMS, PAPER, SHAPE, fitted_to, fixed_by
from meq.training.config import SMALL, TrainConfig, check_splits
from meq.training.prepare import FEATURES, keeping_apart

COMPARISONS = Path("comparisons")
STUDY_FOLDER, RESULT, TABLE_NAME = "study", "compare.json", "leaderboard"
QUESTION = "Which is enough?"


@dataclass(frozen=True, kw_only=True)
class Comparison(Tabular):
    """A leaderboard, and what has to be said beside it; prints itself."""

    schema: int = SCHEMA
    data: str
    folder: str
    leaderboard: Leaderboard
    notes: tuple[str, ...]

    @property
    def enough(self) -> str | None:
        """The cheapest arm that is not called worse than the best."""
        return self.leaderboard.enough

    def table(self) -> Table:
        """The leaderboard, the best first."""
        return leaderboard_table(self.leaderboard, f"{self.data}: {QUESTION}", self.notes)

    def rows(self) -> list[dict[str, Any]]:
        return [dict(vars(line)) for line in self.leaderboard.lines]

    def remarks(self) -> list[str]:
        return [*self.notes, self.leaderboard.sentence]

    def __str__(self) -> str:
        return as_text(self.table())


@checked_options
def compare(
    data: Any,
    *,
    image: Columns = (),
    text: Columns = (),
    audio: Columns = (),
    vector: Columns = (),
    label: str | None = None,
    split: str | None = None,
    group: str | None = None,
    task: str | None = None,
    root: Path | str | None = None,
    out: Path | str | None = None,
    arms: Sequence[str] = COMPARED,
    seeds: int = COMPARED_SEEDS,
    epochs: int | None = None,
    config: TrainConfig | None = None,
    shape: Mapping[str, Any] | None = None,
    encoders: Mapping[str, str | None] | None = None,
    store: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    on: str = "serial",
    workers: int | None = None,
) -> Comparison:
    """Train the equilibrium and its rivals on a table, and say which is enough. See `meq compare --help`.

    `image`, `text`, `audio` and `vector` name one column or several. `shape` are options of the models, `config` is the
    training recipe, of which `epochs` is the one that is mostly changed. `on` is serial, local or ray.

    >>> columns = {"image": "photo", "text": "caption", "label": "y"}
    >>> few = {"arms": ["concat"], "seeds": 1, "epochs": 1, "encoders": {"image": "patches", "text": "words"}}
    >>> found = meq.compare("photos.csv", **columns, **few, shape={"dim": 8, "heads": 2, "steps": 2})
    >>> leaderboard = str(found)  # and a sentence on what is enough; found.to_frame() for pandas
    """
    columns = {"image": image, "text": text, "audio": audio, "vector": vector}
    place = comparison_folder(str(data) if isinstance(data, str | Path) else "table") if out is None else Path(out)
    places = {"label": label, "split": split, "group": group, "task": task, "root": root}
    request = request_of(data, columns, folder=place, options=options, **places)  # type: ignore[arg-type]
    train = config or SMALL
    train = train if epochs is None else replace(train, epochs=epochs)
    asked = CompareConfig(arms=tuple(arms), seeds=seeds, train=train, shape=shape, fixed=fixed_by(config, epochs))
    return run_comparison(
        request,
        place,
        asked,
        encoders=encoders or {},
        store=None if store is None else Path(store),
        on=choose_executor(on, workers=workers),
    )


def run_comparison(
    request: DataRequest,
    out: Path | str | None,
    asked: CompareConfig,
    *,
    encoders: Mapping[str, str | None],
    store: Path | None = None,
    on: Executor | None = None,
    standardise: bool | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Comparison:
    """Fit and train what is still to be, and compare; all of it is kept in the folder `out`."""
    folder = comparison_folder(request.data) if out is None else Path(out)
    places = places_of(request.data, request.root, store=store or folder / FEATURES)
    begun = folder / STUDY_FOLDER
    request = keeping_apart(request, read_study(begun).data.options if (begun / STUDY).is_file() else None)
    study = comparison_study(replace(request, root=None), asked, places, encoders=encoders, standardise=standardise)
    prepared = prepare_data(study.data, places)
    numbers = [name for name in prepared.data.modalities if name not in prepared.provenance.kinds]
    fitted = fit_baselines(prepared.data, folder / BASELINES, numbers=numbers, say=say)
    run_study(study, begun, places=places, on=on)
    for (arm, seed), record in records_of(begun, study).items():
        if record.scored:
            calibrate_trained(begun / run_place(arm, seed), again=False)
    found = read_comparison(folder, study, fitted, Path(request.data).name)
    write_sealed(folder / RESULT, found)
    for name, content in as_files({TABLE_NAME: found.table()}).items():
        write_bytes(folder / name, content)
    return found


def comparison_folder(data: str) -> Path:
    """Where a comparison on that data goes, and goes on, unless it is told."""
    return COMPARISONS / data_name(data)


def comparison_study(
    request: DataRequest,
    asked: CompareConfig,
    places: Places,
    *,
    encoders: Mapping[str, str | None],
    standardise: bool | None = None,
) -> Study:
    """The trained arms as a study: the equilibrium as `meq train` has it, others with as many parameters."""
    first = asked.train.seed
    setting = setting_for(request, quick=True, seeds=range(first, first + asked.seeds))
    numbers = bool(request.vectors) if is_table(request.data) else setting.data.standardise
    setting = read_by(setting, encoders, numbers if standardise is None else standardise)
    setting = replace(
        setting,
        data=replace(setting.data, limit=None),
        shape={**SHAPE, **(asked.shape or {})},
        order=None,
        lambda_j=PAPER["jacobian-range"]["weight"],
        lambda_f=PAPER["residual-correction"]["weight"],
        depth=asked.train.depth,
        train=replace(asked.train, depth="fixed", seed=0),
    )
    raw = open_raw(setting.data, places)
    check_splits(raw, asked.train if "batch_size" in asked.fixed else replace(asked.train, batch_size=1))
    setting = replace(setting, train=fitted_to(setting.train, raw, given=asked.fixed))
    names = [name for name in dict.fromkeys(asked.arms) if name != EQUILIBRIUM]
    arms = [*(_rival(setting, name) for name in names), equilibrium(setting)]
    return replace(study_of(setting, QUESTION, arms), name="compare")


def _rival(setting: Setting, name: str) -> ArmConfig:
    """A model of the equilibrium's size with the setting's options; one that iterates has its penalties too."""
    known = ARMS[name].options
    more = {key: value for key, value in setting.shape.items() if key in known and key != "hidden"}
    arm = baseline(setting, name, options=more)
    return replace(arm, penalties=setting.penalties) if "solver" in known else arm


def read_comparison(folder: Path, study: Study, fitted: FittedAll, data: str) -> Comparison:
    """The leaderboard, from records and stored answers alone."""
    records = records_of(folder / STUDY_FOLDER, study)
    scored = [record for record in records.values() if record.scored]
    if not scored:
        raise ValueError(
            f"no run of {folder / STUDY_FOLDER} has a score: its records say what went wrong, `meq study status`"
        )
    split, metric = "test" if "test" in scored[0].metrics else "dev", scored[0].metric
    cheap = [_cheap(folder, each, study.seeds, records, split, metric) for each in fitted.fitted]
    trained = [_trained(folder, arm.name, study.seeds, records, split, metric) for arm in study.arms]
    board = make_leaderboard(
        [*cheap, *trained],
        seeds=study.seeds,
        metric=metric,
        split=split,
        examples=scored[0].data.splits[split],
    )
    notes = [*fitted.left_out]
    if split == "dev":
        notes.append("There is no labelled test split: these scores are on dev, which epochs and penalties chose by.")
    failed = [f"{arm}, seed {seed}" for (arm, seed), record in records.items() if record.error is not None]
    notes += [f"Failed: {'; '.join(failed)}."] if failed else []
    return Comparison(data=data, folder=str(folder), leaderboard=board, notes=tuple(notes))


def _trained(folder: Path, arm: str, seeds: Sequence[int], records: Records, split: str, metric: str) -> Entrant:
    answers = answers_of(folder / STUDY_FOLDER)
    mine = {seed: records[arm, seed] for seed in seeds if (arm, seed) in records and records[arm, seed].scored}
    given = {seed: answers(arm, seed, split) for seed in mine}
    return Entrant(
        name=arm,
        kind="trained",
        parameters=next((record.parameters for record in mine.values()), None),
        seconds=sum(record.wall_seconds for record in mine.values()) / len(mine) if mine else None,
        by_seed={seed: record.metrics[split][metric] for seed, record in mine.items()},
        draws={seed: drawn_scores(mine[seed], metric, x) for seed, x in given.items() if x is not None},
    )


def _cheap(folder: Path, fitted: Any, seeds: Sequence[int], records: Records, split: str, metric: str) -> Entrant:
    """A baseline, which has the same score whatever the seed."""
    record = next(record for record in records.values() if record.scored)
    draws = drawn_scores(record, metric, read_answers(folder / BASELINES, fitted, split))
    return Entrant(
        name=fitted.name,
        kind=fitted.kind,
        parameters=fitted.parameters,
        seconds=fitted.seconds,
        by_seed=dict.fromkeys(seeds, fitted.metrics[split][metric]),
        draws=dict.fromkeys(seeds, draws),
    )
