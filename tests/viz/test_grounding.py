"""The grid of maps that the measure `grounding` kept."""

from __future__ import annotations

from typing import Any

import pytest

from meq.viz.grounding import grounding_grid
from meq.viz.style import as_png


def kept(steps: int) -> dict[str, Any]:
    """What the measure keeps of one picture of two by one tokens: the look moves from left to right."""
    return {
        "labels": ["contradiction", "entailment"],
        "steps": list(range(steps)),
        "read": 3,
        "examples": [
            {
                "text": "there is a red circle",
                "label": "entailment",
                "size": [40, 20],
                "mask_box": [20, 0, 40, 20],
                "probabilities": ["0.2 0.8" if k > 1 else "0.9 0.1" for k in range(steps)],
                "boxes": ["0 0 20 20", "20 0 40 20", None],
                "maps": {"grad-cam": ["0 1 0" if k > 1 else "1 0 0" for k in range(steps)]},
            }
        ],
    }


def test_a_column_per_step_with_the_answer_the_map_and_the_frame_of_what_is_spoken_of() -> None:
    figure = grounding_grid(kept(5), method="grad-cam")
    assert [axes.get_xlabel() for axes in figure.axes[1:3]] == ["contradiction 0.90", "entailment 0.80"]
    before, after = (figure.axes[k].images[0].get_array() for k in (1, 2))
    assert before[5, 5] == after[5, 60] == 1
    assert before[5, 60] == after[5, 5] == 0
    assert figure.axes[0].patches[0].get_x() == 32, "the frame begins in the middle"
    assert as_png(figure).startswith(b"\x89PNG")


def test_many_steps_are_thinned_out_and_the_read_one_stays() -> None:
    figure = grounding_grid(kept(30), method="grad-cam", most=6)
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(figure.axes) <= 6
    assert "k = 3 = K" in said


def test_a_method_without_maps_is_an_error() -> None:
    with pytest.raises(ValueError, match="no maps of 'rollout' were kept"):
        grounding_grid(kept(5), method="rollout")
