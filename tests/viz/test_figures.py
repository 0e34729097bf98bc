"""Every figure: nothing is cut off, the axes are honest, the bytes are the same every time."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from explained_run import STEPS, explanations, trained_run
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from reports import NASTY, UNSEEN
from studies.samples import SAMPLE
from viz.figures import cut_off, words_of

from meq.analysis.spectrum import Eigenvalues
from meq.runs.explanation import Contrast
from meq.studies.compare import CALLED, INCOMPLETE, NOT_CALLED, REFERENCE, ArmLine
from meq.viz.colours import GREEN, ORANGE, PALETTE, VERMILION, heat_colour, ink_on, label_colours, shade
from meq.viz.curves import Line, probability_along_k, residual_along_k, score_along_k, training_curves
from meq.viz.equilibrium import eigenvalue_plane, influence_map
from meq.viz.study_figures import arms_figure
from meq.viz.style import as_png, as_svg, plain, save

LINES = [
    Line(name="equilibrium", steps=(0, 1, 4), values=((0.3, 0.7, 0.9), (0.34, 0.8, 0.9))),
    Line(name="costs $5 or $6", steps=(0, 4), values=((0.5, 0.5),)),
]
VALUES = torch.tensor([1.1 + 0j, 0.5 + 0.5j, 0.5 - 0.5j, complex("nan")])


def arm(name: str, mean: float | None, verdict: str, **more: float) -> ArmLine:
    known = {"spread": 0.02, "difference": -0.1, "difference_spread": 0.03, **more}
    if mean is None:
        known = dict.fromkeys(known)
    return ArmLine(arm=name, parameters=7, runs="3 of 3", mean=mean, verdict=verdict, **known)


ARMS = [
    arm("meq", 0.9, REFERENCE),
    arm("concat", 0.6, CALLED),
    arm("self-attention", 0.89, NOT_CALLED),
    arm("low-rank fusion", None, INCOMPLETE),
]


def contrast() -> Contrast:
    return Contrast(matched=explanations()[0], mismatched=explanations()[1], instead={"text": "something else"})


def alarmed() -> Figure:
    alarm = {"kind": "divergence", "epoch": 0, "message": "it grows", "evidence": {}}
    return training_curves(dataclasses.replace(trained_run().record, alarms=(alarm,)))


FIGURES: dict[str, Callable[[], Figure]] = {
    "score": lambda: score_along_k(LINES, read=2, chance=1 / 3),
    "probability": lambda: probability_along_k(explanations()[0]),
    "contrast": lambda: probability_along_k(contrast()),
    "residual": lambda: residual_along_k(explanations()[0].residuals, explanations()[0].steps, read=STEPS, tol=1e-3),
    "training": alarmed,
    "influence": lambda: influence_map({a: {b: torch.rand(3) for b in "xyz"} for a in "xyz"}),
    "spectrum": lambda: eigenvalue_plane(VALUES, damping=0.5),
    "arms": lambda: arms_figure(ARMS, metric="accuracy", split="test", chance=0.5),
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off(name: str) -> None:
    assert cut_off(FIGURES[name]()) == []


@pytest.mark.parametrize("name", ["score", "spectrum"])
def test_the_same_figure_gives_the_same_bytes_and_changes_no_setting(name: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    png, svg = save(FIGURES[name](), tmp_path / "new" / "figure")
    assert (png.name, svg.name) == ("figure.png", "figure.svg")
    again = FIGURES[name]()
    assert png.read_bytes() == as_png(again)
    assert svg.read_bytes() == as_svg(again)
    assert b"<dc:date>" not in svg.read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert sorted(path.name for path in png.parent.iterdir()) == ["figure.png", "figure.svg"]


def test_scores_show_the_whole_axis_chance_the_read_depth_and_the_spread() -> None:
    figure = FIGURES["score"]()
    (axes,) = figure.axes
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > 1
    drawn = {line.get_label(): line for line in axes.lines}
    assert np.allclose(drawn["equilibrium"].get_ydata(), [0.32, 0.75, 0.9])
    assert np.allclose(drawn["chance, 0.333"].get_ydata(), 1 / 3)
    assert "K = 2" in words_of(figure)
    assert len(axes.collections) == 1  # one line has a band, the other a single seed
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(0.32 - np.std([0.3, 0.34], ddof=1))
    assert any("1 or 2 seeds" in text for text in words_of(figure))
    assert plain("costs $5 or $6") in drawn


def test_a_line_needs_a_value_of_every_seed_for_every_step() -> None:
    with pytest.raises(ValueError, match="every seed needs a value"):
        Line(name="a", steps=(0, 1), values=((1.0,),))


def test_probabilities_are_those_of_the_explanation_solid_as_it_is_and_dotted_instead() -> None:
    (axes,) = probability_along_k(contrast(), label="neutral").axes
    solid, dotted = axes.lines[:2]
    assert (solid.get_linestyle(), dotted.get_linestyle()) == ("-", ":")
    for line, found in ((solid, explanations()[0]), (dotted, explanations()[1])):
        assert found.probabilities is not None
        assert np.allclose(line.get_ydata(), found.probabilities[:, 1])
    assert to_hex(solid.get_color()) == ORANGE.lower()
    with pytest.raises(ValueError, match="did you mean 'neutral'"):
        probability_along_k(explanations()[0], label="neutrl")


def test_of_many_classes_the_most_considered_are_drawn() -> None:
    logits = torch.zeros(5, 40)
    logits[:, 7] = 3
    labels = tuple(f"answer {place}" for place in range(40))
    figure = probability_along_k(dataclasses.replace(explanations()[0], labels=labels, logits=logits))
    assert "Probability of each class (34 more are not shown)" in words_of(figure)
    assert "answer 7" in words_of(figure)


def test_residuals_are_logarithmic_with_quartiles_of_many_samples() -> None:
    values = torch.logspace(-3, 0, 15).reshape(5, 3).flip(0)
    (axes,) = residual_along_k({"image": values}, range(5)).axes
    assert axes.get_yscale() == "log"
    assert axes.get_ylim() == pytest.approx((1e-3, 1.0))
    assert np.allclose(axes.lines[0].get_ydata(), values.median(1).values)
    assert len(axes.collections) == 1


def test_alarms_stand_where_they_were_raised_and_the_kept_epoch_is_marked() -> None:
    figure = alarmed()
    assert len(figure.axes) == 6
    for axes in figure.axes:
        red = [line for line in axes.lines if to_hex(line.get_color()) == VERMILION.lower()]
        assert [list(line.get_xdata()) for line in red] == [[0, 0]]
    assert any("divergence" in text for text in words_of(figure))
    assert any(text.startswith("kept: epoch") for text in words_of(figure))
    assert figure.axes[1].get_ylim()[0] == 0
    calm = training_curves(trained_run().record)
    assert any("no alarms" in text for text in words_of(calm))


def test_a_run_without_an_equilibrium_has_no_panels_of_one() -> None:
    assert len(training_curves(dataclasses.replace(SAMPLE, vitals=())).axes) == 2
    with pytest.raises(ValueError, match="no curves"):
        training_curves(dataclasses.replace(SAMPLE, curves=()))


def test_a_model_without_a_gate_has_a_panel_that_says_so() -> None:
    vitals = tuple({**row, "gate": {}} for row in trained_run().record.vitals)
    gates = training_curves(dataclasses.replace(trained_run().record, vitals=vitals)).axes[4]
    assert gates.get_ylabel() == "mean gate"
    assert [text.get_text() for text in gates.texts] == ["none"]
    assert gates.get_legend() is None
    with_gate = training_curves(trained_run().record).axes[4]
    assert not with_gate.texts
    assert with_gate.get_legend() is not None


def test_influence_has_its_numbers_in_the_cells() -> None:
    figure = influence_map({"image": {"image": torch.tensor([1.0, 2, 9])}, "text": {"image": torch.tensor([0.25])}})
    assert {"2", "0.25", "image", "text"} <= set(words_of(figure))
    with pytest.raises(ValueError, match="no influence to draw"):
        influence_map({})


def test_eigenvalues_lie_where_they_are_and_the_damped_ones_beside_them() -> None:
    figure = FIGURES["spectrum"]()
    for axes in figure.axes:
        damped, undamped = (np.asarray(points.get_offsets()) for points in axes.collections)
        assert np.allclose(undamped, [[1.1, 0], [0.5, 0.5], [0.5, -0.5]])
        assert np.allclose(damped, [[1.05, 0], [0.75, 0.25], [0.75, -0.25]])
        assert np.allclose(np.hypot(*axes.lines[0].get_data()), 1)
    assert "Leading eigenvalues of dT/dz: 1 of 3 on or outside the unit circle" in words_of(figure)
    whole = Eigenvalues(values=VALUES[None, 1:3], residual=torch.zeros(1, 2).double(), products=torch.tensor([3]))
    assert "none on or outside" in " ".join(words_of(eigenvalue_plane(whole)))
    with pytest.raises(ValueError, match="none was found"):
        eigenvalue_plane(VALUES[3:])


def test_arms_that_are_called_are_filled_and_the_verdict_is_written() -> None:
    figure = FIGURES["arms"]()
    (axes,) = figure.axes
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(point.get_xdata()[0]) for point in points] == [0.9, 0.6, 0.89]
    assert [to_hex(point.get_markerfacecolor()) == "#ffffff" for point in points] == [False, False, True]
    assert any(text.startswith("-0.100 ± 0.03, called") for text in words_of(figure))
    assert any("incomplete" in text for text in words_of(figure))


def test_colours_say_what_readers_expect() -> None:
    assert label_colours(("entailment", "neutral", "contradiction")) == {
        "entailment": GREEN,
        "neutral": ORANGE,
        "contradiction": VERMILION,
    }
    assert list(label_colours(("cat", "dog")).values()) == list(PALETTE[:2])
    assert len(set(label_colours([str(number) for number in range(7)]).values())) == 7
    greys = [sum(heat_colour(level / 10)) for level in range(11)]
    assert greys == sorted(greys, reverse=True)
    assert ink_on(shade(0)) != ink_on(shade(1))


def test_figures_need_matplotlib_and_commands_do_not_import_it() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import meq, meq.cli, meq.cli.understand, meq.viz.colours, meq.viz.text, meq.viz.sheet\n"
        "from meq.errors import require\n"
        "try:\n    require('matplotlib', 'a figure')\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "a figure needs matplotlib: pip install 'meq[viz]'", done.stderr


HOSTILE = [*NASTY, "\x00", "-->", "]]>", "\ud83d", "$\\frac{1}$", "\n" * 500, "_not a private name"]


@pytest.mark.fuzz
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_figure_with_a_hostile_name_is_sound_xml_without_scripts_and_of_the_usual_size(name: str) -> None:
    figure = score_along_k([Line(name=name, steps=(0, 1, 2), values=((0.1, 0.5, 0.7),))], read=1, metric=name)
    content = as_svg(figure)
    root = ElementTree.fromstring(content)
    names = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert not names & {"script", "foreignObject", "image", "a"}
    assert [key for each in root.iter() for key in each.attrib if key.startswith("on")] == []
    assert len(content) < 200_000
    assert not UNSEEN & set(content.decode())
