"""Every study on every kind of data that it names: an update of every arm, or a sentence before any work."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzzing import MINUTES
from rich.console import Console
from studies.kinds import KINDS, TABLES, Kind, make_kind
from studies.shrinking import shrunk

from meq.studies import Study, StudyError, make_study, runner, verify
from meq.studies.build import PreparedData, build_model, build_objective
from meq.studies.measures import measured_of
from meq.studies.recipes import STUDIES
from meq.studies.runner import check_study, run_study
from meq.studies.settings import TABLE
from meq.training.arms import ARMS
from meq.training.updates import sample_seeds

NARROW = {"dim": 16, "heads": 2, "steps": 2, "hidden": 32, "head_width": 16}
MEASURES: dict[str, dict[str, Any]] = {
    "steps": {"split": "dev"},
    "fixed-point": {"split": "dev", "horizon": 4, "radii": 1},
    "coupling": {"samples": 2},
    "robustness": {"split": "dev", "draws": 1},
}
FEATURES = (*TABLES, "mosei", "statements", "duels")
"""There is nothing to corrupt in what came as numbers, and typos would change which tokens there are to answer."""
REFUSED = {
    **{
        ("robustness", name): "came as features: the measure 'robustness' changes pictures and texts" for name in TABLES
    },
}
"""What makes no sense, and the sentence that says so."""
LIKE_ANOTHER = ("statements", "hateful-memes", "table of two", "table of four")
"""Kinds whose examples have the form of another kind's: of these, some studies are tried in the suite."""
SOME = ("main", "mixer", "modality", "robustness", "tree-order")
CASES = [
    (name, kind)
    for kind in KINDS
    for name, recipe in STUDIES.items()
    if (TABLE if kind in TABLES else kind) in recipe.on and (MINUTES or name in SOME or kind not in LIKE_ANOTHER)
]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    root = tmp_path_factory.mktemp("kinds")
    return {name: make_kind(name, root) for name in KINDS}


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Data that is prepared, and arms that were updated: many studies share them."""
    return {}


def narrowed(study: Study) -> Study:
    """Wider than `shrunk`, or no size of a baseline would meet the equilibrium's."""
    arms = []
    for arm in shrunk(study).arms:
        takes = inspect.signature(ARMS[arm.model].model).parameters
        chosen = arm.match.size if arm.match else None
        sizes = {name: value for name, value in NARROW.items() if name in takes and name != chosen}
        steps = {"steps": arm.options["steps"]} if arm.options.get("steps") == 1 else {}
        arms.append(replace(arm, options={**arm.options, **sizes, **steps}))
    return replace(shrunk(study), arms=tuple(arms))


def update(study: Study, prepared: PreparedData, arm: str) -> None:
    config = study.arm(arm)
    if config.floor_from:  # what another run reached: here, the same for all
        config = replace(config, floor_from=None, penalties={**config.penalties, "cross-floor": {"floors": 0.1}})
    data = prepared.seen_by(config)
    model, objective = build_model(study, config, data, 0), build_objective(config, data)
    batch = data.collate(list(data.splits["train"][:2]))
    seeds = sample_seeds(0, 0, batch.ids)
    output = model.train()(batch.features, batch.masks, seeds=seeds)
    loss = objective(model, output, batch.target, seeds=seeds).total
    loss.backward()
    assert loss.isfinite(), arm
    assert any(each.grad is not None and each.grad.any() for each in model.parameters()), arm


def _begin(name: str, kind: Kind) -> None:
    """As far as a study goes before it trains."""
    study = make_study(name, kind.asked)
    check_study(study, kind.prepare(study))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_arm_of_every_study_can_be_updated_on_every_kind_of_data(
    name: str, kind: str, kinds: dict[str, Kind], known: dict[str, Any]
) -> None:
    here = kinds[kind]
    if (name, kind) in REFUSED:
        with pytest.raises(StudyError, match=REFUSED[name, kind]):
            _begin(name, here)
        return
    study = narrowed(make_study(name, here.asked))
    prepared = known.setdefault(f"{kind} {study.data}", None) or here.prepare(study)
    known[f"{kind} {study.data}"] = prepared
    check_study(study, prepared)
    for arm in study.arms:
        done = f"{kind} {study.data} {replace(arm, name='any')}"
        if done not in known:
            update(study, prepared, arm.name)
            known[done] = True


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scenes"])
def test_every_measure_can_be_taken_on_every_kind_of_data(
    kind: str, kinds: dict[str, Kind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On `scenes`, every study with its measures is run in `test_laboratory.py`."""
    here = kinds[kind]
    study = narrowed(make_study("main", here.asked))
    measures = {name: each for name, each in MEASURES.items() if name != "robustness" or kind not in FEATURES}
    arms = tuple(arm for arm in study.arms if arm.name in ("meq", "concat"))
    train = replace(study.train, batch_size=4, epochs=1)
    study = replace(study, arms=arms, measures=measures, train=train, seeds=(0,), groups={})
    monkeypatch.setattr(runner, "prepare_data", lambda config, places: here.prepare(study))
    records = run_study(study, tmp_path / "study", console=Console(quiet=True))
    assert [record.error for record in records] == [None, None]
    for name, values in measured_of(tmp_path / "study", study).items():
        assert ("meq", 0) in values, name
    assert verify(tmp_path / "study").faults == []


def test_an_implicit_gradient_of_a_learned_damping_is_refused_before_any_work(tmp_path: Path) -> None:
    study = make_study("steps", "scenes", quick=True)
    arm = replace(study.arms[0], options={**study.arms[0].options, "damping": "learned"}, backward="implicit")
    with pytest.raises(StudyError, match="'meq' learns its damping, on which the equilibrium does not depend"):
        run_study(replace(study, arms=(arm,)), tmp_path / "study", console=Console(quiet=True))
    assert not (tmp_path / "study").exists()


def test_solvers_are_compared_with_a_constant_damping_where_the_paper_learns_it() -> None:
    assert {arm.options["damping"] for arm in make_study("solvers", "snli-ve").arms} == {0.5}
    assert {arm.options["damping"] for arm in make_study("solvers", "hateful-memes").arms} == {0.5}
    assert make_study("main", "snli-ve").arm("meq").options["damping"] == "learned"
