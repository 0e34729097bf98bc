"""What is true of every model, put together and fed as nobody has chosen."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import meq
from meq.models import FusionModel
from meq.models.heads import HEADS
from meq.models.readout import READOUTS
from meq.models.sides import SIDES

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("unchecked")]
NAMES = ("image", "text", "audio")
LONGEST = 5
CHOICES = 2
SINGLE_PASS = (meq.Concat, meq.SelfAttention, meq.CrossAttention)
ONE_ANSWER = tuple(head for head in HEADS if head != "tokens")
"""Answers per token stand in the order of the tokens, and have tests of their own in `test_contract.py`."""
LOW = (torch.float32, torch.bfloat16, torch.float16)
SOLVERS = (None, meq.Damped(step=0.3), meq.Anderson(), meq.Broyden(history=3))
BACKWARDS = (meq.Unrolled(), meq.Checkpointed(), meq.Implicit(solver=meq.Anderson(history=2)), meq.Phantom(2))


@dataclass(frozen=True)
class Case:
    """A model, and a batch for it."""

    model: FusionModel
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    knows_positions: bool

    def logits(self) -> Tensor:
        with torch.no_grad():
            found = self.model(self.features, self.masks).logits
        assert found is not None
        return found

    def rows(self, rows: Any) -> Case:
        features, masks = ({name: x[rows] for name, x in part.items()} for part in (self.features, self.masks))
        return Case(self.model, features, masks, self.knows_positions)


@st.composite
def coupled(draw: st.DrawFn, widths: dict[str, int]) -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {
        "mixer": draw(st.sampled_from(list(SIDES))),
        "readout": draw(st.sampled_from(list(READOUTS))),
        **draw(
            st.sampled_from([{"gate": True, "gate_floor": 0.1}, *({"gate": gate} for gate in (True, False, "decay"))])
        ),
        "start": draw(st.sampled_from(["injection", "zero"])),
    }
    if options["mixer"] == "gmlp":
        options["max_tokens"] = dict.fromkeys(widths, LONGEST + 2)
    if draw(st.booleans()):
        parts = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        return meq.MutualEquilibrium, {**options, "cross": parts[0], "own": parts[1]}
    order: Any = next(iter(widths))
    for name in list(widths)[1:]:
        order = (order, name)
    return meq.EquilibriumTree, {**options, "order": order}


@st.composite
def described(draw: st.DrawFn, widths: dict[str, int]) -> tuple[Any, dict[str, Any]]:
    """A class and its options."""
    cls = draw(
        st.sampled_from(
            [
                None,
                None,
                meq.SingleState,
                meq.SingleVector,
                meq.FeatureSum,
                meq.Concat,
                meq.SelfAttention,
                meq.CrossAttention,
            ]
        )
    )
    if cls in (meq.Concat, meq.SelfAttention, meq.CrossAttention):
        return cls, {"depth": draw(st.integers(1, 2)), "heads": 2}
    kind, options = draw(coupled(widths)) if cls is None else (cls, {})
    run_by = {
        "steps": draw(st.integers(1, 4)),
        "tol": draw(st.sampled_from([0.0, 1e-3])),
        "damping": draw(st.sampled_from([0.5, "learned"])),
        "solver": draw(st.sampled_from(SOLVERS)),
        "backward": draw(st.sampled_from(BACKWARDS)),
    }
    return kind, {**options, **run_by, "heads": 2}


@st.composite
def cases(draw: st.DrawFn, *, heads: tuple[str, ...] = ONE_ANSWER, dtype: torch.dtype = torch.float64) -> Case:
    names = NAMES[: draw(st.integers(2, 3))]
    widths = {name: draw(st.integers(1, 5)) for name in names}
    head, (cls, options) = draw(st.sampled_from(heads)), draw(described(widths))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    model: FusionModel = cls(widths, 3, 4, head=head, head_width=6, **options).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    batch = draw(st.integers(1, 4))
    tokens = {name: draw(st.integers(0, LONGEST)) for name in names}  # 0: vectors
    features, masks = {}, {}
    for name in names:
        lead = (batch, CHOICES) if head == "choices" and name == names[-1] else (batch,)
        count = max(tokens[name], 1) if len(lead) > 1 else tokens[name]
        features[name] = torch.randn(*lead, *([count] if count else []), widths[name], dtype=dtype)
        if count and name != names[0] and draw(st.booleans()):
            masks[name] = torch.rand(*lead, count) < 0.6  # also without any token
    return Case(model, features, masks, options.get("mixer") == "gmlp" or options.get("readout") == "first")


def padded(case: Case, filler: float) -> Case:
    """Two tokens more, which are not there."""
    features, masks = dict(case.features), dict(case.masks)
    for name, x in case.features.items():
        if x.ndim > 2:
            known = masks.get(name, torch.ones(x.shape[:-1], dtype=torch.bool))
            features[name] = torch.cat([x, x.new_full((*x.shape[:-2], 2, x.shape[-1]), filler)], dim=-2)
            masks[name] = torch.cat([known, known.new_zeros(*known.shape[:-1], 2)], dim=-1)
    return Case(case.model, features, masks, case.knows_positions)


@given(case=cases())
def test_a_sample_is_answered_as_if_it_were_alone(case: Case) -> None:
    together = case.logits()
    assert together.isfinite().all()
    for row in range(len(together)):
        torch.testing.assert_close(together[row], case.rows([row]).logits()[0], rtol=1e-7, atol=1e-8)


@given(case=cases(), filler=st.sampled_from([0.0, 5.0, float("nan"), float("inf")]))
def test_padding_changes_no_answer(case: Case, filler: float) -> None:
    torch.testing.assert_close(padded(case, filler).logits(), case.logits(), rtol=1e-7, atol=1e-8)


@given(case=cases(), seed=st.integers(0, 99))
def test_the_order_of_samples_does_not_matter(case: Case, seed: int) -> None:
    logits = case.logits()
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(case.rows(order).logits(), logits[order], rtol=1e-7, atol=1e-8)


@given(case=cases(), seed=st.integers(0, 99))
def test_the_order_of_tokens_matters_only_where_positions_have_weights(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features, masks = dict(case.features), dict(case.masks)
    for name, x in case.features.items():
        if x.ndim > 2:
            order = torch.randperm(x.shape[-2], generator=generator)
            features[name] = x[..., order, :]
            if name in masks:
                masks[name] = masks[name][..., order]
    shuffled = Case(case.model, features, masks, case.knows_positions)
    if not case.knows_positions:
        torch.testing.assert_close(shuffled.logits(), case.logits(), rtol=1e-7, atol=1e-8)


@given(case=cases(dtype=torch.float32))
def test_a_saved_model_answers_with_the_same_bits(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case.model.save_pretrained(folder)
        twin = meq.FusionModel.from_pretrained(folder).eval()
    assert json.loads(json.dumps(twin.to_config())) == json.loads(json.dumps(case.model.to_config()))
    loaded = Case(twin, case.features, case.masks, case.knows_positions)
    assert torch.equal(loaded.logits(), case.logits())


@given(case=cases(dtype=torch.float32), scale=st.sampled_from([0.0, 1e-30, 1e-12, 1e6, 1e10]))
def test_features_of_any_magnitude_get_finite_answers(case: Case, scale: float) -> None:
    features = {name: x * scale for name, x in case.features.items()}
    assert Case(case.model, features, case.masks, case.knows_positions).logits().isfinite().all()


@given(
    case=cases(heads=("classes", "labels", "score")),
    low=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_lower_dtypes_answer_alike(case: Case, low: torch.dtype) -> None:
    if isinstance(getattr(case.model, "solver", None), meq.Anderson | meq.Broyden):
        case.model.solver = None  # what rounding leaves of a history that is nearly singular is another path
    exact = case.logits()
    model, features = case.model.to(low), {name: x.to(low) for name, x in case.features.items()}
    found = Case(model, features, case.masks, case.knows_positions).logits()
    assert found.dtype == low
    bound = 60 * torch.finfo(low).eps * max(1.0, float(exact.abs().max()))
    assert float((found.double() - exact).abs().max()) <= bound


@given(case=cases(heads=("classes",)))
def test_gradients_are_finite_and_a_sample_s_own(case: Case) -> None:
    features = {name: x.clone().requires_grad_() for name, x in case.features.items()}
    if isinstance(getattr(case.model, "backward", None), meq.Implicit):
        case.model.backward = meq.Unrolled()  # the equilibrium's gradient is not the read state's, and needs no damping
    logits = case.model(features, case.masks).logits
    assert logits is not None
    logits[0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in case.model.parameters())
    for x in features.values():
        assert x.grad is None or (x.grad.isfinite().all() and not x.grad[1:].abs().gt(1e-12).any())
