from __future__ import annotations

import math

import pytest
import torch
from analysis.subjects import SHAPES, linear, relay, tokens
from models.zoo import build, features_for, ragged_masks
from torch import Tensor

import meq
from meq.analysis.attribution import METHODS, attribute

KINDS = ("three modalities", "single state", "gmlp", "mlp", "tree")
WITHOUT_ATTENTION = ("gmlp", "mlp")
PAIRS = [
    (name, method) for name in KINDS for method in METHODS if not (method == "rollout" and name in WITHOUT_ATTENTION)
]
every_pair = pytest.mark.parametrize(("name", "method"), PAIRS)
every_method = pytest.mark.parametrize("method", list(METHODS))


def class_weights(model: torch.nn.Module, classes: Tensor) -> dict[str, Tensor]:
    """d score / d pooled, per sample and modality, of the linear subject."""
    return dict(zip(SHAPES, model.weights.detach()[classes].split(4, dim=1), strict=True))


def test_grad_cam_is_the_closed_form_at_every_step() -> None:
    model, features = linear(), tokens()
    classes = torch.tensor([2, 0, 1])
    found = attribute(model, features, method="grad-cam", steps=(0, 1, 3, 12), target=classes)
    for row, k in enumerate(found.steps):
        state = model.state(k, features)
        torch.testing.assert_close(found.scores[row], model.read(state, {}).detach().gather(1, classes[:, None])[:, 0])
        for name, weights in class_weights(model, classes).items():
            per_token = weights / SHAPES[name][0]  # the pool is a mean
            expected = torch.einsum("bnd,bd->bn", state[name], per_token).clamp(min=0).detach()
            torch.testing.assert_close(found.maps[name][row], expected)
    assert (found.maps["image"][1:] > 0).any()
    assert (found.maps["image"][1:] == 0).any()


def test_a_method_that_mean_pooling_makes_constant_is_no_longer_offered() -> None:
    model, features = linear(), tokens()
    with pytest.raises(ValueError, match="there is no method 'state-gradient'"):
        attribute(model, features, method="state-gradient")


def test_the_gradient_goes_through_exactly_k_steps() -> None:
    model, features = linear(), tokens()
    classes = torch.tensor([1, 1, 0])
    plain = attribute(model, features, method="gradient", steps=(0, 1, 4, 9), target=classes)
    product = attribute(model, features, method="gradient-x-input", steps=(0, 1, 4, 9), target=classes)
    weights = class_weights(model, classes)
    pulled = {name: (w / SHAPES[name][0])[:, None].expand(3, *SHAPES[name]) for name, w in weights.items()}
    for row, k in enumerate(plain.steps):
        exact = model.operator.split(model.operator.flat(pulled) @ model.gather(k))
        for name, gradient in exact.items():
            torch.testing.assert_close(plain.maps[name][row], gradient.norm(dim=-1))
            torch.testing.assert_close(product.maps[name][row], (gradient * features[name]).sum(-1).abs())


@pytest.mark.parametrize("name", ["learned damping", "mlp", "tree"])
def test_the_gradient_agrees_with_finite_differences(name: str) -> None:
    model = build(name, tol=0.0)
    features, masks = features_for(model), ragged_masks(model)
    classes = torch.tensor([0, 2, 1, 1])
    found = attribute(model, features, masks, method="gradient", steps=(model.steps,), target=classes)

    def score(x: Tensor) -> Tensor:
        return model({**features, "image": x}, masks).logits.gather(1, classes[:, None])[:, 0].detach()

    token, width = 1, features["image"].shape[2]
    slopes = []
    for channel in range(width):
        nudge = torch.zeros_like(features["image"])
        nudge[:, token, channel] = 1e-5
        slopes.append((score(features["image"] + nudge) - score(features["image"] - nudge)) / 2e-5)
    torch.testing.assert_close(found.maps["image"][0, :, token], torch.stack(slopes).norm(dim=0), rtol=1e-6, atol=1e-9)


def test_a_planted_signal_appears_on_its_token_at_its_step() -> None:
    """Audio token 1 needs two exchanges to reach the text that is read, image token 2 one, text none."""
    found = attribute(relay(), tokens(shapes=relay().operator.shapes), method="gradient", steps=(0, 1, 2, 3, 4))
    where = {name: (found.maps[name] > 0)[:, 0].int().tolist() for name in found.maps}
    assert where["text"] == [[0, 0], [1, 1], [1, 1], [1, 1], [1, 1]]
    assert where["image"] == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert where["audio"] == [[0, 0], [0, 0], [0, 0], [0, 1], [0, 1]]


def test_grad_cam_finds_the_token_that_carries_the_class() -> None:
    """Only token 2's state points along the class's weights once the signal has arrived."""
    model = relay()
    features = {name: torch.full_like(x, 0.1) for name, x in tokens(shapes=model.operator.shapes).items()}
    features["image"][:, 2] = 5.0
    found = attribute(model, features, method="grad-cam", steps=(1, 2), target=torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(found.maps["text"][0, 0], torch.tensor([0.1, 0.1], dtype=torch.float64))
    torch.testing.assert_close(found.maps["text"][1, 0], torch.tensor([5.1, 0.1], dtype=torch.float64))


@every_pair
def test_maps_are_never_negative_and_zero_on_padding_and_absent_modalities(name: str, method: str) -> None:
    model = build(name)
    features, masks = features_for(model), ragged_masks(model)
    found = attribute(model, features, masks, method=method, steps=(1, 3))
    for each in found.maps.values():
        assert each.shape[:2] == (2, 4)
        assert each.isfinite().all()
        assert (each >= 0).all()
    assert not found.lost.any()
    if "text" in found.maps:
        assert (found.maps["text"][:, 2] == 0).all()
        if found.maps["text"].shape[2] > 1:
            assert (found.maps["text"][:, 1, 2:] == 0).all()
    assert any((each > 0).any() for each in found.maps.values())


@pytest.mark.parametrize("name", ["merge", "control", "tree of vectors", "feature sum", "no own", "learned damping"])
def test_further_models_can_be_asked(name: str) -> None:
    model = build(name)
    for method in ("grad-cam", "gradient"):
        found = attribute(model, features_for(model), ragged_masks(model), method=method, steps=(1,))
        assert any((each > 0).any() for each in found.maps.values())


@every_pair
def test_what_stands_on_padding_changes_no_map(name: str, method: str) -> None:
    model = build(name)
    bare = features_for(model)
    padded = {key: torch.cat([x, torch.full_like(x[:, :2], math.nan)], 1) for key, x in bare.items()}
    masks = {key: torch.arange(x.shape[1] + 2).expand(4, -1) < x.shape[1] for key, x in bare.items()}
    plain = attribute(model, bare, method=method, steps=(2,))
    other = attribute(model, padded, masks, method=method, steps=(2,))
    for key, each in plain.maps.items():
        count = each.shape[2]
        torch.testing.assert_close(other.maps[key][..., :count], each, rtol=1e-9, atol=1e-12)
        assert (other.maps[key][..., count:] == 0).all()


@every_pair
def test_a_sample_has_the_same_map_alone(name: str, method: str) -> None:
    model = build(name)
    features, masks = features_for(model), ragged_masks(model)
    together = attribute(model, features, masks, method=method, steps=(2,))
    alone = attribute(
        model,
        {n: x[1:2] for n, x in features.items()},
        {n: m[1:2] for n, m in masks.items()},
        method=method,
        steps=(2,),
    )
    for key, each in together.maps.items():
        torch.testing.assert_close(alone.maps[key][:, 0], each[:, 1], rtol=1e-9, atol=1e-12)


@every_method
def test_a_modality_may_be_left_out(method: str) -> None:
    model = build("three modalities")
    features = features_for(model)
    del features["audio"]
    found = attribute(model, features, method=method, steps=(2,))
    assert all((found.maps[name] > 0).any() for name in ("image", "text"))
    assert "audio" not in found.maps or (found.maps["audio"] == 0).all()


@every_method
def test_the_model_and_the_features_are_left_as_they_were(method: str) -> None:
    model = build("pair", dropout=0.5).train()
    model.pool.eval()
    next(model.parameters()).requires_grad_(False)
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    features = features_for(model)
    first, second = (attribute(model, features, method=method, steps=(2,)) for _ in range(2))
    assert torch.equal(first.maps["image"], second.maps["image"])  # dropout was off
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(x.requires_grad or x.grad is not None for x in features.values())
    assert not any(each.requires_grad for each in first.maps.values())


@every_method
def test_it_works_where_gradients_are_off_and_weights_are_frozen(method: str) -> None:
    model = build("zero start")
    expected = attribute(model, features_for(model), method=method, steps=(0, 2))
    with torch.no_grad():
        found = attribute(model.requires_grad_(False), features_for(model), method=method, steps=(0, 2))
    torch.testing.assert_close(found.maps, expected.maps)


def test_the_class_is_the_answer_the_steps_own_or_a_given_one() -> None:
    model, features = linear(radius=1.2), tokens(batch=30)
    steps = tuple(range(1, 9))
    answered = attribute(model, features, steps=steps)
    assert torch.equal(answered.classes, model(features).logits.argmax(1).expand(8, -1))
    own = attribute(model, features, steps=steps, target="step")
    logits = torch.stack([model.read(model.state(k, features), {}) for k in steps])
    assert torch.equal(own.classes, logits.argmax(2))
    assert not torch.equal(own.classes, answered.classes)
    torch.testing.assert_close(own.scores, logits.amax(2).detach())


@every_method
def test_multiple_choice_shows_the_map_of_the_choice_that_is_asked_about(method: str) -> None:
    model = build("pair", head="choices", classes=1)
    plain = build("pair", head="score", classes=1)
    plain.load_state_dict(model.state_dict())
    features = features_for(model)
    features["text"] = torch.randn(4, 5, 3, 5, dtype=torch.float64)
    choice = torch.tensor([4, 0, 2, 2])
    found = attribute(model, features, method=method, steps=(1, 3), target=choice)
    chosen = {"image": features["image"], "text": features["text"][torch.arange(4), choice]}
    expected = attribute(plain, chosen, method=method, steps=(1, 3))
    torch.testing.assert_close(found.maps, expected.maps)


@every_method
def test_a_diverged_sample_is_lost_and_leaves_the_others_alone(method: str) -> None:
    model = build("no gate", damping=1.0)
    features = features_for(model)
    healthy = attribute(model, features, method=method, steps=(1, 3))
    state = model.coupling.forward

    def exploding(z: meq.State, inputs: dict[str, object]) -> meq.State:
        image = state(z, inputs)
        wild = inputs["injection"]["image"].detach().abs().amax((1, 2)) > 1e3
        return {name: torch.where(wild[:, None, None], z[name] * 1e160, x) for name, x in image.items()}

    model.coupling.forward = exploding
    features["image"] = torch.cat([features["image"], 1e6 * features["image"][:1]])
    features["text"] = torch.cat([features["text"], features["text"][:1]])
    found = attribute(model, features, method=method, steps=(1, 3))
    assert found.lost[1, 4]
    assert not found.lost[:, :4].any()
    for key, each in healthy.maps.items():
        torch.testing.assert_close(found.maps[key][:, :4], each)
        assert (found.maps[key][1, 4] == 0).all()
    assert "1 lost" in str(found)


def test_the_table_is_short() -> None:
    text = str(attribute(linear(), tokens(), steps=(1, 5)))
    assert text.splitlines()[0] == "grad-cam, 3 samples, none lost"
    assert len(text.splitlines()) == 6
    assert "image share" in text
    assert "text share" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gradcam"}, "did you mean 'grad-cam'"),
        ({"steps": ()}, "at least one state"),
        ({"steps": (-1,)}, "counted from 0"),
        ({"target": "answr"}, "did you mean 'answer'"),
        ({"target": torch.tensor([0, 1, 3])}, "a class from 0 to 2"),
        ({"target": torch.tensor([0, 1])}, r"got shape \(2,\)"),
        ({"step": (1,)}, "did you mean 'steps'"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        attribute(linear(), tokens(), **options)


def test_a_model_that_does_not_iterate_is_refused(unchecked: None) -> None:
    model = build("concat")
    with pytest.raises(ValueError, match="Concat does not iterate"):
        attribute(model, features_for(model))
