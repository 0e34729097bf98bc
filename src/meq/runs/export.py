"""A run's model as ONNX, in a folder with all that is needed to use it without torch and without meq.

    model.onnx       features and masks in, logits out, at a fixed depth
    facts.json       columns, widths, standardisation, labels, temperature
    use.py           the loop: a row of a table in, an answer out; numpy and onnxruntime
    reading.py       from cells to features, with descriptors.py or cnn.onnx where pictures or texts are read
    README.md        what to give it

Vectors go the whole way, and so do pictures and texts by the built-in encoders and pictures by `cnn`. Of what another
encoder read, the loop takes the features, and both README and `ExportedRun.notes` say so.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meq.data.metrics import MICRO_F1
from meq.data.pictures import LARGE_PIXELS, PICTURE_FORMATS, SPARE
from meq.encoders import Encoder
from meq.encoders.catalogue import encoder_from_spec, specs_from_name
from meq.models.base import FusionModel
from meq.models.blocks import SpatialMixer
from meq.models.export import export_onnx
from meq.models.iterated import IteratedModel
from meq.records import dumps, sync, write_bytes
from meq.runs.load import TrainedRun
from meq.runs.own_data import check_encoder
from meq.runs.probabilities import applied
from meq.studies.study import StudyError
from meq.training.bundle import as_code, escaped
from meq.version import __version__

HEADS = ("classes", "labels", "score")
WHOLE = {("patches", "image"), ("words", "text"), ("cnn", "image")}
"""Encoders that can be exported, with what they read."""
ROWS, TOKENS = 2, 3
"""That the model is traced with; both stay free."""


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """What was written."""

    folder: Path
    notes: tuple[str, ...]
    """What the folder does not do that the run does."""

    def __str__(self) -> str:
        use = f"python {self.folder / 'use.py'} TABLE.csv answers the rows of a table without torch"
        return "\n".join([use, *self.notes])


def export_run(run: TrainedRun, folder: Path | str, *, steps: int | None = None) -> ExportedRun:
    """Write the folder, whole or not at all; needs `pip install 'meq[onnx]'`.

    Every row is read at step `steps`, by default at the model's own depth K.
    """
    folder = Path(folder)
    _check(run, folder)
    model = _at_fixed_depth(run, steps)
    encoders = {name: _exportable(run, name) for name in run.task.encoders}
    roads = {name: _road(run, name, encoders.get(name)) for name in run.task.widths}
    notes = _notes(run, roads)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".exporting-", dir=folder.parent))
    try:
        export_onnx(model, staging / "model.onnx", *_example(run))
        write_bytes(staging / "facts.json", dumps(_facts(run, model, roads)).encode())
        _write_code(staging, roads)
        for encoder in encoders.values():
            if encoder is not None and encoder.registered == "cnn":
                _write_cnn(encoder, staging / "cnn.onnx")
        write_bytes(staging / "README.md", _readme(run, model, roads, notes).encode())
        staging.chmod(0o755)
        os.rename(staging, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return ExportedRun(folder=folder, notes=notes)


def _check(run: TrainedRun, folder: Path) -> None:
    if folder.exists():
        raise StudyError(f"{folder} is there already: choose another name")
    if run.task.head not in HEADS:
        raise StudyError(
            f"{run.folder} answers {run.task.head}, which the loop of the folder does not read: meq.models.export has "
            "export_onnx, which exports the model alone"
        )
    if any(isinstance(module, SpatialMixer) for module in run.model.modules()):
        raise StudyError(
            f"{run.folder} mixes tokens by their position (gMLP), and its graph takes as many as it was traced with: "
            "meq.models.export has export_onnx, which exports the model alone"
        )


def _at_fixed_depth(run: TrainedRun, steps: int | None) -> FusionModel:
    if steps is not None:
        return run.model_read(steps)
    model = copy.copy(run.model)
    if isinstance(model, IteratedModel):
        model.anytime = None
    return model


def _exportable(run: TrainedRun, name: str) -> Encoder | None:
    """The encoder of a modality, if the folder can hold it; checked to be the one of training."""
    facts, kind = run.task.encoders[name], run.task.kinds.get(name)
    spec = run.task.specs.get(name)
    if name not in run.task.specs:
        spec = specs_from_name(facts.name, facts.revision, kind=kind, modality=name)[0]
    if not spec or (spec["encoder"], spec["kind"]) not in WHOLE:
        return None
    encoder = encoder_from_spec(spec)
    check_encoder(name, encoder, facts)
    return encoder


def _road(run: TrainedRun, name: str, encoder: Encoder | None) -> dict[str, Any]:
    """How the cells of a modality become its tokens, as reading.py knows it."""
    road: dict[str, Any] = {"columns": list(run.task.columns.get(name, (name,))), "width": run.task.widths[name]}
    if encoder is not None:
        options = {"patches": "grid", "words": "max_words"}
        road["read_by"] = encoder.registered
        road |= {option: getattr(encoder, option) for each, option in options.items() if each == encoder.registered}
        road |= {"side": _side(encoder)} if encoder.registered == "cnn" else {}
    else:
        road["read_by"] = "numbers"
        if name in run.task.encoders:
            road["made_by"] = run.task.encoders[name].name
    scaling = run.task.standardisation
    if scaling is not None and name in scaling.mean:
        road |= {"mean": list(scaling.mean[name]), "std": list(scaling.std[name])}
    return road


def _facts(run: TrainedRun, model: FusionModel, roads: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "meq": __version__,
        "weights_sha256": run.task.weights_sha256,
        "head": run.task.head,
        "labels": list(run.labels),
        "several": run.task.head == "labels" and run.task.metric == MICRO_F1.name,
        "temperature": applied(run, model).temperature,  # 1 where it was fitted on answers read elsewhere
        "steps": getattr(model, "steps", None),
        "modalities": roads,
        "formats": list(PICTURE_FORMATS),
        "large_pixels": LARGE_PIXELS,
        "spare": SPARE,
    }


def _example(run: TrainedRun) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Features and masks of every modality: what is missing in a row is masked there.

    Of a modality that was one vector per row in training the single token is fixed, which is much sooner traced.
    """
    known = {} if run.task.profile is None else run.task.profile.modalities
    sizes = {name: (ROWS, 1 if name in known and known[name].columns else TOKENS) for name in run.task.widths}
    draw = torch.Generator()
    features = {name: torch.randn(*sizes[name], width, generator=draw) for name, width in run.task.widths.items()}
    return features, {name: torch.ones(size, dtype=torch.bool) for name, size in sizes.items()}


def _write_code(folder: Path, roads: Mapping[str, Any]) -> None:
    templates = files("meq.runs") / "templates"
    for name in ("use.py", "reading.py"):
        write_bytes(folder / name, (templates / f"{name}.txt").read_bytes())
    if any(road["read_by"] in ("patches", "words") for road in roads.values()):
        write_bytes(folder / "descriptors.py", (files("meq.encoders") / "descriptors.py").read_bytes())


def _write_cnn(encoder: Any, path: Path) -> None:
    """The network of pictures, for one picture at a time."""
    program = torch.export.export(encoder.model, (torch.zeros(1, 3, _side(encoder), _side(encoder)),))
    made = torch.onnx.export(
        program, input_names=["pixels"], output_names=["cells"], dynamo=True, verbose=False, optimize=False
    )
    assert made is not None
    for node in made.model.graph:
        node.metadata_props.clear()  # stack traces of the machine that exported
    made.save(path, external_data=False)


def _side(encoder: Any) -> int:
    """Pixels of the square that the network reads."""
    return int(encoder.window[0])


def _notes(run: TrainedRun, roads: Mapping[str, Any]) -> tuple[str, ...]:
    notes = [
        f"{name} was encoded by {road['made_by']}, which is not exported: its column takes the features, "
        f"{road['width']} numbers per token, as a list of lists or the path of a .npy file"
        for name, road in roads.items()
        if "made_by" in road
    ]
    if run.anytime is not None:
        notes.append("the calibrated stopping rule stays behind: every row is read at the same step")
    return tuple(notes)


def _readme(run: TrainedRun, model: FusionModel, roads: Mapping[str, Any], notes: tuple[str, ...]) -> str:
    words = {
        "numbers": "numbers: a list, a text of numbers, or one number in each of its columns",
        "patches": "the path of a picture",
        "cnn": "the path of a picture",
        "words": "a text",
    }
    pillow = any(road["read_by"] in ("patches", "words", "cnn") for road in roads.values())
    needs = "numpy, onnxruntime and Pillow" if pillow else "numpy and onnxruntime"
    depth = f"Every row is read at step {model.steps}." if isinstance(model, IteratedModel) else ""
    columns = [
        f"- {', '.join(map(as_code, road['columns']))}: "
        + (f"features of {escaped(road['made_by'])}" if "made_by" in road else words[road["read_by"]])
        for road in roads.values()
    ]
    lines = [
        f"# {type(run.model).__name__}, trained on {escaped(run.task.data)}, as ONNX",
        f"Needs {needs}; neither torch nor meq.",
        "```\npython use.py TABLE.csv > answers.jsonl\n```",
        "\n".join(["Columns; an empty cell is a missing modality:", "", *columns]),
        *([depth] if depth else []),
        *(f"Note: {escaped(note)}." for note in notes),
    ]
    return "\n\n".join(lines) + "\n"
