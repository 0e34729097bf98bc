from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explained_run import STEPS, explainer, explanations
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from viz.figures import cut_off, words_of

from meq.data.content import DrawnPicture
from meq.runs.explanation import Explanation, ModalityView
from meq.viz.animation import animate, animation_bytes, snapshot
from meq.viz.colours import blend, heat_picture, label_colours
from meq.viz.grid import CELL, TALLEST, explanation_grid, grounding_grid, shown_steps, strengths
from meq.viz.style import as_png, as_svg
from meq.viz.text import Word, set_words, text_width

CAPTION = "Zwölf “Katzen” 猫 for $5 or $6, incomprehensibilitiesbeyondthewidthofacolumn and so on; " * 6


def pictures_of(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.images and axes.images[0].get_array().ndim == 3]


def odd_one() -> Explanation:
    """A picture that is far taller than wide, a text that is cut, letters that the font lacks."""
    tall = DrawnPicture("a tall one", lambda: Image.new("RGB", (20, 200), (30, 90, 200)))
    return explainer()([explainer().pair(tall, CAPTION)], method="grad-cam")[0]


def test_rows_are_examples_and_columns_are_steps_with_the_answer_as_border() -> None:
    figure = explanation_grid(explanations(), steps=(0, 1, STEPS))
    pictures = pictures_of(figure)
    assert len(pictures) == 2 * (1 + 3)
    for row, found in enumerate(explanations()):
        colours = label_colours(found.labels)
        for place, step in enumerate((0, 1, STEPS)):
            border = pictures[4 * row + 1 + place].spines["left"]
            assert to_hex(border.get_edgecolor()) == colours[found.said(found.row(step))].lower()
            assert border.get_linewidth() > 2
        assert f"truth: {found.labels[found.target or 0]}" in words_of(figure)
    assert {"input", "k = 0, start", "k = 1", f"k = K = {STEPS}, read"} <= set(words_of(figure))
    assert any(text.startswith("Attribution: grad-cam") for text in words_of(figure))


def test_heat_and_shades_of_a_row_have_one_scale() -> None:
    view = explanations()[0].views["text"]
    every = [word.strength for row in range(5) for word in strengths(view, row)]
    assert max(every) == pytest.approx(1.0)
    assert [word.word for word in strengths(view, 0)] == str(view.content).split()


def test_pictures_are_whole_long_captions_wrap_and_nothing_is_cut_off() -> None:
    figure = explanation_grid([odd_one(), *explanations()], steps=(0, STEPS))
    assert cut_off(figure) == []
    assert any("text: end not read, too long" in text for text in words_of(figure))
    wide, tall = figure.get_size_inches()
    for axes in pictures_of(figure):
        box = axes.get_position(original=False)
        assert min(box.x0, box.y0, 1 - box.x1, 1 - box.y1) > 0
        assert box.height * tall <= TALLEST + 0.01
        assert box.width * wide <= CELL + 0.01
    assert as_png(figure)[:4] == b"\x89PNG"
    assert as_svg(figure) == as_svg(explanation_grid([odd_one(), *explanations()], steps=(0, STEPS)))


def test_an_example_without_a_picture_and_one_of_numbers_have_rows_too() -> None:
    only_text = explainer()([explainer().pair(None, "there is a red thing")], method="grad-cam")[0]
    numbers = ModalityView(name="audio", kind="features", content=torch.zeros(3, 2), attribution=torch.rand(5, 3))
    sound = dataclasses.replace(only_text, views={"audio": numbers})
    figure = explanation_grid([only_text, sound], steps=(0, STEPS))
    assert pictures_of(figure) == []
    assert "audio, 3 tokens" in words_of(figure)
    strips = [axes for axes in figure.axes if axes.images and axes.images[0].get_array().ndim == 2]
    assert [axes.images[0].get_array().shape for axes in strips[:2]] == [(1, 3), (1, 3)]
    assert cut_off(snapshot(sound, 1)) == []


def test_the_steps_that_are_shown_hold_the_start_the_read_depth_and_the_end() -> None:
    many = dataclasses.replace(explanations()[0], steps=tuple(range(21)), read=10)
    assert shown_steps(many, 7) == (0, 1, 2, 3, 4, 10, 20)
    assert shown_steps(many, 1) == (10,)
    assert shown_steps(explanations()[0], 9) == (0, 1, 2, 3, 4)
    with pytest.raises(ValueError, match="at least one column"):
        shown_steps(many, 0)
    with pytest.raises(ValueError, match="no explanations"):
        explanation_grid([])


def test_words_stay_in_their_lines_and_what_is_left_out_is_marked() -> None:
    words = [
        Word(word=word, strength=0.5, close=word == ",") for word in ["one", ",", "two", "three", "four", "five", "six"]
    ]
    placed = set_words(words, width=60, size=8)
    assert all(each.left + each.width <= 60 for each in placed.placed)
    assert placed.placed[1].left == pytest.approx(text_width("one", 8))
    assert len({each.top for each in placed.placed}) > 1
    short = set_words(words, width=60, size=8, most_lines=1)
    assert short.placed[-1].word == "…"
    assert len({each.top for each in short.placed}) == 1
    long = set_words([Word(word="x" * 300, strength=1.0)], width=60, size=8).placed[0]
    assert long.word.endswith("…")
    assert long.width <= 60
    assert set_words([], width=60).height == 0


def test_heat_lies_on_the_token_that_has_it() -> None:
    picture = Image.new("RGB", (90, 90), (90, 90, 90))
    heat = np.zeros((90, 90), dtype=np.float32)
    heat[:30, :30] = 1
    painted = np.asarray(blend(picture, heat)).astype(int)
    assert (painted[60, 60] == 90).all()
    assert painted[10, 10][0] - painted[10, 10][2] > 60  # warm where there is heat
    with pytest.raises(ValueError, match="does not fit"):
        blend(picture, heat[:5])
    view = explanations()[0].views["image"]
    drawn = heat_picture(view, 0, side=120)
    assert max(drawn.size) == 120
    with pytest.raises(ValueError, match="no picture to draw on"):
        heat_picture(explanations()[0].views["text"], 0)


def test_an_animation_has_a_frame_per_step_and_is_small(tmp_path: Path) -> None:
    found = explanations()[0]
    path = animate(found, tmp_path / "new" / "explanation.gif")
    assert path.stat().st_size < 1_000_000
    with Image.open(path) as frames:
        assert frames.n_frames == len(found.steps)
        assert frames.info["loop"] == 0
        durations = []
        for place in range(frames.n_frames):
            frames.seek(place)
            durations.append(frames.info["duration"])
        size = frames.size
    assert durations[STEPS] > durations[0]
    assert durations[-1] > durations[0]
    pair = explainer().pair(None, "there is a red thing")
    few = explainer()([pair], steps=[0], method="grad-cam")[0]
    with Image.open(io.BytesIO(animation_bytes(few, form="webp"))) as frames:
        assert (frames.format, frames.n_frames, frames.width) == ("WEBP", 2, size[0])
    with pytest.raises(ValueError, match=r"did you mean '\.gif'"):
        animate(found, tmp_path / "explanation.gf")
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["explanation.gif"]


def test_a_still_shows_the_step_its_answer_and_all_words() -> None:
    found = explanations()[0]
    figure = snapshot(found, STEPS)
    assert any(f"k = {STEPS} = K" in text for text in words_of(figure))
    assert f"{found.answer} {found.confidence(STEPS):.2f}" in words_of(figure)
    assert set(str(found.views["text"].content).split()) <= set(words_of(figure))
    assert cut_off(figure) == []
    assert cut_off(snapshot(odd_one(), 0)) == []


# -- the grid of maps that the measure `grounding` kept ----------------------------------------------------------------


def kept(steps: int) -> dict[str, Any]:
    """What the measure keeps of one picture of two by one tokens: the look moves from left to right."""
    return {
        "labels": ["contradiction", "entailment"],
        "steps": list(range(steps)),
        "read": 3,
        "examples": [
            {
                "picture": "one",
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


def test_maps_lie_over_the_picture_where_it_is_there() -> None:
    pictures = {kept(5)["examples"][0]["picture"]: Image.new("RGB", (40, 20), (20, 160, 40))}
    figure = grounding_grid(kept(5), method="grad-cam", pictures=pictures)
    before, after = (figure.axes[k].images[0].get_array() for k in (1, 2))
    assert before.shape[2] == 3
    assert before.shape[1] == 2 * before.shape[0], "in the picture's own proportions"
    assert tuple(before[5, -5]) == tuple(after[5, 5]) == (20, 160, 40), "where there is no heat"
    assert before[5, 5, 0] > before[5, 5, 1], "the picture shows through the heat"
    assert figure.axes[0].patches[0].get_x() == before.shape[1] / 2


def test_many_steps_are_thinned_out_and_the_read_one_stays() -> None:
    figure = grounding_grid(kept(30), method="grad-cam", most=6)
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(figure.axes) <= 6
    assert "k = 3 = K" in said


def test_a_method_without_maps_is_an_error() -> None:
    with pytest.raises(ValueError, match="no maps of 'rollout' were kept"):
        grounding_grid(kept(5), method="rollout")
