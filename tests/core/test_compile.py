from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from plain import run_plain

CASES = Path(__file__).with_name("traced_cases.py")
COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="inductor needs a C++ compiler, and none was found")


@pytest.mark.parametrize("solver", ["Damped", "Anderson", "Broyden"])
def test_one_step_compiles_to_a_full_graph(solver: str) -> None:
    run_plain(CASES, "compiled_step_equals_eager", "aot_eager", solver)


@needs_compiler
def test_one_step_compiles_with_inductor() -> None:
    run_plain(CASES, "compiled_step_equals_eager", "inductor", "Damped")


def test_a_compiled_step_has_the_same_gradient() -> None:
    run_plain(CASES, "compiled_step_has_the_same_gradient", "aot_eager", "Damped")


@pytest.mark.parametrize("solver", ["Damped", "Anderson", "Broyden"])
def test_fixed_depth_inference_exports(solver: str) -> None:
    run_plain(CASES, "exported_solve_equals_eager", solver)


def test_a_whole_fixed_depth_solve_compiles_to_a_full_graph() -> None:
    run_plain(CASES, "compiled_whole_solve_equals_eager")


def test_a_compiled_operator_can_be_solved() -> None:
    run_plain(CASES, "a_compiled_operator_can_be_solved")
