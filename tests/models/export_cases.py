"""Cases for `test_export.py`, run in a fresh interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import meq
from meq.models.export import _quantised as quantised
from meq.models.export import export, export_onnx, write_onnx
from meq.models.quantise import LEAST_WEIGHTS

WIDTHS = {"image": 6, "text": 5}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
Tensors = dict[str, Tensor]


def build(mixer: str, **options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    longest = {"image": 9, "text": 8} if mixer == "gmlp" else None
    given = {"classes": 3, "dim": 8, "heads": 2, "steps": 2, "head_width": 12, "mixer": mixer, "max_tokens": longest}
    return meq.MutualEquilibrium(WIDTHS, **{**given, **options}).eval()


def example(batch: int, *, image: int = 4, text: int = 3, seed: int = 0) -> tuple[Tensors, Tensors]:
    """Features and masks: the first sample has no text, the last has all of it, those between are padded."""
    generator = torch.Generator().manual_seed(seed)
    features = {
        "image": torch.randn(batch, image, 6, generator=generator),
        "text": torch.randn(batch, text, 5, generator=generator),
    }
    lengths = torch.linspace(0, text, batch).round().long()
    return features, {"text": torch.arange(text) < lengths[:, None]}


def flat(features: Tensors, masks: Tensors) -> Tensors:
    return {**features, **{f"{name}_mask": mask for name, mask in masks.items()}}


def eager(model: meq.FusionModel, features: Tensors, masks: Tensors) -> Tensors:
    with torch.no_grad():
        output = model(features, masks)
    answers = {} if output.logits is None else {"logits": output.logits}
    return {**answers, **{f"pooled_{name}": x for name, x in output.pooled.items()}}


def run_onnx(path: Path, tensors: Tensors) -> Tensors:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(tensors)
    answers = session.run(None, {name: x.numpy() for name, x in tensors.items()})
    names = [each.name for each in session.get_outputs()]
    return {name: torch.from_numpy(x) for name, x in zip(names, answers, strict=True)}


def other_batches(mixer: str) -> list[tuple[Tensors, Tensors]]:
    """Other batch sizes than the example's and, unless weights belong to token positions, other token counts."""
    if mixer == "gmlp":
        return [example(5, seed=1), example(1, seed=2)]
    return [example(5, image=6, text=7, seed=1), example(1, image=1, text=1, seed=2)]


def exports_equal_eager(folder: str) -> None:
    """All in one interpreter: loading the converters takes longer than a case."""
    tokens = {"head": "tokens", "answering": ("text", "image")}
    for mixer, options in {"attention": {"dim": 32}, "gmlp": tokens, "mlp": {}}.items():
        print(mixer)
        exported_mixer_equals_eager(mixer, Path(folder) / mixer, **options)
    print("int8")
    an_int8_file_answers_nearly_as_eager(Path(folder) / "int8", whole=Path(folder) / "attention" / "model.onnx")
    print("no masks")
    attention_without_masks_exports()
    print("no masks, no head, training")
    a_headless_model_exports_from_training_mode(Path(folder) / "headless")


def exported_mixer_equals_eager(mixer: str, folder: Path, **options: Any) -> None:
    """A padded text, a missing text, and samples that settle at different steps."""
    model = build(mixer, **options)
    batches = other_batches(mixer)
    model.tol = dividing_tolerance(model, *batches[0])
    program = export(model, *example(3))
    path = write_onnx(program, folder / "model.onnx")
    assert [file.name for file in folder.iterdir()] == ["model.onnx"], "weights must be inside the file"
    for features, masks in batches:
        expected, tensors = eager(model, features, masks), flat(features, masks)
        with torch.no_grad():
            torch.testing.assert_close(program.module()(tensors), expected, **CLOSE)
        torch.testing.assert_close(run_onnx(path, tensors), expected, **CLOSE)


def an_int8_file_answers_nearly_as_eager(folder: Path, whole: Path) -> None:
    """`whole` is the float file of the same model."""
    model = build("attention", dim=32)
    path = export_onnx(model, folder / "int8.onnx", *example(3), int8=True, least_weights=1000)
    assert [file.name for file in folder.iterdir()] == ["int8.onnx"]
    assert path.stat().st_size < 0.7 * whole.stat().st_size
    for features, masks in other_batches("attention"):
        expected, found = eager(model, features, masks), run_onnx(path, flat(features, masks))
        assert not torch.equal(found["logits"], expected["logits"])
        for name, x in expected.items():
            assert (found[name] - x).abs().max() <= 0.01 * x.abs().max(), name
    with pytest.raises(ValueError, match="no product in it has 262,144 weights or more"):
        quantised(whole, LEAST_WEIGHTS)


def dividing_tolerance(model: meq.MutualEquilibrium, features: Tensors, masks: Tensors) -> float:
    """A tolerance that some samples reach after one step and others do not, far from every one's residual."""
    model.tol = 0.0
    with torch.no_grad():
        residuals = model(features, masks).solution.residuals
    worst = torch.stack([rows[1].nan_to_num(0) for rows in residuals.values()]).amax(0).sort().values
    gap = int(worst.diff().argmax())
    tol = float(worst[gap : gap + 2].mean())
    model.tol = tol
    with torch.no_grad():
        steps = model(features, masks).solution.steps
    assert steps.min() < steps.max(), steps
    return tol


def attention_without_masks_exports() -> None:
    """From an example of one sample, and of as many image tokens as text tokens: neither may become a rule."""
    model = build("attention", steps=1)
    features, _ = example(1, image=3, text=3)
    program = export(model, features)
    features, _ = example(5, image=4, text=6, seed=3)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(features), eager(model, features, {}), **CLOSE)


def a_headless_model_exports_from_training_mode(folder: Path) -> None:
    model = build("mlp", classes=None, dropout=0.5, steps=1).train()
    model.coupling.sides["text"].eval()
    features, _ = example(2)
    path = export_onnx(model, folder / "model.onnx", features)
    assert model.training
    assert not model.coupling.sides["text"].training, "every part keeps its own mode"
    features, _ = example(5, text=6, seed=3)
    torch.testing.assert_close(run_onnx(path, features), eager(model.eval(), features, {}), **CLOSE)
