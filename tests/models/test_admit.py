"""What people hand to a model, in every form it comes in: converted, or answered with a sentence."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from models.zoo import build, features_for

import meq

pytestmark = pytest.mark.usefixtures("unchecked")
NAMES = ["pair", "concat"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_and_lists_become_tensors_of_the_models_dtype(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype)
    features = features_for(model, dtype=dtype)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[1, 2:] = False
    expected = model(features, {"text": mask}).logits
    arrays = {key: x.numpy().astype("float64") for key, x in features.items()}
    lists = {key: x.tolist() for key, x in features.items()}
    for given, real in ((arrays, mask.numpy()), (lists, mask.tolist())):
        assert torch.equal(model(given, {"text": real}).logits, expected)
    arrays["image"].flags.writeable = False
    assert torch.equal(model(arrays, {"text": mask}).logits, expected), "a read-only array is as good"


def test_arrays_serve_multiple_choice_too() -> None:
    model = build("pair", torch.float32, head="choices")
    features = features_for(model, dtype=torch.float32)
    features["text"] = torch.stack([features["text"], features["text"] + 1], dim=1)
    arrays = {key: x.numpy() for key, x in features.items()}
    assert torch.equal(model(arrays).logits, model(features).logits)
    with pytest.raises(TypeError, match="features must be a dict from modality to tensor"):
        model(features["text"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "'image' is None: leave its key out where the whole batch lacks it"),
        (
            "a photo of a cat",
            "'image' must be a tensor of features, got str: 'a photo of a cat': a model",
        ),
        (b"jpeg", "'image' must be a tensor of features, got bytes"),
        (["a cat", "a dog"], "'image' cannot be made a tensor of features"),
        ([[1.0, 2.0], [1.0]], "'image' cannot be made a tensor of features"),
        (3.5, "'image' must be a tensor of features, got float: 3.5"),
        (np.array(["a", "b"]), "'image' cannot be made a tensor of features"),
        (np.array([[None]]), "'image' cannot be made a tensor of features"),
        (torch.ones(4, 4, 6, dtype=torch.float64), "'image' is torch.float64, the model's weights are torch.float32"),
        (
            torch.ones(4, 4, 6, dtype=torch.float64),
            "as .float(), or the model as model.to(torch.float64)",
        ),
        (torch.ones(4, 4, 6).bfloat16(), "'image' is torch.bfloat16, the model's weights are torch.float32"),
        (
            torch.ones(4, 4, 6, dtype=torch.long),
            "got torch.int64 of shape (4, 4, 6): use .float() if",
        ),
        (np.ones((4, 4, 6), dtype="int32"), "got torch.int32 of shape (4, 4, 6): use .float() if these are features"),
        (torch.ones(4, 4, 6, dtype=torch.bool), "got torch.bool of shape (4, 4, 6)"),
        (torch.ones(4, 4, 6, dtype=torch.complex64), "got torch.complex64 of shape (4, 4, 6)"),
        (torch.ones(4, 4, 6, device="meta"), "'image' is on meta, the model on cpu: move one of them with .to('cpu')"),
        (torch.tensor(1.0), "'image' must be floating-point tokens (B N 6) or vectors (B 6)"),
    ],
)
def test_features_of_the_wrong_kind_are_named_with_what_to_do(name: str, change: Any, words: str) -> None:
    model = build(name, torch.float32)
    features: dict[str, Any] = {**features_for(model, dtype=torch.float32), "image": change}
    with pytest.raises((TypeError, ValueError), match=re.escape(words)) as caught:
        model(features)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (torch.ones(4, 4, 6), "such as {'image': x, 'text': y}; got a tensor of shape (4, 4, 6)"),
        ([torch.ones(4, 4, 6)], "features must be a dict from modality to tensor"),
        (None, "features must be a dict from modality to tensor, such as {'image': x, 'text': y}; got NoneType: None"),
        ("photo.jpg", "got str: 'photo.jpg'"),
        (np.ones((2, 3)), "got an array of shape (2, 3)"),
    ],
)
def test_features_without_names_are_answered_with_an_example(features: Any, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        build("pair")(features)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(4, 3), "the mask of 'text' must be boolean (True = real token), got torch.float32: use .bool()"),
        (np.ones((4, 3)), "the mask of 'text' must be boolean (True = real token), got torch.float64: use .bool()"),
        ("all", "the mask of 'text' must be a boolean tensor (True = real token), got str: 'all'"),
        (None, "the mask of 'text' must be a boolean tensor (True = real token), got NoneType"),
        ([[True], [True, False]], "the mask of 'text' cannot be made a tensor"),
        (torch.ones(4, 3, dtype=torch.bool, device="meta"), "the mask of 'text' is on meta, its features are on cpu"),
    ],
)
def test_masks_of_the_wrong_kind_are_named(mask: Any, words: str) -> None:
    model = build("pair")
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        model(features_for(model), {"text": mask})
    with pytest.raises(TypeError, match="masks must be a dict from modality to tensor"):
        model(features_for(model), mask if mask is not None else [])


def test_under_autocast_features_of_any_floating_dtype_are_read() -> None:
    model = build("pair", torch.float32)
    features = features_for(model, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(features).logits.isfinite().all()


def test_a_model_spread_over_devices_is_not_asked_where_it_is() -> None:
    """What moves the features there belongs to the library that spread it."""
    model = build("pair")
    model.hf_device_map = {"": "cpu"}
    assert model(features_for(model)).logits.isfinite().all()


def test_an_output_prints_three_lines() -> None:
    model = build("pair")
    lines = str(model(features_for(model))).splitlines()
    assert lines[:2] == ["logits: 4 x 3 float64", "states: image 4 x 4 x 8 float64, text 4 x 3 x 8 float64"]
    assert re.fullmatch(
        r"iteration: 4 samples: 4 budget; steps 4; last residuals \(medians\) image .*, text .*", lines[2]
    )
    assert len(lines) == 3
    bare = build("concat", classes=None)
    assert str(bare(features_for(bare))).splitlines() == [
        "logits: none, the model was built with classes=None",
        "pooled: image 4 x 8 float64, text 4 x 8 float64, audio 4 x 8 float64",
        "iteration: none, the model does not iterate",
    ]
    with torch.device("meta"):
        nowhere = meq.MutualEquilibrium({"image": 6, "text": 5}, 3, 8, heads=2)
        out = nowhere({"image": torch.ones(2, 6), "text": torch.ones(2, 5)})
    assert len(repr(out).splitlines()) == 3


@pytest.mark.parametrize("backward", [meq.Unrolled(), meq.Checkpointed(), meq.Implicit(), meq.Phantom(2)])
@pytest.mark.parametrize("solver", [None, meq.Anderson(), meq.Broyden()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_at_the_defaults_does_not_warn(solver: Any, backward: Any, dtype: torch.dtype) -> None:
    model = build("pair", torch.float32, solver=solver, backward=backward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu", dtype=dtype):
            loss = model(features_for(model, dtype=torch.float32)).logits.float().square().sum()
        loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_tolerance_that_somebody_asked_for_and_that_is_out_of_reach_is_said_so() -> None:
    model = build("pair", torch.float32, tol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="below what torch.bfloat16 can"):
        model(features_for(model, dtype=torch.float32))
