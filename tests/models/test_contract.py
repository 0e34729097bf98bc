"""One contract over every model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from models.zoo import CLASSES, DIM, MODELS, TOKENS, answers, build, features_for, ragged_masks
from torch.utils import _pytree as pytree

import meq
from meq.models.iterated import IteratedModel

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_shapes_are_what_the_interface_says(name: str) -> None:
    model = build(name)
    output = model(features_for(model), ragged_masks(model))
    if model.head_kind == "tokens":
        assert output.logits.shape == (4, sum(TOKENS[key] for key in model.answering), CLASSES)
        assert output.answered.sum(1).tolist() == [
            sum(TOKENS[key] for key in model.widths) - gone for gone in (0, 1, 3, 0)
        ]
        assert (output.logits[~output.answered] == 0).all()
    else:
        assert output.logits.shape == (4, CLASSES)
        assert output.answered is None
    assert set(output.pooled) == set(model.state_names)
    assert all(vector.shape == (4, DIM) for vector in output.pooled.values())
    assert output.logits.isfinite().all()
    if output.solution is not None:
        assert torch.equal(model.read(output.solution.state, output.solution.masks), output.logits)
        assert all(rows.shape[1] == 4 for rows in output.solution.residuals.values())
        gates = model.gates(output.solution)
        assert all(values.shape == (4,) for values in gates.values())


@every_model
@pytest.mark.parametrize("anytime", [None, meq.Anytime("change", 1.0)], ids=["all steps", "read early"])
def test_answering_writes_into_nothing_that_was_given_or_handed_out_before(
    name: str, anytime: meq.Anytime | None
) -> None:
    model = build(name)
    if isinstance(model, IteratedModel):
        model.anytime = anytime
    features, masks = features_for(model), ragged_masks(model)

    def copied(tree: Any) -> list[torch.Tensor]:
        return [x.clone() for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]

    with torch.no_grad():
        first = model(features, masks)
        held = [features, masks, model.state_dict(), first.logits, first.pooled]
        if first.solution is not None:
            held += [first.solution.state, first.solution.inputs, first.solution.residuals, first.solution.steps]
        before = copied(held)
        again = model(features, masks)
    assert torch.equal(again.logits, first.logits)
    torch.testing.assert_close(copied(held), before, rtol=0, atol=0, equal_nan=True)  # an absent modality's residuals


@every_model
def test_without_classes_a_model_returns_states_and_pooled_vectors(name: str) -> None:
    model = build(name, classes=None)
    output = model(features_for(model))
    assert output.logits is None
    assert all(vector.shape == (4, DIM) for vector in output.pooled.values())
    assert not any(parameter.startswith("head.") for parameter, _ in model.named_parameters())
    with pytest.raises(ValueError, match="no head to read with"):
        model.read({}, {})


@every_model
@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_padding_changes_no_logit_and_no_gradient(name: str, dtype: torch.dtype, accuracy: float) -> None:
    model = build(name, dtype)
    bare = features_for(model, dtype=dtype)
    padded = {key: torch.cat([x, torch.full((4, 3, x.shape[2]), math.nan, dtype=dtype)], 1) for key, x in bare.items()}
    masks = {key: torch.arange(x.shape[1] + 3).expand(4, -1) < x.shape[1] for key, x in bare.items()}
    results = []
    for features, use in ((bare, None), (padded, masks)):
        model.zero_grad()
        output = model(features, use)
        output.logits.square().sum().backward()
        gradients = {key: p.grad.clone() for key, p in model.named_parameters() if "stand_ins" not in key}
        results.append((answers(output).detach(), gradients))
    (logits, gradients), (logits_padded, gradients_padded) = results
    torch.testing.assert_close(logits_padded, logits, rtol=accuracy, atol=accuracy)
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradients_padded[key], gradient, rtol=accuracy, atol=accuracy)


@every_model
def test_the_order_of_a_batch_does_not_matter(name: str) -> None:
    model = build(name)
    features, masks = features_for(model), ragged_masks(model)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = model({key: x[order] for key, x in features.items()}, {key: mask[order] for key, mask in masks.items()})
    torch.testing.assert_close(shuffled.logits, model(features, masks).logits[order], rtol=1e-10, atol=1e-12)


@every_model
def test_a_missing_modality_has_no_effect_on_neighbours_and_leaves_no_nan(name: str) -> None:
    model = build(name)
    features = features_for(model)
    full = model(features).logits
    text = torch.ones(4, features["text"].shape[1], dtype=torch.bool)
    text[2] = False
    poisoned = {**features, "text": features["text"].clone()}
    poisoned["text"][2] = math.nan  # what is not there cannot be read
    leaves = {key: x.requires_grad_() for key, x in poisoned.items()}
    output = model(leaves, {"text": text})
    others = [0, 1, 3]
    torch.testing.assert_close(output.logits[others], full[others], rtol=1e-9, atol=1e-10)
    assert not torch.allclose(output.logits[2], full[2], atol=1e-6), "the modality that went missing was used"
    output.logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert (leaves["text"].grad[2] == 0).all()
    assert (leaves["image"].grad[2] != 0).any()


@every_model
def test_a_modality_absent_for_the_whole_batch_equals_one_masked_for_every_sample(name: str) -> None:
    model = build(name)
    features = features_for(model)
    rest = {key: x for key, x in features.items() if key != "text"}
    masked = model(features, {"text": torch.zeros(4, dtype=torch.bool)})
    torch.testing.assert_close(answers(model(rest)), answers(masked), rtol=1e-9, atol=1e-10)


@every_model
def test_the_same_seed_gives_the_same_model_and_the_same_dropout(name: str) -> None:
    first, second = build(name), build(name)
    for (key, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(a, b), key
    features = features_for(first)
    assert torch.equal(first(features).logits, second(features).logits)


@every_model
def test_backward_reaches_every_parameter(name: str) -> None:
    model = build(name)
    features = features_for(model)
    # every modality is missing somewhere, and so is every pair of a tree: all stand-ins are used
    present = {
        "image": [True, False, False, True],
        "audio": [False, True, False, True],
        "text": [True, True, True, False],
    }
    masks = {key: torch.tensor(present[key]) for key in features}
    model(features, masks).logits.square().sum().backward()
    untouched = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    expected = ["pool.stand_ins.joint"] if name == "feature sum" else []  # the joint state is never missing
    if model.head_kind == "tokens":  # answers are read from tokens, and an absent modality has none
        expected = [key for key, _ in model.named_parameters() if key.startswith("pool.stand_ins.")]
    assert untouched == expected


@every_model
def test_saving_and_loading_gives_the_same_answers(name: str, tmp_path: Path) -> None:
    model = build(name, torch.float32)
    model.save_pretrained(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    features = features_for(model, dtype=torch.float32)
    for cls in (type(model), meq.FusionModel):
        twin = cls.from_pretrained(tmp_path / "model").eval()
        assert type(twin) is type(model)
        assert torch.equal(twin(features).logits, model(features).logits)


@every_model
def test_bfloat16_and_autocast_work(name: str) -> None:
    model = build(name, torch.float32)
    features = features_for(model, dtype=torch.float32)
    exact = model(features, ragged_masks(model)).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(features, ragged_masks(model)).logits
    mixed.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    low = model.to(torch.bfloat16)({key: x.bfloat16() for key, x in features.items()}, ragged_masks(model)).logits
    for logits in (mixed, low):
        assert (logits.float() - exact).abs().max() < 0.15 * exact.abs().max()


@every_model
def test_float16_works_as_the_models_dtype_and_as_autocasts(name: str) -> None:
    model = build(name, torch.float32)
    features = features_for(model, dtype=torch.float32)
    exact = model(features, ragged_masks(model)).logits
    with torch.autocast("cpu", dtype=torch.float16):
        mixed = model(features, ragged_masks(model)).logits
    low = model.half()({key: x.half() for key, x in features.items()}, ragged_masks(model)).logits
    low.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    for logits in (mixed, low):
        assert (logits.float() - exact).abs().max() < 0.02 * exact.abs().max()


@every_model
def test_modality_dropout_takes_modalities_away_in_training_only(name: str) -> None:
    model = build(name, modality_dropout=0.5)
    features = features_for(model)
    kept = model(features).logits
    assert torch.equal(kept, model(features).logits)
    model.train()
    torch.manual_seed(1)
    drawn = torch.stack([model(features).logits for _ in range(4)])
    assert drawn.isfinite().all()
    assert (drawn - kept).abs().amax(-1).gt(1e-8).any()
    seeds = torch.arange(4)
    assert torch.equal(model(features, seeds=seeds).logits, model(features, seeds=seeds).logits)


@every_model
def test_wrong_input_is_answered_in_words(name: str) -> None:
    model = build(name)
    features = features_for(model)

    def fails(match: str, features: dict, masks: dict | None = None, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=match):
            model(features, masks)

    fails(r"unknown modality 'txet': did you mean 'text'\?", {**features, "txet": features["text"]})
    fails(r"'image' must be floating-point tokens \(B N 6\)", {**features, "image": features["image"][..., :5]})
    fails("'image' must be floating-point", {**features, "image": features["image"].long()})
    fails("the batch is empty", {key: x[:0] for key, x in features.items()})
    fails("different batch sizes", {**features, "text": features["text"][:2]})
    fails("the mask of 'text' has shape", features, {"text": torch.ones(4, 9, dtype=torch.bool)})
    fails("the mask of 'text' must be boolean", features, {"text": torch.ones(4, 3)}, TypeError)
    fails("unknown modality 'txt'", features, {"txt": torch.ones(4, dtype=torch.bool)})
    fails("no features were given", {})
    broken = {**features, "text": features["text"].clone()}
    broken["text"][3, 0, 1] = math.nan
    fails(r"'text' has NaN or infinite features in rows \[3\]", broken)
    nothing = {key: torch.tensor([True, False, True, True]) for key in features}
    fails(r"rows \[1\] have no modality at all", features, nothing)


@every_model
def test_unknown_options_are_errors_that_name_the_nearest(name: str) -> None:
    with pytest.raises(TypeError, match="did you mean 'widths'"):
        build(name, width=3)


@every_model
def test_vectors_are_single_tokens(name: str) -> None:
    model = build(name)
    features = {key: x[:, 0] for key, x in features_for(model).items()}
    tokens = {key: x[:, None] for key, x in features.items()}
    assert torch.equal(model(features).logits, model(tokens).logits)
