"""Every option that a component has can be given on the command line, or is listed here as a deliberate exception."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from meq.analysis.attribution import DEFAULT_METHOD, METHODS
from meq.cli import app, understand, use
from meq.cli.options import field_texts
from meq.core.registry import BACKWARDS, SOLVERS
from meq.data.request import DATA_SETS, DataRequest
from meq.encoders.store import FeatureStore
from meq.objectives import PENALTIES
from meq.options import by_part
from meq.runs.analyze import AnalysisOptions
from meq.runs.audit import AuditOptions
from meq.runs.cost import PASSES, cost_of_run
from meq.runs.predict import PROBABILITIES, predict_table
from meq.studies.cost import STEPS
from meq.studies.runner import choose_executor
from meq.training.arms import ARMS, FITTED, SHAPE, Arm, make_penalties, model_options
from meq.training.config import SMALL, TrainConfig

COMMANDS: Any = get_command(app)
NOT_ON_THE_COMMAND_LINE = {
    "parts": "modules of one's own, which a text cannot name",
    "shard_bytes": "how a store is cut into files, which nothing depends on",
    "shard_seconds": "the same, by time",
    "progress": "the command line has its own bars",
}
"""Options that are deliberately left to Python, and why."""


def flags(*names: str) -> set[str]:
    """The long flags and the arguments of a command."""
    command = COMMANDS
    for name in names:
        command = command.commands[name]
    return {flag.removeprefix("--") for option in command.params for flag in [*option.opts, option.name]}


PREDICT = {"on_bad": "skip-bad", "encoders": "text-encoder", "id_column": "id", "path": "data", "root": "more"}


@pytest.mark.parametrize(
    ("component", "command", "elsewhere"),
    [
        (TrainConfig, ("train",), {"trackers": "tracker"}),
        *[
            (DataRequest, command, {"images": "image", "texts": "text", "audios": "audio", "vectors": "vector"})
            for command in (("train",), ("encode",), ("data", "check"), ("data", "show"), ("study", "run"))
        ],
        (FeatureStore, ("encode",), {"folder": "store"}),
        (AnalysisOptions, ("diagnose",), {}),
        (AuditOptions, ("audit",), {}),
        (cost_of_run, ("cost",), {}),
        (choose_executor, ("study", "run"), {"trusted": "trust-cluster"}),
        (predict_table, ("predict",), PREDICT),
    ],
)
def test_every_option_of_a_component_is_a_flag(component: Any, command: tuple[str, ...], elsewhere: Any) -> None:
    for name in inspect.signature(component).parameters:
        if name not in NOT_ON_THE_COMMAND_LINE:
            flag = {"options": "set", **elsewhere}.get(name, name.replace("_", "-"))
            assert flag in flags(*command), f"{name} of {component.__name__}"


@pytest.mark.parametrize("arm", ARMS)
def test_every_option_of_every_model_is_set_by_name(arm: str) -> None:
    for name, parameter in ARMS[arm].options.items():
        if name in ("solver", "backward"):
            made = model_options(arm, {}, **{name: {"solver": "anderson", "backward": "phantom"}[name]})  # type: ignore[arg-type]
            assert type(made[name]).__name__.lower() in ("anderson", "phantom")
            continue
        if name not in NOT_ON_THE_COMMAND_LINE:
            value = None if parameter.default is parameter.empty else parameter.default
            assert model_options(arm, {"model": {name: value}}) == {name: value}


@pytest.mark.parametrize("known", [SOLVERS, BACKWARDS])
def test_every_option_of_solvers_and_backwards_is_set_by_name(known: Any) -> None:
    for name in known:
        made = known[name]()
        for field in dataclasses.fields(known[name]):
            value = getattr(made, field.name)
            plain = {"name": "Broyden"} if dataclasses.is_dataclass(value) else value
            found = model_options("meq", {known.kind: {field.name: plain}}, **{known.kind: name.lower()})
            assert isinstance(found[known.kind], known[name])


@pytest.mark.parametrize("name", PENALTIES)
def test_every_option_of_every_penalty_is_set_by_name(name: str) -> None:
    needed = {"floors": 0.1} if name == "cross-floor" else {}
    for field in dataclasses.fields(PENALTIES[name]):
        value = 0.1 if field.default is dataclasses.MISSING else field.default
        (made,) = make_penalties({name: {**needed, field.name: value}})
        assert getattr(made, field.name) == value


def test_every_flag_that_a_dataclass_gives_is_explained() -> None:
    for kind in (TrainConfig, DataRequest):
        missing = {field.name for field in dataclasses.fields(kind)} - field_texts(kind).keys()
        assert not missing, f"fields of {kind.__name__} without a text below them: {missing}"
    for command in (("train",), ("encode",), ("evaluate",), ("predict",), ("study", "run")):
        found = COMMANDS.commands[command[0]]
        found = found.commands[command[1]] if len(command) > 1 else found
        for option in found.params:
            assert option.help, f"{option.name} of {command}"


def test_what_is_written_twice_for_the_sake_of_a_fast_help_is_the_same() -> None:
    assert tuple(METHODS) == understand.METHODS
    assert understand.METHODS[0] == DEFAULT_METHOD
    assert (understand.DEPTHS, understand.PASSES) == (STEPS, PASSES)
    assert AuditOptions().samples == understand.AUDITED
    assert use.PROBABILITIES == PROBABILITIES


def test_settings_belong_to_a_part_or_to_the_data() -> None:
    given = {"seed": 1, "data.kinds": ["binding"], "model.hidden": 64, "jacobian_range.low": 0.1}
    assert by_part(given, ["model", "jacobian-range"]) == {
        "data": {"seed": 1, "kinds": ["binding"]},
        "model": {"hidden": 64},
        "jacobian-range": {"low": 0.1},
    }
    with pytest.raises(ValueError, match=r"`set` modle\.dim: there is no part 'modle': did you mean 'model'"):
        by_part({"modle.dim": 1}, ["model"])


SMALL_RUN = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "500"]


def test_a_run_is_trained_with_options_of_every_part(tmp_path: Path) -> None:
    options = ["--solver", "anderson", "--backward", "phantom", "--weight-decay", "0.5", "--warmup", "0.25"]
    options += ["--decay", "linear", "--clip", "2", "--monitor-samples", "4", "--radius-samples", "0"]
    options += ["--scale-inputs", "2"]
    for setting in ("model.hidden=12", "solver.history=2", "backward.steps=1", "jacobian_range.low=0.1", "seed=3"):
        options += ["--set", setting]
    result = CliRunner().invoke(app, ["train", "statements", "--out", str(tmp_path / "run"), *SMALL_RUN, *options])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert {"weight_decay": 0.5, "warmup": 0.25, "decay": "linear", "clip": 2.0}.items() <= record["config"].items()
    assert record["config"]["scale_inputs"] == 2.0
    model = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["options"]
    assert model["hidden"] == 12
    assert model["solver"]["name"] == "Anderson"
    assert model["solver"]["history"] == 2
    assert model["backward"]["name"] == "Phantom"
    assert model["backward"]["steps"] == 1
    assert record["objective"]["penalties"][0].startswith("JacobianRange(low=0.1, ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "model.hiden=12"], "the arm 'meq' has no option 'hiden': did you mean 'hidden'?"),
        (["--set", "modell.hidden=12"], "there is no part 'modell': did you mean 'model'?"),
        (["--solver", "andersen"], "there is no solver 'andersen': did you mean 'Anderson'?"),
        (["--set", "solver.histry=3"], "the solver Damped has no option 'histry'"),
        (["--arm", "concat", "--solver", "anderson"], "the arm 'concat' has no option 'solver'"),
        (["--set", "jacobian_range.lo=3"], "has no option 'lo': did you mean 'low'?"),
        (["--set", "model.hidden=wide"], "the option 'hidden' of the arm 'meq' must be a whole number, or null"),
        (["--set", "jacobian_range.low=wide"], "the option 'low' of the penalty 'jacobian-range' must be a number"),
        (["--arm", "concat", "--set", "jacobian_range.low=0.1"], "does not iterate, so it has no penalties"),
        (["--scale-inputs", "-1"], "--scale-inputs must be 0 or positive, got -1.0"),
        (["--decay", "cosin"], "--decay cannot be 'cosin': did you mean 'cosine'?"),
    ],
)
def test_a_mistyped_option_is_answered_before_anything_is_read(options: list[str], words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "statements", "--out", str(tmp_path / "run"), *options])
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()


def test_a_study_runs_with_other_options_of_training_and_of_its_models(tmp_path: Path) -> None:
    common = ["study", "run", "statements-tiny", "--out", str(tmp_path / "study"), "--seed", "0"]
    result = CliRunner().invoke(app, [*common, "--set", "train.epochz=1"])
    assert "did you mean 'epochs'?" in result.output
    result = CliRunner().invoke(app, [*common, "--set", "model.hiden=1"])
    assert "did you mean 'hidden'?" in result.output
    result = CliRunner().invoke(app, [*common, "--set", "train.epochs=1", "--set", "model.hidden=12"])
    assert result.exit_code == 0, result.output
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    assert study["train"]["epochs"] == 1
    assert any(arm["options"].get("hidden") == 12 for arm in study["arms"])
    assert all("epochs" not in arm["train"] for arm in study["arms"])


def test_the_defaults_of_training_are_those_of_small_models() -> None:
    defaults = {option.name: option.default for option in COMMANDS.commands["train"].params}
    for field in dataclasses.fields(TrainConfig):
        if field.name in FITTED:
            assert defaults[field.name] is None, "it follows from the data unless it is given"
        elif field.name != "trackers":
            assert defaults[field.name] == getattr(SMALL, field.name)
    assert {name: defaults[name] for name in SHAPE} == SHAPE
    assert isinstance(ARMS[defaults["arm"]], Arm)
    assert "statements" in DATA_SETS
