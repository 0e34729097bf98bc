from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from problems import contraction

import meq
from meq.options import checked_options, nearest


def solve(**options: Any) -> meq.Solution:
    problem = contraction()
    return meq.solve(problem.operator, problem.inputs, **options)


def radius(**options: Any) -> torch.Tensor:
    return meq.spectral_radius(contraction().operator, solve(), **options)


@pytest.mark.parametrize(
    ("call", "option", "words"),
    [
        (solve, "step", "solve() has no option 'step': did you mean 'steps'?"),
        (solve, "tolerance", "solve() has no option 'tolerance'"),
        (solve, "max_iter", "Known: backward, inputs, masks, operator, solver, steps, stop_when, tol, trajectory."),
        (meq.Damped, "steps", "Damped() has no option 'steps': did you mean 'step'?"),
        (meq.Anderson, "hystory", "Anderson() has no option 'hystory': did you mean 'history'?"),
        (meq.Broyden, "histories", "Broyden() has no option 'histories': did you mean 'history'?"),
        (meq.Implicit, "solvers", "Implicit() has no option 'solvers': did you mean 'solver'?"),
        (meq.Phantom, "stepps", "Phantom() has no option 'stepps': did you mean 'steps'?"),
        (meq.Unrolled, "steps", "Unrolled() has no option 'steps': Known: none."),
        (meq.Checkpointed, "segments", "Checkpointed() has no option 'segments'"),
        (radius, "tolerance", "spectral_radius() has no option 'tolerance'"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest_known_one(call: Any, option: str, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        call(**{option: 1})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: solve(steps=0), "steps must be a whole number of at least 1, got 0"),
        (lambda: solve(steps=True), "steps must be a whole number of at least 1, got True"),
        (lambda: solve(tol=-1e-3), "tol must be 0 (take every step) or a positive number, got -0.001"),
        (lambda: solve(tol=math.nan), "tol must be 0 (take every step) or a positive number, got nan"),
        (lambda: solve(tol=math.inf), "tol must be 0 (take every step) or a positive number, got inf"),
        (lambda: meq.Damped(step=0.0), "Damped(step) must be a positive number, got 0.0"),
        (lambda: meq.Damped(step=math.nan), "Damped(step) must be a positive number, got nan"),
        (lambda: meq.Damped(step=torch.ones(2)), "Damped(step) must be one number, got a tensor of shape (2,)"),
        (lambda: meq.Anderson(history=0), "Anderson(history) must be a whole number of at least 1, got 0"),
        (lambda: meq.Anderson(step=-1.0), "Anderson(step) must be a positive number, got -1.0"),
        (lambda: meq.Broyden(history=-2), "Broyden(history) must be a whole number of at least 1, got -2"),
        (lambda: meq.Broyden(step=math.inf), "Broyden(step) must be a positive number, got inf"),
        (lambda: meq.Implicit(steps=0), "Implicit(steps) must be a whole number of at least 1, got 0"),
        (lambda: meq.Implicit(tol=-1.0), "Implicit(tol) must be 0 (take every step) or a positive number, got -1.0"),
        (lambda: meq.Phantom(0), "Phantom(steps) must be a whole number of at least 1, got 0"),
        (lambda: solve(steps=4, trajectory=[0, 5, -1]), "trajectory asks for steps [-1, 5], but a solve of 4 steps"),
        (lambda: solve(trajectory="al"), "trajectory has no mode 'al': did you mean 'all'?"),
        (lambda: meq.Anderson(history=2.5), "Anderson(history) must be a whole number of at least 1, got 2.5"),  # type: ignore[arg-type]
        (lambda: meq.Anderson(step="1"), "Anderson(step) must be a positive number, got '1'"),  # type: ignore[arg-type]
        (lambda: solve(tol="1e-3"), "tol must be 0 (take every step) or a positive number, got '1e-3'"),
        (lambda: solve(steps=2.5), "steps must be a whole number of at least 1, got 2.5"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_the_nearest_name_is_offered_only_when_it_is_near() -> None:
    assert nearest("txet", ["image", "text"]) == "did you mean 'text'? Known: image, text."
    assert nearest("quux", ["image", "text"]) == "Known: image, text."
    assert nearest("quux", []) == "Known: none."


def test_a_checked_function_keeps_its_name_docstring_and_answer() -> None:
    @checked_options
    def double(*, number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert double(number=4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice the number."


def test_solvers_and_backward_modes_cannot_be_changed_after_they_are_made() -> None:
    for made in (meq.Damped(), meq.Anderson(), meq.Broyden(), meq.Implicit(), meq.Phantom(2)):
        with pytest.raises(AttributeError):
            made.step = 3  # type: ignore[attr-defined]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: solve(solver="anderson"), "got the string 'anderson': write solver=meq.Anderson()"),
        (lambda: solve(backward="implicit"), "got the string 'implicit': write backward=meq.Implicit()"),
        (lambda: solve(backward="zzz"), "known are meq.Unrolled(), meq.Checkpointed(), meq.Implicit(), meq.Phantom()"),
        (lambda: solve(solver=meq.Broyden), "got the class Broyden: write Broyden()"),
        (lambda: solve(solver=None), "solver must be an object such as meq.Anderson(), got NoneType"),
        (lambda: meq.Implicit(solver="damped"), "Implicit(solver) must be an object such as meq.Anderson()"),  # type: ignore[arg-type]
    ],
)
def test_a_name_or_a_class_in_place_of_an_object_is_answered_with_what_to_write(make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        make()
