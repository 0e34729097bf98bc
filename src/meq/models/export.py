"""Inference at fixed K for other runtimes: a `torch.export` program, or an ONNX file."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from meq.core.operator import held_still
from meq.models.base import FusionModel
from meq.models.blocks import SpatialMixer
from meq.models.quantise import LEAST_WEIGHTS
from meq.options import whole_number
from meq.records import sync

DynamicShape = dict[int, Dim]


class Inference(nn.Module):
    """A fusion model between two flat dicts: image, text, text_mask -> logits, pooled_image, pooled_text."""

    def __init__(self, model: FusionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        features = {name: tensors[name] for name in self.model.widths if name in tensors}
        masks = {name: tensors[mask_name(name)] for name in features if mask_name(name) in tensors}
        output = self.model(features, masks)
        answers = {} if output.logits is None else {"logits": output.logits}
        return {**answers, **{f"pooled_{name}": x for name, x in output.pooled.items()}}


def mask_name(modality: str) -> str:
    return f"{modality}_mask"


def export(
    model: FusionModel, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None
) -> ExportedProgram:
    """The model in eval mode as a graph: `program.module()({"image": x, "text": y, "text_mask": mask})["logits"]`.

    `features` and `masks` are an example, which fixes which modalities and masks there are, and whether a modality is
    tokens or a vector. The batch size is free, and so are token counts above one; with a gMLP mixer they stay the
    example's, so give it the longest input and a mask.

    All `model.steps` steps are in the graph and are computed every time. A sample that reaches `model.tol` keeps its
    state from there on, as it does in eager mode: the answers are the same, only the time saved by stopping early is
    lost. Checks of values (NaN, a sample without any modality) are left out. A stopping rule is not exported.
    """
    if model.int8 is not None:
        raise ValueError(
            "an int8 model is made for this library's own arithmetic and is not exported: export the float model that "
            "it was made of, to ONNX with `int8=True`"
        )
    if getattr(model, "anytime", None) is not None:
        raise ValueError(
            "a graph takes the same steps for every sample, and cannot follow `model.anytime`: set it to None, and "
            "`model.steps` to the depth that every sample is to be read at"
        )
    tensors = dict(features)
    for name, mask in (masks or {}).items():
        if mask_name(name) in features:
            raise ValueError(
                f"the modality {mask_name(name)!r} has the name of another one's mask: rename it for export"
            )
        tensors[mask_name(name)] = mask
    with held_still(model), torch.no_grad():
        model(features, masks)  # so that an example that does not fit gives the model's own error message
        # with at least two samples: the tracer takes an axis of length one for a constant
        example = {name: x if x.shape[0] > 1 else torch.cat([x, x]) for name, x in tensors.items()}
        return torch.export.export(Inference(model), (example,), dynamic_shapes=(_free_axes(model, tensors),))


def export_onnx(
    model: FusionModel,
    path: str | Path,
    features: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    int8: bool = False,
    least_weights: int = LEAST_WEIGHTS,
) -> Path:
    """Write what `export` gives as one ONNX file, weights included; needs `pip install 'meq[onnx]'`.

    Inputs and outputs carry the names of `export`. The file appears whole or not at all. With `int8`, products with at
    least `least_weights` weights are int8, by onnxruntime's dynamic quantisation. It rounds what goes in by the largest
    number of the whole batch, where `meq.quantise` does it token by token: an answer may change with the company it is
    computed in. On x86 without VNNI, large sums may be cut off.
    """
    for module in ("onnx", "onnxscript", *(["onnxruntime"] if int8 else [])):
        if find_spec(module) is None:
            raise ImportError(f"export_onnx needs {module}: pip install 'meq[onnx]'")
    program = export(model, features, masks)
    return write_onnx(program, Path(path), least_int8=whole_number("least_weights", least_weights) if int8 else None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of itself: operations of torchvision that nobody asked for, and its own deprecations."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = registry.level
    registry.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
            yield
    finally:
        registry.setLevel(before)


def write_onnx(program: ExportedProgram, path: Path, *, least_int8: int | None = None) -> Path:
    """The second half of `export_onnx`, for a program of `export`; int8 from so many weights on, if that is given."""
    assert program.example_inputs is not None
    (example,), _ = program.example_inputs
    with torch.no_grad():
        answers = program.module()(example)
    # not optimised: torch would spend twice the time on rewriting what onnxruntime rewrites again while loading
    with _quiet():
        converted = torch.onnx.export(
            program, input_names=list(example), output_names=list(answers), dynamo=True, verbose=False, optimize=False
        )
    assert converted is not None
    for node in converted.model.graph:
        node.metadata_props.clear()  # stack traces of the machine that exported, at several times the graph's size
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".exporting-") as staging:
        file = Path(staging) / path.name
        converted.save(file, external_data=False)
        if least_int8 is not None:
            file = _quantised(file, least_int8)
        sync(file)
        os.replace(file, path)
        sync(path.parent)
    return path


def _quantised(file: Path, least_weights: int) -> Path:
    """A file beside this one in which large products with constant weights are int8."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    settled = file.with_name(
        "settled.onnx"
    )  # weights are transposed now, or the quantiser would not take them for such
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(settled)
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    model = onnx.load(settled)
    sizes = {weights.name: math.prod(weights.dims) for weights in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    large = [node.name for node in products if sizes.get(node.input[1], 0) >= least_weights]
    if not large:
        raise ValueError(
            f"int8 would not make this graph faster: no product in it has {least_weights:,} weights or more. Leave out "
            "`int8`, or give a smaller `least_weights`"
        )
    del model.graph.value_info[:]  # shapes that torch wrote, of pieces that shape inference sees as a whole
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})  # as was done above
    made = file.with_name("int8.onnx")
    # unsigned weights: with signed ones, pairs of products are summed in 16 bits on CPUs without VNNI, and overflow
    quantize_dynamic(model, made, nodes_to_quantize=large, weight_type=QuantType.QUInt8, per_channel=True)
    return made


def _free_axes(model: FusionModel, tensors: dict[str, Tensor]) -> dict[str, DynamicShape]:
    """The batch and the token axes that stay free; not those of vectors and single tokens, nor where weights belong to
    positions, as in a gMLP."""
    batch = Dim("batch", min=1)
    fixed = any(isinstance(module, SpatialMixer) for module in model.modules())
    axes: dict[str, DynamicShape] = {}
    for name in [name for name in model.widths if name in tensors]:
        x = tensors[name]
        place = x.ndim - 2  # multiple choice puts the choices' axis before the tokens'; how many there are stays fixed
        axis = None if fixed or x.ndim < 3 or x.shape[-2] == 1 else Dim(f"{name}_tokens", min=1)
        for each in {name, mask_name(name)} & tensors.keys():
            axes[each] = {0: batch} if axis is None or place >= tensors[each].ndim else {0: batch, place: axis}
    return {name: axes[name] for name in tensors}  # the tracer compares the order too
