"""The verbs of meq.Run and meq.train have the names, the arguments and the order that the command line has."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import meq
from meq.cli import app
from meq.cli.output import next_commands

COMMANDS: Any = get_command(app).commands  # type: ignore[attr-defined]
TERMINAL = {"as_json", "debug", "help", "force", "probabilities"}
"""What is about the terminal, or about the file that answers are written to."""
SPELLED = {"set_": "set", "id_column": "id"}
ENCODERS = {"image_encoder", "text_encoder", "region_encoder", "audio_encoder"}
VERBS = ["predict", "evaluate", "explain", "diagnose", "audit", "calibrate", "cost", "quantise", "export", "report"]
VERBS += ["importance"]
HIDDEN = {"explain": {"model"}, "report": {"figure"}, "predict": {"out"}}
"""Older ways, and files: answers are saved by `Answers.save`, figures are drawn by the command line alone."""


def asked(command: str) -> list[str]:
    """The names of a command's arguments and options, in order, without the run, which a verb belongs to."""
    names = [SPELLED.get(each.name, each.name) for each in COMMANDS[command].params]
    return [name for name in names if name not in TERMINAL | HIDDEN.get(command, set()) | {"run", "folder"}]


def without_encoders(names: list[str]) -> list[str]:
    """A verb takes encoders by kind in one argument."""
    return [name for name in names if name not in ENCODERS]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_the_arguments_of_its_command(verb: str) -> None:
    parameters = [name for name in inspect.signature(getattr(meq.Run, verb)).parameters if name != "self"]
    wanted = asked(verb)
    more_in_python = {"encoders", "batch_size", "root"} - set(wanted)
    assert set(without_encoders(wanted)) == set(parameters) - more_in_python


@pytest.mark.parametrize("verb", VERBS)
def test_the_places_of_a_verb_are_those_of_its_command(verb: str) -> None:
    typed = [each.name for each in COMMANDS[verb].params if each.param_type_name == "argument"]
    places = [name for name in typed if name not in ("run", "folder")]
    parameters = inspect.signature(getattr(meq.Run, verb)).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = [name for name, each in parameters.items() if each.kind in kinds and name not in ("self", "out")]
    assert found == places


def test_train_has_the_arguments_of_its_command_in_the_same_order() -> None:
    parameters = inspect.signature(meq.train).parameters
    assert list(parameters)[:2] == ["data", "root"]
    assert set(parameters) == set(asked("train"))
    assert [name for name in asked("train") if name in ENCODERS] == [name for name in parameters if name in ENCODERS]
    assert inspect.Parameter.VAR_KEYWORD not in {each.kind for each in parameters.values()}


def test_the_defaults_of_train_are_those_of_its_command() -> None:
    for option in COMMANDS["train"].params:
        name = SPELLED.get(option.name, option.name)
        if name in inspect.signature(meq.train).parameters and option.default is not None:
            assert inspect.signature(meq.train).parameters[name].default == option.default, name


def test_every_command_that_reads_content_takes_a_store_by_both_names() -> None:
    reading = ["encode", "train", "evaluate", "predict", "explain", "diagnose", "audit", "calibrate", "cost", "report"]
    options = {name: [flag for each in COMMANDS[name].params for flag in each.opts] for name in reading}
    study = COMMANDS["study"].commands
    options |= {name: [flag for each in study[name].params for flag in each.opts] for name in ("run", "work", "verify")}
    for name, flags in options.items():
        assert {"--store", "--features"} <= set(flags), name


def test_the_older_name_of_diagnose_works_and_is_not_listed() -> None:
    assert COMMANDS["analyze"].hidden
    assert [each.name for each in COMMANDS["analyze"].params] == [each.name for each in COMMANDS["diagnose"].params]
    assert not COMMANDS["diagnose"].hidden


@pytest.mark.parametrize("command", ["", "train", "study run", "data check", "diagnose"])
def test_a_single_letter_asks_for_help(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "-h"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


@pytest.mark.parametrize(
    ("kinds", "iterates", "verbs"),
    [
        (["image", "text"], True, ["evaluate", "predict", "predict", "diagnose", "explain", "report"]),
        (["image", "text"], False, ["evaluate", "predict", "predict", "report"]),
        (["features", "features"], True, ["evaluate", "predict", "diagnose", "report"]),
        (["features", "text"], False, ["evaluate", "predict", "report"]),
    ],
)
def test_what_is_suggested_after_training_fits_what_the_run_reads(
    kinds: list[str], iterates: bool, verbs: list[str]
) -> None:
    lines = next_commands(Path("runs/my run"), "numbers.parquet", kinds=kinds, iterates=iterates)
    assert [line.split()[1] for line in lines] == verbs
    assert all("'runs/my run'" in line for line in lines)
    assert "new.parquet -o answers.csv" in lines[1]
    assert ('PICTURE.png "TEXT"' in lines[2]) == (kinds == ["image", "text"])
