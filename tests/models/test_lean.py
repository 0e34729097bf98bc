"""A step without gradients: the same states with less memory, and without products for padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import meq
from meq.models import blocks
from meq.studies.cost import PeakBytes

DESIGNS: dict[str, dict[str, Any]] = {
    "paper": {},
    "no gate": {"gate": False},
    "decay": {"gate": "decay"},
    "floor": {"gate_floor": 0.1},
    "no self path": {"own": False},
    "no cross path": {"cross": False},
    "gmlp": {"mixer": "gmlp", "max_tokens": {"a": 5, "b": 4, "c": 3}},
    "vectors": {"mixer": "mlp"},
}


@pytest.fixture
def always_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little it saves."""
    monkeypatch.setattr(blocks, "COPIES", 0)
    monkeypatch.setattr(blocks, "CALLS", 1)


def made(**options: Any) -> meq.MutualEquilibrium:
    shape: dict[str, Any] = {"dim": 8, "heads": 2, "steps": 4, "tol": 0.0, "head_width": 8}
    return meq.MutualEquilibrium({"a": 3, "b": 4, "c": 5}, 3, **{**shape, **options}).double().eval()


def features() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Six samples: padded, whole, one modality absent, all but one absent."""
    made = {"a": torch.randn(6, 5, 3), "b": torch.randn(6, 4, 4), "c": torch.randn(6, 3, 5)}
    masks = {"a": torch.ones(6, 5, dtype=torch.bool), "b": torch.ones(6, 4, dtype=torch.bool)}
    masks["a"][0, 2:], masks["a"][1], masks["b"][2, 1:] = False, False, False
    masks["b"][3] = False
    masks["c"] = torch.tensor([True, True, True, False, True, True])[:, None].expand(6, 3).clone()
    masks["c"][4, 0] = False
    return {name: x.double() for name, x in made.items()}, masks


@pytest.mark.usefixtures("always_packed")
@pytest.mark.parametrize("design", DESIGNS)
def test_states_without_gradients_are_those_with_gradients_whatever_is_padding(design: str) -> None:
    model, (x, masks) = made(**DESIGNS[design]), features()
    with_gradients = model(x, masks)
    with torch.no_grad():
        lean = model(x, masks)
    torch.testing.assert_close(lean.logits, with_gradients.logits, rtol=0, atol=1e-12)
    for name, state in lean.solution.state.items():
        real = lean.solution.masks[name]
        torch.testing.assert_close(state[real], with_gradients.solution.state[name][real], rtol=0, atol=1e-12)
        torch.testing.assert_close(
            lean.solution.residuals[name], with_gradients.solution.residuals[name], equal_nan=True
        )
        assert torch.isfinite(state).all()


@pytest.mark.usefixtures("always_packed")
def test_padding_is_left_out_of_every_product_with_weights() -> None:
    """By FLOPs: those of samples without padding, and of the same tokens among three times as many."""
    model, (x, _) = made(), features()
    padded = {
        name: torch.cat([tokens, tokens.new_ones(6, 2 * tokens.shape[1], tokens.shape[2])], 1)
        for name, tokens in x.items()
    }
    masks = {name: torch.arange(3 * tokens.shape[1]).expand(6, -1) < tokens.shape[1] for name, tokens in x.items()}

    def step_flops(given: dict[str, Tensor], masks: dict[str, Tensor]) -> int:
        context = model.coupling.prepare(given, masks, None)
        counter = FlopCounterMode(display=False)
        with counter:
            model.coupling(model.coupling.start(context), context)
        return int(sum(counter.get_flop_counts()["Global"][op] for op in (torch.ops.aten.addmm, torch.ops.aten.mm)))

    with torch.no_grad():
        assert step_flops(padded, masks) == step_flops(x, {}) > 0


def test_a_batch_without_padding_or_with_little_work_is_not_rearranged() -> None:
    mask = torch.ones(4, 5, dtype=torch.bool)
    with torch.no_grad():
        assert blocks.real_tokens(torch.zeros(4, 5, 768), mask) is blocks.ALL_TOKENS
        mask[0, 1:] = False
        assert blocks.real_tokens(torch.zeros(4, 5, 8), mask) is blocks.ALL_TOKENS
        assert isinstance(blocks.real_tokens(torch.zeros(4, 5, 768), mask), blocks.RealTokens)
    assert blocks.real_tokens(torch.zeros(4, 5, 768), mask) is blocks.ALL_TOKENS, "with gradients all tokens stay"


def test_what_is_taken_from_a_batch_comes_back_to_its_place() -> None:
    mask, x = torch.tensor([[True, False, True], [False, False, False]]), torch.randn(2, 3, 4)
    tokens = blocks.RealTokens(mask)
    torch.testing.assert_close(tokens.spread(tokens.take(x)), x * mask[..., None])
    assert tokens.of_samples(torch.tensor([7, 8])).tolist() == [[7], [7]]


def test_a_step_without_gradients_holds_less() -> None:
    model = meq.MutualEquilibrium({"a": 32, "b": 32}, dim=32, heads=2, steps=1, tol=0.0).eval()
    x = {"a": torch.randn(4, 50, 32), "b": torch.randn(4, 32, 32)}
    peaks = []
    for lean in (True, False):
        with torch.set_grad_enabled(not lean), PeakBytes([*model.parameters(), *x.values()]) as memory:
            model(x)
        peaks.append(memory.peak)
    whole = 4 * 50 * 32 * 4
    assert peaks[0] < 14 * whole, peaks[0] / whole  # features, states and one feed-forward, four times as wide
    assert peaks[1] > 30 * whole


def test_whoever_listens_to_the_projection_hears_it() -> None:
    model, (x, masks) = made(), features()
    heard = []
    model.coupling.sides["a"].project.register_forward_hook(lambda *call: heard.append(call[2].shape))
    with torch.no_grad():
        model(x, masks)
    assert len(heard) == model.steps


def test_a_layer_that_was_put_around_the_projection_is_called() -> None:
    """As adapters do: taking pieces of its weights would leave them out."""

    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    model, (x, masks) = made(), features()
    for side in model.coupling.sides.values():
        shifted = Shifted(side.project.in_features, side.project.out_features).double()
        shifted.load_state_dict(side.project.state_dict())
        side.project = shifted
    expected = model(x, masks).logits
    with torch.no_grad():
        torch.testing.assert_close(model(x, masks).logits, expected, rtol=0, atol=1e-12)


def test_bfloat16_under_autocast_is_the_same_with_and_without_gradients() -> None:
    model = meq.MutualEquilibrium({"a": 8, "b": 8}, 3, dim=8, heads=2, steps=3, tol=0.0, head_width=8).eval()
    x = {"a": torch.randn(2, 5, 8), "b": torch.randn(2, 4, 8)}
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        with torch.no_grad():
            found = model(x)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=2e-2)
    assert found.solution.state["a"].dtype == expected.solution.state["a"].dtype == torch.float32
