"""What is kept of a run comes back as it was; what older versions knew is not taken for more."""

from __future__ import annotations

from dataclasses import replace

import torch

from meq.records import dumps, loads, typed
from meq.runs.analyze import IterationSpectrum
from meq.runs.explanation import Explanation, ModalityView
from meq.runs.showcase import ShownExample


def kept(example: ShownExample) -> ShownExample:
    return typed(ShownExample, loads(dumps(example), "report.json"), "report.json")


def example() -> ShownExample:
    view = ModalityView(
        name="text",
        kind="text",
        content="",
        attribution=torch.tensor([[1.0, 1.0], [0.1, float("nan")]]),
        spans=torch.tensor([[0, 3], [4, 7]]),
    )
    explanation = Explanation(
        id="one",
        steps=(0, 1),
        read=1,
        head="classes",
        labels=("no", "yes"),
        logits=torch.tensor([[0.0, 1.0], [0.0, 2.0]]),
        residuals={"text": torch.tensor([0.5, 0.1])},
        stopped=None,
        method="state-gradient",
        explained=1,
        target=1,
        views={"text": view},
    )
    return ShownExample(
        id="one",
        reason="least sure",
        answer="yes",
        truth="yes",
        confidence=0.7,
        texts={"text": "red dog"},
        pictures={},
        explanation=explanation,
    )


def test_an_explanation_by_a_method_that_is_gone_still_loads_and_prints() -> None:
    found = kept(example()).explained()
    assert found is not None
    assert "state-gradient" in str(found)
    assert "no longer offered" in str(found)
    assert found.modality_shares == {}
    assert found.views["text"].content == "red dog"


def test_an_explanation_comes_back_digit_by_digit() -> None:
    before, after = example().explanation, kept(example()).explanation
    assert before is not None
    assert after is not None
    assert torch.equal(after.logits.float(), before.logits)
    maps = [each.views["text"].attribution.float() for each in (before, after)]
    assert torch.allclose(*maps, rtol=0, atol=0, equal_nan=True)
    assert after.views["text"].spans is not None
    assert after.views["text"].spans.tolist() == [[0, 3], [4, 7]]
    assert after.views["text"].boxes is None
    assert dumps(kept(example())) == dumps(example())


def test_places_of_no_tokens_keep_their_shape() -> None:
    found = example()
    assert found.explanation is not None
    view = replace(
        found.explanation.views["text"],
        attribution=torch.zeros(2, 0),
        spans=torch.zeros(0, 2, dtype=torch.long),
        boxes=torch.zeros(0, 4),
    )
    back = kept(replace(found, explanation=replace(found.explanation, views={"text": view}))).explanation
    assert back is not None
    assert back.views["text"].attribution.shape == (2, 0)
    assert back.views["text"].spans is not None
    assert back.views["text"].spans.shape == (0, 2)
    assert back.views["text"].boxes is not None
    assert back.views["text"].boxes.shape == (0, 4)


def test_eigenvalues_come_back_as_complex_numbers() -> None:
    values = torch.tensor([[0.5 + 0.25j, 0.5 - 0.25j]], dtype=torch.complex128)
    found = typed(IterationSpectrum, loads(dumps(IterationSpectrum(values=values, damping=None)), "here"), "here")
    assert torch.equal(found.values, values)
