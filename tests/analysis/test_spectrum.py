from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from problems import PROBLEMS, Affine, CoupledAttention, Known, attention_inputs, contraction, known, rotation
from torch import Tensor

import meq
from meq.analysis import krylov, leading_eigenvalue, products, spectrum
from meq.analysis.spectrum import leading_eigenvalues


def solved(operator: meq.Operator, inputs: dict[str, Tensor], **options: Any) -> meq.Solution:
    return meq.solve(operator, inputs, **{"steps": 3, "tol": 0.0, **options})


def plane_rotations(pairs: int, angle: float, radius: float) -> Tensor:
    """Block-diagonal rotations of falling modulus; the largest is a complex pair of the given modulus."""
    moduli = radius * torch.linspace(1, 0.2, pairs, dtype=torch.float64)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return torch.block_diag(*[modulus * turn for modulus in moduli])


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_radius_equals_the_largest_eigenvalue_of_the_dense_jacobian(name: str) -> None:
    problem = PROBLEMS[name]()
    radius = meq.spectral_radius(problem.operator, solved(problem.operator, problem.inputs))
    assert radius.dtype == torch.float64
    torch.testing.assert_close(radius, torch.full((3,), problem.operator.radius, dtype=torch.float64))


def test_a_large_rotation_is_measured_by_arnoldi(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair of largest modulus is complex, 400 entries are too many for the dense path, and nothing is symmetric."""
    problem = known(plane_rotations(200, angle=1.3, radius=0.95), {"a": (20, 10), "b": (200,)}, batch=2)
    monkeypatch.setattr(np.linalg, "eigvals", None)  # the dense path would fail
    radius = meq.spectral_radius(problem.operator, solved(problem.operator, problem.inputs), tol=1e-8)
    torch.testing.assert_close(radius, torch.full((2,), 0.95, dtype=torch.float64))


def test_a_pair_of_opposite_signs_is_no_trouble() -> None:
    moduli = torch.cat([torch.tensor([0.9, -0.9]), torch.linspace(0.7, -0.7, 98)]).double()
    basis = torch.randn(100, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = known(basis @ moduli.diag() @ torch.linalg.inv(basis), {"a": (100,)}, batch=1)
    radius = meq.spectral_radius(problem.operator, solved(problem.operator, problem.inputs), tol=1e-8)
    torch.testing.assert_close(radius, torch.tensor([0.9], dtype=torch.float64), rtol=1e-6, atol=0)


def test_arnoldi_and_the_dense_jacobian_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    solution = solved(operator, inputs, steps=100, tol=1e-9)
    dense = meq.spectral_radius(operator, solution)
    monkeypatch.setattr(spectrum, "SMALL", 4)
    torch.testing.assert_close(meq.spectral_radius(operator, solution), dense)


@pytest.mark.parametrize("limit", [4, 64])
def test_padded_tokens_do_not_count(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "SMALL", limit)
    operator, bare = CoupledAttention(), attention_inputs()
    padded = {name: torch.cat([x, 5 * torch.ones(3, 3, 4, dtype=x.dtype)], dim=1) for name, x in bare.items()}
    masks = {name: torch.arange(x.shape[1] + 3).expand(3, -1) < x.shape[1] for name, x in bare.items()}
    padded |= {f"{name}_mask": mask for name, mask in masks.items()}
    expected = meq.spectral_radius(operator, solved(operator, bare, steps=50))
    radius = meq.spectral_radius(operator, solved(operator, padded, steps=50, masks=masks))
    torch.testing.assert_close(radius, expected)


def test_every_sample_of_a_nonlinear_map_has_its_own_radius() -> None:
    operator, inputs = CoupledAttention(), attention_inputs()
    together = meq.spectral_radius(operator, solved(operator, inputs, steps=50))
    assert len(set(together.tolist())) == 3
    for row in range(3):
        alone = {name: x[row : row + 1] for name, x in inputs.items()}
        radius = meq.spectral_radius(operator, solved(operator, alone, steps=50))
        torch.testing.assert_close(radius[0], together[row], rtol=1e-9, atol=0)


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("limit", [4, 64])
def test_lower_precision_gives_the_radius_it_can(
    dtype: torch.dtype, accuracy: float, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectrum, "SMALL", limit)
    exact = meq.spectral_radius(CoupledAttention(), solved(CoupledAttention(), attention_inputs(), steps=50))
    operator, inputs = CoupledAttention(dtype=dtype), attention_inputs(dtype=dtype)
    radius = meq.spectral_radius(operator, solved(operator, inputs, steps=50))
    torch.testing.assert_close(radius.double(), exact, rtol=accuracy, atol=0)


def test_a_sample_without_any_real_token_has_no_radius() -> None:
    problem = rotation()
    absent = torch.tensor([True, False, True])
    solution = solved(problem.operator, problem.inputs, masks={"a": absent, "b": absent})
    radius = meq.spectral_radius(problem.operator, solution)
    assert radius.isnan().tolist() == [False, True, False]


def test_a_map_that_ignores_its_state_has_radius_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "SMALL", 4)
    operator = Affine(torch.zeros(20, 20, dtype=torch.float64), {"image": (3, 4), "text": (2, 4)})
    radius = meq.spectral_radius(operator, solved(operator, contraction().inputs))
    assert radius.tolist() == [0, 0, 0]


def crowded() -> Known:
    """A rotation of 200 axes: every eigenvalue has the same modulus, and Arnoldi cannot tell them apart."""
    matrix = torch.randn(200, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return known(0.95 * torch.linalg.qr(matrix).Q, {"a": (200,)}, batch=2)


def test_where_arnoldi_fails_the_jacobian_is_formed() -> None:
    problem = crowded()
    radius = meq.spectral_radius(problem.operator, solved(problem.operator, problem.inputs))
    torch.testing.assert_close(radius, torch.full((2,), 0.95, dtype=torch.float64))


def test_a_radius_that_cannot_be_found_is_nan_and_the_sample_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "FALLBACK_LIMIT", 100)
    monkeypatch.setattr(krylov, "MOST", 40)
    problem = crowded()
    absent = torch.tensor([False, True])
    solution = solved(problem.operator, problem.inputs, masks={"a": absent})
    with pytest.warns(RuntimeWarning, match="the spectral radius of sample 1 was not found in 100 restarts") as caught:
        radius = meq.spectral_radius(problem.operator, solution)
    assert radius.isnan().all()
    assert len(caught) == 1, "a sample without tokens is no failure of Arnoldi"


def test_no_global_random_state_is_touched() -> None:
    problem = known(plane_rotations(50, angle=0.7, radius=0.9), {"a": (100,)}, batch=1)
    solution = solved(problem.operator, problem.inputs)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = meq.spectral_radius(problem.operator, solution)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert torch.equal(meq.spectral_radius(problem.operator, solution), first)


def test_the_radius_is_found_without_grad_mode() -> None:
    problem = contraction()
    with torch.no_grad():
        radius = meq.spectral_radius(problem.operator, solved(problem.operator, problem.inputs))
    assert not radius.requires_grad
    torch.testing.assert_close(radius, torch.full((3,), problem.operator.radius, dtype=torch.float64))


def test_a_model_of_the_papers_size_takes_fewer_than_a_hundred_products() -> None:
    model = meq.MutualEquilibrium({"image": 768, "text": 768}, 3, 768, heads=8, steps=10).eval()
    with torch.no_grad():
        solution = model({"image": torch.randn(1, 50, 768), "text": torch.randn(1, 32, 768)}).solution
    found = leading_eigenvalue(model.operator, solution, norms=False)
    assert found.products.item() < 100
    assert found.residual.item() < 1e-2
    assert f"{found.products.item()} at most" in str(found)


@pytest.mark.parametrize("damping", [0.3, 1.0])
def test_the_damped_map_has_the_damped_eigenvalues(damping: float) -> None:
    problem = contraction()
    found = leading_eigenvalue(problem.operator, solved(problem.operator, problem.inputs), damping=damping)
    values = 1 - damping + damping * torch.linalg.eigvals(problem.operator.jacobian.detach())
    torch.testing.assert_close(found.radius, values.abs().max().expand(3))
    torch.testing.assert_close(found.eigenvalue.abs(), found.radius)
    assert (found.residual < 1e-10).all()


def test_the_operator_norm_is_the_largest_singular_value_and_not_the_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = contraction()
    solution = solved(problem.operator, problem.inputs)
    expected = torch.linalg.matrix_norm(problem.operator.jacobian.detach(), 2).expand(3)
    dense = leading_eigenvalue(problem.operator, solution)
    torch.testing.assert_close(dense.operator_norm, expected)
    assert (dense.operator_norm > dense.radius).all()
    monkeypatch.setattr(spectrum, "SMALL", 4)
    monkeypatch.setattr(products, "SMALL", 4)
    free = leading_eigenvalue(problem.operator, solution, tol=1e-8)
    torch.testing.assert_close(free.operator_norm, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(free.radius, dense.radius, rtol=1e-6, atol=0)
    assert (free.products > 0).all()
    assert (free.norm_products > 0).all()


MODULI = torch.tensor([0.9, 0.8, 0.7, 0.5], dtype=torch.float64)


def rotations(angle: float, moduli: torch.Tensor) -> torch.Tensor:
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return torch.block_diag(*[modulus * turn for modulus in moduli])


def solved_map(matrix: torch.Tensor, shapes: dict[str, tuple[int, ...]], batch: int = 2) -> tuple[Affine, meq.Solution]:
    problem = known(matrix, shapes, batch=batch)
    return problem.operator, meq.solve(problem.operator, problem.inputs, steps=3, tol=0.0)


@pytest.mark.parametrize("more", [0, 60], ids=["dense", "arnoldi"])
def test_they_are_the_largest_of_the_matrix_in_order(more: int) -> None:
    moduli = torch.cat([MODULI, torch.linspace(0.3, 0.1, more, dtype=torch.float64)])
    operator, solution = solved_map(rotations(1.1, moduli), {"a": (4,), "b": (2 * len(moduli) - 4,)})
    found = leading_eigenvalues(operator, solution, count=6, tol=1e-9)
    assert found.values.shape == (2, 6)
    torch.testing.assert_close(found.values.abs()[0], MODULI[:3].repeat_interleave(2), rtol=1e-6, atol=0)
    assert float(found.values[0, 0].angle()) == pytest.approx(1.1)
    assert float(found.residual.max()) < 1e-6
    assert int(found.products.min()) > 0
    assert len(str(found).splitlines()) == 7


def test_the_damped_ones_are_those_of_the_damped_map() -> None:
    matrix = rotations(2.0, MODULI)
    found = leading_eigenvalues(*solved_map(matrix, {"a": (8,)}), count=8)
    damped = torch.linalg.eigvals(0.4 * torch.eye(8, dtype=torch.float64) + 0.6 * matrix)
    torch.testing.assert_close(found.damped(0.6)[0].abs().sort().values, damped.abs().sort().values)


def test_there_are_no_more_than_the_state_has_entries() -> None:
    found = leading_eigenvalues(*solved_map(0.5 * torch.eye(2, dtype=torch.float64), {"a": (2,)}), count=4)
    assert found.values.abs()[0, :2].tolist() == pytest.approx([0.5, 0.5])
    assert bool(found.values[0, 2:].isnan().all())


def test_a_map_that_ignores_its_state_has_zeros() -> None:
    found = leading_eigenvalues(*solved_map(torch.zeros(80, 80, dtype=torch.float64), {"a": (80,)}), count=3)
    assert found.values.abs().max() == 0


def test_none_at_all_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        leading_eigenvalues(*solved_map(torch.eye(2).double() / 2, {"a": (2,)}), count=0)


def triangular(size: int, radius: float, above: float, seed: int = 0) -> Tensor:
    """The truth is the diagonal, whatever stands above it."""
    generator = torch.Generator().manual_seed(seed)
    moduli = radius * torch.linspace(1, 0.2, size, dtype=torch.float64)
    strict = torch.randn(size, size, generator=generator, dtype=torch.float64).triu(1)
    return moduli.diag() + above * strict


def jordan(size: int, radius: float, above: float) -> Tensor:
    return radius * torch.eye(size, dtype=torch.float64) + above * torch.ones(size - 1, dtype=torch.float64).diag(1)


def hidden(matrix: Tensor, seed: int = 1) -> Tensor:
    """The same eigenvalues in another orthonormal basis, where no structure gives them away."""
    drawn = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q
    return basis @ matrix @ basis.T


def problem(matrix: Tensor) -> tuple[Known, meq.Solution]:
    made = known(matrix, {"a": (len(matrix),)}, batch=1)
    return made, meq.solve(made.operator, made.inputs, steps=1, tol=0.0)


CASES = {
    "triangular": (triangular(100, 0.9, 1.0), 0.9),
    "jordan": (jordan(100, 0.5, 1.0), 0.5),
    "large jordan": (jordan(300, 0.9, 2.0), 0.9),
    "hidden jordan": (hidden(jordan(100, 0.5, 1.0)), 0.5),
    "hidden triangular": (hidden(triangular(100, 0.9, 1.0)), 0.9),
    "small triangular": (triangular(40, 0.9, 3.0), 0.9),
}


@pytest.mark.parametrize("case", list(CASES))
def test_the_truth_lies_between_the_bounds_of_a_map_far_from_normal(case: str) -> None:
    matrix, truth = CASES[case]
    made, solution = problem(matrix)
    found = leading_eigenvalue(made.operator, solution, norms=False)
    assert found.lowest.item() <= truth + 1e-9, str(found)
    assert truth - 1e-9 <= found.highest.item(), str(found)
    right = abs(found.radius.item() - truth) < 0.02 * truth
    assert right or "uncertain for 1 of 1, between" in str(found)


@pytest.mark.parametrize("case", ["triangular", "jordan", "large jordan", "small triangular"])
def test_a_structure_that_balancing_sees_gives_the_diagonal(case: str) -> None:
    matrix, truth = CASES[case]
    made, solution = problem(matrix)
    radius = leading_eigenvalue(made.operator, solution, norms=False).radius
    assert radius.item() == pytest.approx(truth, rel=1e-6)


def test_a_warning_names_the_sample_and_the_bounds() -> None:
    made, solution = problem(CASES["hidden jordan"][0])
    with pytest.warns(RuntimeWarning, match=r"the spectral radius of sample 0 is uncertain, between \d"):
        radius = meq.spectral_radius(made.operator, solution)
    assert radius.shape == (1,)


@pytest.mark.parametrize("limit", [4, 2048])
def test_maps_too_large_to_form_are_judged_by_vectors_of_both_sides(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectrum, "FORM_LIMIT", limit)
    monkeypatch.setattr(spectrum, "FALLBACK_LIMIT", limit)
    for matrix, truth in (CASES["jordan"], CASES["hidden triangular"]):
        made, solution = problem(matrix)
        found = spectrum.leading_eigenvalue(made.operator, solution, norms=False)
        assert found.lowest.item() <= truth + 1e-9, str(found)
        assert truth - 1e-9 <= found.highest.item(), str(found)
        assert abs(found.radius.item() - truth) < 0.02 or "uncertain" in str(found)


def test_a_normal_map_is_certain_and_costs_two_short_walks() -> None:
    turn = torch.tensor([[math.cos(1.3), -math.sin(1.3)], [math.sin(1.3), math.cos(1.3)]], dtype=torch.float64)
    moduli = torch.linspace(0.95, 0.1, 150, dtype=torch.float64)
    made, solution = problem(torch.block_diag(*[size * turn for size in moduli]))
    found = leading_eigenvalue(made.operator, solution, norms=False)
    assert found.condition.item() == pytest.approx(1, rel=0.05)
    assert found.radius.item() == pytest.approx(0.95, rel=1e-3)
    assert found.highest.item() - found.lowest.item() < 0.02 * 0.95
    assert "uncertain" not in str(found)
    assert found.products.item() < 300  # the matrix was not formed


@pytest.mark.parametrize("change", [0.0, 1e-6])
def test_traces_never_exceed_the_radius_and_powers_never_fall_below_it(change: float) -> None:
    for matrix, truth in CASES.values():
        assert spectrum._trace_bound(matrix.numpy(), change) <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= spectrum._power_bound(matrix.numpy(), change)
    assert spectrum._power_bound(jordan(100, 0.5, 1.0).numpy(), 0.0) < 1.5  # its norm
    assert spectrum._power_bound(torch.zeros(3, 3).numpy(), 0.0) == 0


def with_jordan_block(size: int, block: int) -> Tensor:
    """A defective eigenvalue 0.7 of the block's size, among real ones of smaller modulus."""
    return torch.block_diag(jordan(block, 0.7, 1.0), torch.linspace(0.5, -0.4, size - block).double().diag())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("size", "block"), [(20, 2), (20, 3), (20, 4), (30, 8), (40, 20), (60, 60)])
def test_a_defective_eigenvalue_lies_between_the_bounds_in_every_basis(
    size: int, block: int, dtype: torch.dtype
) -> None:
    """Rounding, another one in every basis and in every LAPACK, makes a ring of it that is far wider than itself."""
    matrix = with_jordan_block(size, block)
    for seed in range(12):
        made, solution = problem(hidden(matrix, seed).to(dtype))
        found = leading_eigenvalue(made.operator, solution, norms=False)
        assert found.lowest.item() <= 0.7 <= found.highest.item(), f"seed {seed}: {found}"


@pytest.mark.parametrize("rounding", [1e-12, 1e-7, 1e-4])
@pytest.mark.parametrize("size", [2, 3, 10, 30, 100])
def test_the_worst_change_within_rounding_leaves_the_truth_between_the_bounds(size: int, rounding: float) -> None:
    """The corner of a Jordan block moves its eigenvalue most, by the root of its order: no solver can do worse."""
    matrix = jordan(size, 0.7, 1.0)
    for seed, share in enumerate([0.01, 0.1, 0.5, 1.0]):
        changed = matrix.clone()
        changed[-1, 0] = share * rounding * torch.linalg.norm(matrix) / size**0.5
        near = hidden(changed, seed).numpy()
        lowest, highest = spectrum._bounds(near, rounding, spectrum._decomposed(near))
        assert lowest <= 0.7 <= highest, f"{share} of the rounding"


def test_low_precision_bounds_hold_where_the_vectors_are_far_from_orthogonal() -> None:
    """At eight bits the powers of such a map are rounding, and no bound unless that is counted."""
    moduli = torch.linspace(0.9, -0.6, 40, dtype=torch.float64)
    for seed in range(12):
        basis = torch.randn(40, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        made, solution = problem((basis @ moduli.diag() @ torch.linalg.inv(basis)).bfloat16())
        found = leading_eigenvalue(made.operator, solution, norms=False)
        assert found.lowest.item() <= 0.9 <= found.highest.item(), f"seed {seed}: {found}"


@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, 1e-11), (torch.float32, 1e-5), (torch.bfloat16, 0.2)])
def test_a_map_without_close_eigenvalues_keeps_narrow_bounds(dtype: torch.dtype, width: float) -> None:
    for seed in range(6):
        drawn = torch.randn(40, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        made, solution = problem((0.8 * drawn / 40**0.5).to(dtype))
        found = leading_eigenvalue(made.operator, solution, norms=False)
        assert found.highest.item() - found.lowest.item() < width


def test_eigenvalues_far_below_the_radius_do_not_widen_its_bounds() -> None:
    """A defective eigenvalue at 0.1 is a cluster of its own, which cannot come near 0.9."""
    matrix = torch.block_diag(jordan(1, 0.9, 1.0), jordan(5, 0.1, 1.0))
    made, solution = problem(hidden(matrix))
    found = leading_eigenvalue(made.operator, solution, norms=False)
    assert found.highest.item() - found.lowest.item() < 1e-11
    assert found.lowest.item() <= 0.9 <= found.highest.item()
