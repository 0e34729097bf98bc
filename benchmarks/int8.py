"""What int8 layers save, and how many answers they change.

    python benchmarks/int8.py

times one step of the iteration at width 768 with 50 image and 32 text tokens, float and int8, in interleaved rounds on
one thread, single layers, which say from which size on it pays, and ONNX files of such a model; trains a small model on
`scenes` with each of three seeds, and compares its answers on dev with those of its int8 copy, every layer rounded; and
writes `benchmarks/results/speed_int8.json` in about a quarter of an hour. Expect a step to cost less than half on a
processor that multiplies bytes (VNNI), and as much as before on others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from speed import Line, interleaved, ratios, run_lines
from torch import nn

import meq
from meq.data.request import DataRequest
from meq.models.export import export_onnx
from meq.models.quantise import Int8Linear, multiplies_bytes
from meq.runs.own_data import run_data
from meq.runs.train_on import train_on
from meq.training import TrainConfig
from meq.training.predictions import predict_split

WIDTH, TOKENS, BATCHES = 768, {"image": 50, "text": 32}, (8, 1)
LAYERS, ROWS = (256, 512, 768), 32
"""Square layers below, at and above `LEAST_WEIGHTS`, and how many tokens they read."""
ONNX_STEPS = 2
"""Of the model that is exported: every step is a copy of the map in the graph."""
SEEDS = (0, 1, 2)
SHAPE = {"dim": 64, "heads": 4, "steps": 6}
RECIPE: dict[str, Any] = {"epochs": 5, "batch_size": 64, "learning_rate": 1e-3, "radius_samples": 0}


def step_of(model: meq.MutualEquilibrium, batch: int) -> Callable[[], Any]:
    """One call of T without gradients; what is prepared once is left out."""
    torch.manual_seed(0)
    features = {name: torch.randn(batch, count, WIDTH) for name, count in TOKENS.items()}

    def step() -> Any:
        with torch.no_grad():
            return model.coupling(state, context)

    with torch.no_grad():
        context = model.coupling.prepare(features, {}, None)
        state = model.coupling.start(context)
    return step


def stored_bytes(model: meq.FusionModel) -> int:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return (Path(folder) / "model.safetensors").stat().st_size


def steps_and_sizes(rounds: int) -> list[Line]:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium(dict.fromkeys(TOKENS, WIDTH), classes=10, dim=WIDTH).eval()
    made = meq.quantise(model)
    where = f"width {WIDTH}, {TOKENS['image']} + {TOKENS['text']} tokens"
    lines = []
    for batch in BATCHES:
        seconds = interleaved({"float": step_of(model, batch), "int8": step_of(made, batch)}, rounds)
        what = f"int8 step / float step, {where}, batch {batch}"
        limit = 0.6 if batch == BATCHES[0] else None
        lines.append(Line(number=4, what=what, limit=limit, **ratios(seconds, "int8", "float"), note=kernel()))
    size = stored_bytes(made) / stored_bytes(model)
    lines.append(Line(number=4, what=f"saved int8 file / saved float file, width {WIDTH}", found=size, limit=None))
    return lines


def single_layers(rounds: int) -> list[Line]:
    """Where the rule comes from that small layers stay float."""
    lines = []
    for width in LAYERS:
        torch.manual_seed(0)
        linear, x = nn.Linear(width, width).requires_grad_(False), torch.randn(ROWS, width)
        cases = {"float": repeated(linear, x), "int8": repeated(Int8Linear.of(linear), x)}
        found = ratios(interleaved(cases, rounds), "int8", "float")
        what = f"int8 layer / float layer, {width} x {width}, {ROWS} rows"
        lines.append(Line(number=4, what=what, limit=None, **found))
    return lines


def onnx_files(rounds: int) -> list[Line]:
    """A whole forward by onnxruntime, from an int8 file and from a float one."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"classes": 10, "dim": WIDTH, "steps": ONNX_STEPS, "tol": 0.0}
    model = meq.MutualEquilibrium(dict.fromkeys(TOKENS, WIDTH), **shape).eval()
    features = {name: torch.randn(BATCHES[0], count, WIDTH) for name, count in TOKENS.items()}
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            kind: answering(export_onnx(model, Path(folder) / f"{kind}.onnx", features, int8=kind == "int8"), features)
            for kind in ("float", "int8")
        }
        found = ratios(interleaved(cases, rounds), "int8", "float")
    where = f"width {WIDTH}, {TOKENS['image']} + {TOKENS['text']} tokens, batch {BATCHES[0]}, K = {ONNX_STEPS}"
    what = f"ONNX: int8 forward / float forward by onnxruntime, {where}"
    return [Line(number=4, what=what, limit=None, **found)]


def answering(file: Path, features: dict[str, torch.Tensor]) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    named = {each.name: features[each.name].numpy() for each in session.get_inputs()}
    return lambda: session.run(["logits"], named)


def repeated(layer: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Often enough for the clock."""
    return lambda: [layer(x) for _ in range(100)]


def kernel() -> str:
    """The other way is right as well, and not faster than float."""
    return "" if multiplies_bytes() else "On a processor without VNNI, where int8 is computed in floats"


def changed_answers(seed: int, folder: Path) -> tuple[int, int, float, float]:
    """Of a model trained with this seed: changed answers on dev, how many there are, accuracy float and int8."""
    run = train_on(DataRequest(data="scenes"), folder, shape=SHAPE, config=TrainConfig(seed=seed, **RECIPE))
    data = run_data(run).data
    models = (run.model, run.quantised(least_weights=0).model)
    exact, near = (predict_split(model, data, "dev", batch_size=run.batch_size) for model in models)
    said, rounded = exact.logits.argmax(1), near.logits.argmax(1)
    right = [float((answers == exact.target).double().mean()) for answers in (said, rounded)]
    return int((said != rounded).sum()), len(said), right[0], right[1]


def share_changed() -> Line:
    with tempfile.TemporaryDirectory() as folder:
        found = [changed_answers(seed, Path(folder) / str(seed)) for seed in SEEDS]
    changed, asked = sum(each[0] for each in found), sum(each[1] for each in found)
    scores = "; ".join(f"{100 * before:.1f} % and {100 * after:.1f} %" for _, _, before, after in found)
    return Line(
        number=4,
        what=f"answers on dev of `scenes` that int8 changes, width {SHAPE['dim']}, every layer rounded",
        found=100 * changed / asked,
        limit=None,
        unit="%",
        note=f"{changed} of {asked:,}; accuracy float and int8 by seed: {scores}",
    )


def measure(rounds: int) -> list[Line]:
    return [*steps_and_sizes(rounds), *single_layers(rounds), *onnx_files(rounds), share_changed()]


if __name__ == "__main__":
    run_lines("What int8 layers save, and how many answers they change.", "int8", 25, measure)
