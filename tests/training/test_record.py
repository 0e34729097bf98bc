from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training.small import train_small

from meq.records import FormatError
from meq.training.record import RunRecord, commit_of, read_record, session, write_record

RECORDS = Path(__file__).parents[1] / "records"
RUN = RECORDS / "0.1.0" / "runs" / "meq" / "seed-0"


@pytest.mark.parametrize("path", sorted(RECORDS.rglob("record.json")), ids=lambda path: path.parent.name)
def test_the_record_of_every_released_format_is_still_read(path: Path) -> None:
    record = read_record(path.parent)
    assert record.status == "finished"
    assert record.metrics["dev"]["accuracy"] == record.selected.value
    assert len(record.curves) == record.config["epochs"]
    assert record.data.splits == {"train": 64, "dev": 24, "test": 16}
    assert record.sessions[0].versions["meq"]


@pytest.mark.parametrize("name", [field.name for field in fields(RunRecord) if not field.metadata])
def test_every_field_is_required(name: str, tmp_path: Path) -> None:
    content = json.loads((RUN / "record.json").read_text())
    del content[name]
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match=f"record.json: the field '{name}' is missing"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["data"].pop("fingerprint"), "the field 'data.fingerprint' is missing"),
        (lambda content: content.update(wall_second=1), "no field 'wall_second': did you mean 'wall_seconds'"),
        (lambda content: content.update(steps="8"), "the field 'steps' should be a whole number, is \"8\""),
        (lambda content: content.update(steps=True), "the field 'steps' should be a whole number, is true"),
        (lambda content: content.update(curves={}), "the field 'curves' should be a list"),
        (lambda content: content["metrics"]["dev"].update(accuracy=None), "'metrics.dev.accuracy' should be a number"),
        (lambda content: content["sessions"][0].pop("commit"), r"'sessions\[0\].commit' is missing"),
        (lambda content: content.update(status="done"), "status cannot be 'done'"),
        (lambda content: content.update(schema=2), "written in format 2, this version of meq reads up to 1"),
    ],
)
def test_a_wrong_record_is_an_error_that_names_file_and_field(
    change: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    content = json.loads((RUN / "record.json").read_text())
    change(content)
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match=message) as caught:
        read_record(tmp_path)
    assert str(tmp_path / "record.json") in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"schema": NaN}', '{"schema": 1, "schema": 1}', b"\xff\xfe{"])
def test_what_is_no_record_is_an_error(content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError, match=r"record\.json: "):
        read_record(tmp_path)


def test_a_folder_without_a_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="it is not the folder of a run"):
        read_record(tmp_path)


def test_numbers_that_are_not_finite_survive_as_strict_json(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    odd = {"dev": {"accuracy": math.nan, "up": math.inf, "down": -math.inf}}
    write_record(tmp_path, replace(read_record(RUN), metrics=odd, vitals=({"radius": math.nan},)))
    text = (tmp_path / "record.json").read_text()
    json.loads(text, parse_constant=refuse)
    assert '{\n    "not finite": "nan"\n   }' in text
    back = read_record(tmp_path)
    assert math.isnan(back.metrics["dev"]["accuracy"])
    assert (back.metrics["dev"]["up"], back.metrics["dev"]["down"]) == (math.inf, -math.inf)
    assert math.isnan(back.vitals[0]["radius"])


def test_a_record_is_the_same_after_the_disk(tmp_path: Path) -> None:
    record = read_record(RUN)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert (tmp_path / "record.json").read_bytes() == (RUN / "record.json").read_bytes()


def test_a_run_is_recorded_from_its_first_line_and_says_when_it_was_resumed(tmp_path: Path) -> None:
    train_small(tmp_path / "run", epochs=1)
    whole = read_record(tmp_path / "run")
    assert [session.step for session in whole.sessions] == [0]
    assert whole.sessions[0].hardware.device == "cpu"
    assert whole.checkpoint is not None
    assert whole.checkpoint.file == "model/model.safetensors"
    assert set(whole.predictions) == {"dev", "test"}
    shutil.move(tmp_path / "run", tmp_path / "moved")
    train_small(tmp_path / "moved", epochs=1, resume=True)
    again = read_record(tmp_path / "moved")
    assert [session.step for session in again.sessions] == [0, whole.steps]
    assert again.checkpoint == whole.checkpoint
    assert again.predictions == whole.predictions, "the same bytes"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_commit_of_a_working_copy_and_whether_it_was_changed(tmp_path: Path) -> None:
    code = tmp_path / "src" / "package"
    code.mkdir(parents=True)
    (code / "a.py").write_text("x = 1\n")
    assert commit_of(code) is None, "no repository"
    git(tmp_path, "init", "--quiet")
    assert commit_of(code) is None, "a repository that does not track it, as around an installed package"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    found = commit_of(code)
    assert found is not None
    assert (found.sha, found.dirty) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "results").write_text("written by a study, not code")
    assert not commit_of(code).dirty
    (code / "b.py").write_text("y = 2\n")
    assert commit_of(code).dirty, "a new file of the package is a change of it"


def test_a_session_says_what_ran_where() -> None:
    found = session(7, torch.device("cpu"))
    assert found.step == 7
    assert found.versions["torch"] == torch.__version__
    assert found.started.endswith("+00:00")
    assert (found.hardware.device, found.hardware.threads) == ("cpu", torch.get_num_threads())
    assert found.hardware.name
