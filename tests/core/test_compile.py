from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from plain import run_plain

CASES = Path(__file__).with_name("traced_cases.py")
COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="inductor needs a C++ compiler, and none was found")


# One interpreter per test: starting one, with the tracers it imports, takes longer than a case.


def test_one_step_of_every_solver_compiles_to_a_full_graph_with_its_gradient() -> None:
    run_plain(CASES, "one_step_of_every_solver_compiles")


@needs_compiler
def test_one_step_compiles_with_inductor() -> None:
    run_plain(CASES, "compiled_step_equals_eager", "inductor", "Damped")


def test_fixed_depth_inference_exports_with_every_solver() -> None:
    run_plain(CASES, "fixed_depth_inference_of_every_solver_exports")


def test_whole_fixed_depth_solves_compile_and_compiled_operators_can_be_solved() -> None:
    run_plain(CASES, "whole_solves_and_operators_compile")
