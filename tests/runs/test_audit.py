"""A trained run under audit: by `meq.audit`, and by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training.token_set import token_data, token_model
from typer.testing import CliRunner

import meq
from meq.cli import app
from meq.data.duels import relay
from meq.data.request import DataRequest
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.audit import AuditOptions, _batches
from meq.runs.own_data import ReadOptions, run_data
from meq.studies import StudyError
from meq.training import TrainConfig

SMALL = {"dim": 8, "heads": 2, "steps": 2}
ONCE = TrainConfig(epochs=1, batch_size=16, learning_rate=1e-2)
REQUEST = DataRequest(data="statements", options={"train": 48, "dev": 40, "test": 24})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    train_on(REQUEST, folder / "run", shape=SMALL, config=ONCE)
    return folder


@pytest.fixture
def run(place: Path) -> TrainedRun:
    return load_run(place / "run")


def said(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_run_its_folder_and_its_model_with_batches_are_audited_alike(place: Path, run: TrainedRun) -> None:
    of_run = meq.audit(run)
    assert of_run.of == "statements, split dev"
    assert of_run.samples == 40
    assert repr(meq.audit(place / "run")) == repr(meq.audit(str(place / "run"))) == repr(of_run)
    data = run_data(run).data
    parts = [data.splits["dev"][first : first + 16] for first in (0, 16, 32)]
    of_model = meq.audit(run.model, [data.collate(list(part)) for part in parts])
    assert repr(replace(of_model, of=of_run.of)) == repr(of_run)


def test_samples_and_split_are_chosen(run: TrainedRun) -> None:
    found = meq.audit(run, split="test", samples=7)
    assert (found.of, found.samples) == ("statements, split test", 7)
    with pytest.raises(StudyError, match="did you mean 'test'"):
        meq.audit(run, split="tset")
    with pytest.raises(StudyError, match="at least one sample"):
        AuditOptions(samples=0)


def test_what_belongs_to_a_model_is_not_taken_for_a_run_and_the_other_way_round(run: TrainedRun) -> None:
    batch = REQUEST.open().collate(list(REQUEST.open().splits["dev"][:4]))
    assert meq.audit(run.model, batch).samples == 4
    with pytest.raises(TypeError, match="give labelled batches after it"):
        meq.audit(run.model)
    with pytest.raises(TypeError, match="on its own data"):
        meq.audit(run, [batch])
    with pytest.raises(TypeError, match="split belongs to a trained run"):
        meq.audit(run.model, batch, split="dev")


def test_the_command_prints_the_page_or_its_numbers(place: Path) -> None:
    code, output, errors = said("audit", place / "run", "--samples", "24")
    assert code == 0, errors
    assert output.startswith("statements, split dev\nverdict: ")
    assert "5. Does it keep beyond K?" in output
    code, output, errors = said("audit", place / "run", "--split", "test", "--samples", "24", "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert found["samples"] == 24
    assert found["read"] == 2
    assert [depth["step"] for depth in found["along"]] == [0, 1, 2, 4, 10, 100]
    assert len(found["checks"]) == 5
    assert isinstance(found["verdict"], str)
    assert isinstance(found["findings"], list)


def test_nothing_is_written_into_the_runs_folder(place: Path) -> None:
    before = sorted(path.relative_to(place) for path in place.rglob("*"))
    assert said("audit", place / "run", "--samples", "4")[0] == 0
    assert sorted(path.relative_to(place) for path in place.rglob("*")) == before


def test_a_run_that_does_not_iterate_is_an_error_in_words(place: Path) -> None:
    train_on(REQUEST, place / "concat", arm="concat", shape={"dim": 8}, config=ONCE)
    code, output, errors = said("audit", place / "concat")
    assert code == 1
    assert output == ""
    assert "error: Concat does not iterate, so there are no steps to look at" in errors
    code, _, errors = said("audit", place / "rnu")
    assert code == 1
    assert "did you mean 'run'" in errors


def test_the_facts_of_examples_say_how_hard_they_are(run: TrainedRun) -> None:
    data = REQUEST.open()
    examples = [replace(example, facts={"hops": row % 3}) for row, example in enumerate(data.splits["dev"][:20])]
    found = list(_batches(examples, data, run, ReadOptions()))
    assert torch.cat([batch.difficulty for batch in found]).tolist() == [row % 3 for row in range(20)]
    odd = [*examples[:-1], replace(examples[-1], facts={"hops": "many"})]
    with pytest.raises(StudyError, match="its 'hops' is 'many', not a number"):
        list(_batches(odd, data, run, ReadOptions()))
    some = [*examples[:-1], replace(examples[-1], facts={})]
    assert all(batch.difficulty is None for batch in _batches(some, data, run, ReadOptions())), "all must say it"


def test_depths_of_tokens_stand_where_their_answers_do() -> None:
    data = token_data()
    examples = [
        replace(example, facts={"token_depths": list(range(len(example.target)))}) for example in data.splits["dev"]
    ]
    run = SimpleNamespace(model=token_model(), batch_size=10)
    for batch in _batches(examples, data, run, ReadOptions()):
        assert batch.difficulty.shape == batch.target.shape
        places = torch.arange(batch.target.shape[1]).expand_as(batch.target)
        asked = batch.target >= 0
        assert torch.equal(batch.difficulty[asked], places[asked])


@pytest.mark.parametrize("ask", ["all", "one"])
def test_generated_trails_say_how_hard_their_tokens_or_their_questions_are(ask: Any) -> None:
    data = relay(train=9, dev=9, test=9, deep_test=0, form="symbols", ask=ask)
    examples = list(data.splits["dev"])
    run = SimpleNamespace(model=token_model(), batch_size=9)
    (batch,) = _batches(examples, data, run, ReadOptions())
    assert batch.difficulty.shape == batch.target.shape
    if ask == "all":
        said = [[depth for name in data.answering for depth in each.facts["token_depths"][name]] for each in examples]
        assert batch.difficulty.tolist() == said
    else:
        assert batch.difficulty.tolist() == [each.facts["depth"] for each in examples]


def test_the_name_is_imported_when_it_is_used() -> None:
    code = "import sys, meq; print('torch' in sys.modules); meq.audit; print('meq.runs.audit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
