from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import rotation
from torch import Tensor, nn

import meq
from meq.core.operator import held_still

INPUTS = {"image": torch.ones(2, 3, 4), "text": torch.ones(2, 4)}


class Wrong(meq.Operator):
    """Halves its state, then spoils what it returns."""

    def __init__(self, spoil: Callable[[meq.State], Any]) -> None:
        super().__init__()
        self.spoil = spoil

    def start(self, inputs: dict[str, Tensor]) -> meq.State:
        return dict(inputs)

    def forward(self, state: meq.State, inputs: dict[str, Tensor]) -> Any:
        return self.spoil({name: z / 2 for name, z in state.items()})


class Started(meq.Operator):
    """Starts from whatever it was given."""

    def __init__(self, first: Any) -> None:
        super().__init__()
        self.first = first

    def start(self, inputs: Any) -> Any:
        return self.first

    def forward(self, state: meq.State, inputs: Any) -> meq.State:
        return state


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda image: {**image, "text": image["text"][:, :3]},
            "the operator Wrong changed the shape of 'text' from (2, 4) to (2, 3)",
        ),
        (lambda image: {"image": image["image"]}, "the operator Wrong dropped the modality 'text'"),
        (
            lambda image: {**image, "texts": image["text"]},
            "the operator Wrong returned the modality 'texts' that start() does not have: did you mean 'text'?",
        ),
        (
            lambda image: {"image": image["image"], "txt": image["text"]},
            "dropped the modality 'text' and returned the modality 'txt'",
        ),
        (lambda image: list(image.values()), "the operator Wrong must return a dict of modalities, got list"),
        (lambda image: None, "got NoneType"),
        (
            lambda image: {**image, "image": image["image"].double()},
            "the operator Wrong changed the dtype of 'image' from torch.float32 to torch.float64",
        ),
    ],
    ids=["shape", "dropped", "added", "renamed", "list", "nothing", "dtype"],
)
def test_an_operator_that_breaks_its_contract_is_told_what_it_did(spoil: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        meq.solve(Wrong(spoil), INPUTS)


def test_an_operator_that_moves_its_state_to_another_device_is_told_so(device: torch.device) -> None:
    inputs = {name: x.to(device) for name, x in INPUTS.items()}
    elsewhere = "meta" if device.type == "cpu" else "cpu"
    with pytest.raises(ValueError, match=f"the operator Wrong moved 'text' from {device.type}.* to {elsewhere}"):
        meq.solve(Wrong(lambda image: {**image, "text": image["text"].to(elsewhere)}), inputs)


@pytest.mark.parametrize(
    ("first", "error", "words"),
    [
        ([torch.ones(2, 3)], TypeError, "start() must return a dict of at least one modality, got list"),
        ({}, TypeError, "start() must return a dict of at least one modality, got dict"),
        ({"a": [1.0, 2.0]}, TypeError, "tokens (B N D) or vectors (B D); 'a' is list"),
        ({"a": torch.ones(2, 3, dtype=torch.long)}, TypeError, "'a' is torch.int64 of shape (2, 3)"),
        ({"a": torch.ones(2)}, TypeError, "'a' is torch.float32 of shape (2,)"),
        (
            {"a": torch.ones(2, 3), "b": torch.ones(3, 3)},
            ValueError,
            "start() returned different batch sizes per modality: {'a': 2, 'b': 3}",
        ),
        ({"a": torch.ones(0, 3)}, ValueError, "the batch is empty"),
    ],
    ids=["list", "no modality", "not a tensor", "integers", "no width", "batch sizes", "empty batch"],
)
def test_a_start_that_is_no_state_is_refused_in_words(first: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        meq.solve(Started(first), {})


def test_an_input_that_is_not_batch_first_is_named_with_its_place() -> None:
    inputs = {"a": torch.ones(2, 3), "more": [torch.ones(2), {"deep": torch.ones(5, 2)}], "scalar": torch.tensor(1.0)}
    with pytest.raises(ValueError, match=re.escape("inputs['more'][1]['deep'] has shape (5, 2)")) as caught:
        meq.solve(Started({"a": torch.ones(2, 3)}), inputs)
    assert "the state has 2 samples: every input tensor must be batch-first" in str(caught.value)


@pytest.mark.usefixtures("unchecked")
def test_any_object_that_has_a_start_and_can_be_called_is_an_operator() -> None:
    known = rotation()

    class Plain:
        def start(self, inputs: dict[str, Tensor]) -> meq.State:
            return known.operator.start(inputs)

        def __call__(self, state: meq.State, inputs: dict[str, Tensor]) -> meq.State:
            return known.operator(state, inputs)

    operator: Any = Plain()
    assert known.error(meq.solve(operator, known.inputs, solver=meq.Anderson(), steps=20, tol=1e-9).state) < 1e-8


def test_a_model_held_still_gets_every_mode_back_after_an_error_too():
    model, other = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)), nn.Dropout(0.5)
    model[1].eval()

    def measure() -> None:
        with held_still(model, other):
            assert not any(module.training for module in [*model.modules(), *other.modules()])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        measure()
    assert [module.training for module in model.modules()] == [True, True, False]
    assert other.training
