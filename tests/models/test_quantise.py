"""int8 layers against float ones, and one contract over every model: near answers, alone or not, saved or not."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from models.zoo import MODELS, answers, build, features_for, ragged_masks
from plain import run_plain
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import meq
from meq.models import quantise as package_name
from meq.models.quantise import LEAST_WEIGHTS, Int8Linear, multiplies_bytes, quantise

SMALL: dict[str, Any] = {"widths": {"image": 6, "text": 5}, "classes": 3, "dim": 8, "heads": 2, "head_width": 12}


def layers(model: nn.Module) -> list[Int8Linear]:
    return [module for module in model.modules() if isinstance(module, Int8Linear)]


def rounded(linear: nn.Linear, x: Tensor) -> Tensor:
    """The formula of the module, in double precision."""
    weight, rows = linear.weight.double(), x.double()
    scale, largest = weight.abs().amax(1, keepdim=True) / 127, rows.abs().amax(-1, keepdim=True) / 127
    made = (rows / largest).round() @ (weight / scale).round().T
    return made * largest * scale[:, 0] + (0 if linear.bias is None else linear.bias.double())


@pytest.fixture(params=["bytes", "floats"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of multiplying, wherever the processor can."""
    if request.param == "bytes" and not multiplies_bytes():
        pytest.skip("this processor does not multiply bytes")
    monkeypatch.setattr(sys.modules[quantise.__module__], "multiplies_bytes", lambda: request.param == "bytes")


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 20), (2, 5, 20), (20,), (0, 20)])
def test_an_int8_layer_computes_its_formula(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(20, 7, bias=bias), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(Int8Linear.of(linear)(x), rounded(linear, x).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("ways")
def test_a_row_is_multiplied_as_if_it_were_alone() -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear.of(nn.Linear(40, 30)), torch.randn(9, 40)
    x[4] *= 1e6  # a neighbour that a scale of the whole batch would be spoilt by
    together = layer(x)
    for row in range(9):
        torch.testing.assert_close(layer(x[row : row + 1])[0], together[row], rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("ways")
def test_the_largest_numbers_are_not_cut_off() -> None:
    linear = nn.Linear(3072, 4, bias=False)
    nn.init.constant_(linear.weight, 1.0)
    x = torch.ones(2, 3072)
    torch.testing.assert_close(Int8Linear.of(linear)(torch.cat([x, -x])), torch.cat([x, -x]).sum(1, True).expand(-1, 4))


@pytest.mark.usefixtures("ways")
def test_a_part_is_the_layer_with_some_of_its_outputs_and_is_made_once() -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear.of(nn.Linear(12, 10)), torch.randn(5, 12)
    assert torch.equal(layer.part(2, 7)(x), layer(x)[:, 2:7])
    assert layer.part(2, 7) is layer.part(2, 7)
    with pytest.raises(ValueError, match="there are no outputs 8:11 of 10"):
        layer.part(8, 11)


@pytest.mark.usefixtures("ways")
def test_rows_of_zeros_give_the_bias_and_rows_that_are_not_finite_stay_so() -> None:
    layer = Int8Linear.of(nn.Linear(6, 4))
    x = torch.randn(4, 6)
    x[0], x[1, 2], x[2, 3] = 0, torch.nan, torch.inf
    made = layer(x)
    assert layer.bias is not None
    torch.testing.assert_close(made[0], layer.bias)
    assert not made[1:3].isfinite().any()
    assert made[3].isfinite().all()


def test_weights_of_zeros_stay_zeros_and_those_that_are_not_finite_are_an_error() -> None:
    linear = nn.Linear(3, 2)
    nn.init.zeros_(linear.weight)
    assert torch.equal(Int8Linear.of(linear)(torch.ones(1, 3))[0], linear.bias)
    nn.init.constant_(linear.weight, torch.nan)
    with pytest.raises(ValueError, match="weights that are not finite"):
        Int8Linear.of(linear)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_layer_answers_in_the_dtype_it_is_asked_in(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 16).to(dtype), torch.randn(5, 64).to(dtype)
    made = Int8Linear.of(linear)(x)
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), linear(x).detach().float(), rtol=0, atol=0.05)


# -- every model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_model_answers_nearly_as_the_float_one_and_as_if_alone(name: str, tmp_path: Path) -> None:
    model = build(name, torch.float32)
    features, masks = features_for(model, dtype=torch.float32), ragged_masks(model)
    made = quantise(model, least_weights=0)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers(made)) == len(linears) > 0
    with torch.no_grad():
        exact, near = model(features, masks), made(features, masks)
    spread = answers(exact).std()
    assert 0 < (answers(near) - answers(exact)).abs().max() < 0.1 * spread
    assert (answers(near).argmax(-1) == answers(exact).argmax(-1)).float().mean() >= 0.75
    alone = made({key: x[1:2] for key, x in features.items()}, {key: x[1:2] for key, x in masks.items()})
    assert near.logits is not None
    assert alone.logits is not None
    torch.testing.assert_close(alone.logits[0], near.logits[1], rtol=1e-4, atol=1e-4)
    made.save_pretrained(tmp_path)
    twin = meq.FusionModel.from_pretrained(tmp_path)
    assert torch.equal(answers(twin(features, masks)), answers(near))


def test_choices_are_scored_by_an_int8_model() -> None:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium(**SMALL, steps=2, head="choices").eval()
    features = {"image": torch.randn(3, 4, 6), "text": torch.randn(3, 2, 3, 5)}
    made = quantise(model, least_weights=0)(features)
    assert made.logits is not None
    torch.testing.assert_close(made.logits, model(features).logits.detach(), rtol=0, atol=0.02)


def test_rows_leave_the_batch_steps_are_asked_for_and_rules_stop() -> None:
    model = build("pair", torch.float32, steps=40, tol=1e-2)
    made = quantise(model, least_weights=0)
    features = features_for(model, dtype=torch.float32)
    with torch.no_grad():
        output = made(features)
        assert output.solution is not None
        assert output.solution.steps.max() < 40
        assert made(features, steps=2).solution.steps.tolist() == [2] * 4
        made.anytime = meq.Anytime("residual", threshold=0.3)
        assert made(features).solution.steps.float().mean() < output.solution.steps.float().mean()


def test_the_float_model_stays_as_it_was() -> None:
    model = build("pair", torch.float32).train()
    before = copy.deepcopy(model.state_dict())
    made = quantise(model, least_weights=0)
    assert model.training
    assert not made.training
    assert model.int8 is None
    assert made.int8 == 0
    assert not layers(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())
    made(features_for(model, dtype=torch.float32))  # and needs no `torch.no_grad`


def test_layers_below_the_least_number_of_weights_stay_float() -> None:
    made = quantise(build("pair", torch.float32), least_weights=8 * 32)
    assert {layer.weight.numel() for layer in layers(made)} == {256, 8 * 7 * 8}
    left = [module.weight.numel() for module in made.modules() if isinstance(module, nn.Linear)]
    assert max(left) < 256


def test_a_model_that_int8_would_not_make_faster_is_an_error_in_words() -> None:
    with pytest.raises(
        ValueError, match=f"largest linear layer has 448 weights, and it pays from {LEAST_WEIGHTS:,} on"
    ):
        quantise(build("pair"))


def test_a_layer_that_stands_in_two_places_stays_one() -> None:
    model = build("pair", torch.float32)
    first, second = model.coupling.sides.values()  # type: ignore[attr-defined]
    second.own_output = first.own_output
    first, second = quantise(model, least_weights=0).coupling.sides.values()  # type: ignore[attr-defined]
    assert first.own_output is second.own_output


# -- what it is not for ------------------------------------------------------------------------------------------------


def test_gradients_and_training_are_errors_that_say_what_to_do() -> None:
    model = build("pair", torch.float32)
    made, features = quantise(model, least_weights=0), features_for(model, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"answers, and no gradients.*the float model"):
        made({key: x.requires_grad_() for key, x in features.items()})
    features = {key: x.detach() for key, x in features.items()}
    with pytest.raises(ValueError, match=r"set the mode back by `model\.eval\(\)`"):
        made.train()(features)
    output = made.eval()(features)
    with pytest.raises(ValueError, match="explain and diagnose the float model"):
        meq.diagnose(made, output)
    with pytest.raises(ValueError, match="no gradients"):
        torch.func.grad(lambda x: layers(made)[0](x).sum())(torch.randn(2, 6))


def test_only_float_fusion_models_on_the_cpu_are_quantised() -> None:
    with pytest.raises(TypeError, match="must be a fusion model of meq, got Linear: encoders"):
        quantise(nn.Linear(3, 3))  # type: ignore[type-var]
    made = quantise(build("concat"), least_weights=0)
    with pytest.raises(ValueError, match="is an int8 model already"):
        quantise(made)
    with pytest.raises(ValueError, match=r"the model is on meta: move it by `model\.cpu\(\)`"):
        quantise(build("concat").to("meta"))
    with pytest.raises(ValueError, match="least_weights must be a whole number of at least 0, got -1"):
        quantise(build("concat"), least_weights=-1)


def refuses_another_device() -> None:
    import second_device

    library = second_device.install()
    made = quantise(build("concat", torch.float32), least_weights=0)
    with pytest.raises(ValueError, match="is for the CPU, and cannot be moved to second:0"):
        made.to(second_device.DEVICE)
    del library


def test_an_int8_model_is_not_moved_off_the_cpu() -> None:
    run_plain(Path(__file__), "refuses_another_device")


# -- copies and files --------------------------------------------------------------------------------------------------


def test_copies_and_other_dtypes_answer_by_the_weights_they_have() -> None:
    model = build("pair", torch.float32)
    made, features = quantise(model, least_weights=0), features_for(model, dtype=torch.float32)
    said = made(features).logits
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(layers(made)[0]))):
        assert all(not layer._parts for layer in layers(twin))
    assert torch.equal(copy.deepcopy(made)(features).logits, said)
    assert torch.equal(made(features).logits, said)
    double = copy.deepcopy(made).double()
    torch.testing.assert_close(
        double({key: x.double() for key, x in features.items()}).logits.float(), said, rtol=0, atol=0.02
    )
    other = quantise(build("pair", torch.float32, steps=3), least_weights=0)
    other.load_state_dict({key: torch.zeros_like(x) for key, x in made.state_dict().items()})
    assert other(features).logits.abs().max() == 0, "what was packed before is forgotten"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_saved_int8_model_is_loaded_as_one_in_its_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    model = build("pair").to(dtype)
    made = quantise(model, least_weights=100)
    made(features_for(model, dtype=dtype))  # packed, and yet saved plain
    made.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {x.dtype for x in stored.values()} == {torch.int8, dtype}
    assert json.loads((tmp_path / "config.json").read_text())["int8"] == {"least_weights": 100}
    twin = meq.MutualEquilibrium.from_pretrained(tmp_path)
    assert twin.int8 == 100
    assert not twin.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    for key, x in made.state_dict().items():
        assert torch.equal(twin.state_dict()[key], x)
        assert twin.state_dict()[key].dtype == x.dtype


def test_the_file_of_a_large_model_is_about_a_quarter(tmp_path: Path) -> None:
    model = meq.MutualEquilibrium({"image": 64, "text": 64}, classes=3, dim=64, heads=2)
    model.save_pretrained(tmp_path / "float")
    quantise(model, least_weights=0).save_pretrained(tmp_path / "int8")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("float", "int8")]
    assert sizes[1] < 0.3 * sizes[0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (3, "int8 must be an object such as"),
        ({"least_weights": -1}, "least_weights must be a whole number of at least 0, got -1"),
        ({"least_weights": "many"}, "least_weights must be a whole number of at least 0, got 'many'"),
        ({"least_weights": 0, "bits": 4}, "int8 must be an object such as"),
        ({"least_weights": 10**9}, r"scale is there and not in the model"),
        (None, r"scale is there and not in the model"),
    ],
)
def test_a_config_that_does_not_fit_int8_weights_is_one_sentence(tmp_path: Path, said: Any, words: str) -> None:
    quantise(build("pair"), least_weights=0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "int8": said}))
    with pytest.raises(ValueError, match=words) as caught:
        meq.FusionModel.from_pretrained(tmp_path)
    assert len(str(caught.value)) < 900


def test_numbers_of_another_kind_than_the_config_says_are_an_error(tmp_path: Path) -> None:
    quantise(build("pair", torch.float32), least_weights=0).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    save_file({key: x.float() for key, x in stored.items()}, file)
    with pytest.raises(ValueError, match=r"weight must be int8 numbers by .*config\.json, and is stored as F32"):
        meq.FusionModel.from_pretrained(tmp_path)
    save_file({key: x.to(torch.int8) for key, x in stored.items()}, file)
    with pytest.raises(ValueError, match="must be floating-point numbers"):
        meq.FusionModel.from_pretrained(tmp_path)


def test_the_public_name_is_the_function() -> None:
    assert meq.quantise is quantise is package_name
