"""Messages are written in Python's words and told in those of the command line."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from meq.cli import app
from meq.cli.errors import flags_of, in_flags, running

COMMANDS: Any = get_command(app)


@pytest.mark.parametrize(
    ("command", "written", "told"),
    [
        ("train", "batch_size must be at least 1, got 0", "--batch-size must be at least 1, got 0"),
        ("train", "epochs must be at least 1, got 0", "--epochs must be at least 1, got 0"),
        ("train", "lower one of them (batch_size x processes)", "lower one of them (--batch-size x processes)"),
        ("train", "leave out `images`, `label`", "leave out --image, --label"),
        ("train", "dim=64 cannot be split into 5 heads", "--dim 64 cannot be split into 5 heads"),
        ("train", "skip such rows with on_bad='skip', or --skip-bad", "skip such rows with --skip-bad"),
        ("predict", "write over it with --force (force=True)", "write over it with --force"),
        ("train", "there is no column 'batch_size'", "there is no column 'batch_size'"),
        ("train", "data/batch_size.csv: the text is empty", "data/batch_size.csv: the text is empty"),
        ("train", "my_batch_size is another word", "my_batch_size is another word"),
        ("predict", "batch_size is no option of this command", "batch_size is no option of this command"),
        ("analyze", "horizon 1 lies before the step that is read", "--horizon 1 lies before the step that is read"),
    ],
)
def test_options_of_the_command_are_named_as_they_are_typed(command: str, written: str, told: str) -> None:
    with running(COMMANDS.commands[command]):
        assert in_flags(written) == told


def test_outside_of_a_command_a_message_stays_as_it_is() -> None:
    assert in_flags("batch_size must be at least 1") == "batch_size must be at least 1"


def test_every_option_of_every_command_can_be_translated() -> None:
    for name in ("train", "encode", "evaluate", "predict", "explain", "analyze", "audit", "cost", "report"):
        command = COMMANDS.commands[name]
        flags = flags_of(command)
        for option in command.params:
            typed = [flag for flag in option.opts if flag.startswith("--")]
            assert not typed or flags[option.name] in typed
