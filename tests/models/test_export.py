from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from plain import run_plain
from torch import Tensor

import meq
from meq.models.export import export, export_onnx

CASES = Path(__file__).with_name("export_cases.py")


def test_exported_program_and_onnx_agree_with_eager_for_every_mixer(tmp_path: Path) -> None:
    run_plain(CASES, "exports_equal_eager", str(tmp_path))


@pytest.fixture
def model() -> meq.MutualEquilibrium:
    return meq.MutualEquilibrium({"image": 6, "text": 5}, classes=3, dim=8, heads=2, steps=2, head_width=12)


@pytest.fixture
def features() -> dict[str, Tensor]:
    return {"image": torch.randn(2, 4, 6), "text": torch.randn(2, 3, 5)}


def test_a_wrong_example_is_an_error_that_names_it(model: meq.MutualEquilibrium, features: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="did you mean 'text'"):
        export(model, {"image": features["image"], "txt": features["text"]})
    with pytest.raises(ValueError, match="'text' must be floating-point tokens"):
        export(model, {**features, "text": features["image"]})
    with pytest.raises(ValueError, match="the mask of 'text' has shape"):
        export(model, features, {"text": torch.ones(2, 2, dtype=torch.bool)})
    assert model.training, "an error too leaves the model's mode as it was"


def test_a_modality_named_like_a_mask_is_an_error() -> None:
    model = meq.MutualEquilibrium({"text": 4, "text_mask": 4}, dim=8, heads=2)
    features = {"text": torch.randn(2, 3, 4), "text_mask": torch.randn(2, 3, 4)}
    with pytest.raises(ValueError, match="'text_mask' has the name of another one's mask"):
        export(model, features, {"text": torch.ones(2, 3, dtype=torch.bool)})


def test_without_onnx_the_error_says_what_to_install(
    model: meq.MutualEquilibrium, features: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"needs onnxscript: pip install 'meq\[onnx\]'"):
        export_onnx(model, tmp_path / "model.onnx", features)
    assert not list(tmp_path.iterdir())


def test_an_int8_model_is_not_exported_and_the_error_says_what_to_do(
    model: meq.MutualEquilibrium, features: dict[str, Tensor]
) -> None:
    with pytest.raises(ValueError, match=r"export the float model that it was made of, to ONNX with `int8=True`"):
        export(meq.quantise(model, least_weights=0), features)
