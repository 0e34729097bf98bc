from __future__ import annotations

import itertools

import pytest
import torch
from objectives.cases import Scaled, evaluated, tokens
from problems import Affine, rotation, stiff, three_modalities

from meq.objectives import CrossFloor, evaluation
from meq.objectives.floors import block_sizes


def exact_sizes(operator: Affine) -> dict[str, torch.Tensor]:
    """|J_ab|_F / sqrt(n_a) from the matrix itself."""
    counts = [torch.Size(shape).numel() for shape in operator.shapes.values()]
    rows = dict(zip(operator.shapes, operator.jacobian.detach().split(counts), strict=True))
    blocks = {a: dict(zip(operator.shapes, row.split(counts, dim=1), strict=True)) for a, row in rows.items()}
    return {f"{a}<-{b}": blocks[a][b].norm() / len(rows[a]) ** 0.5 for a in rows for b in rows}


def test_the_mean_over_all_signs_is_the_norm_of_each_block(monkeypatch):
    operator, inputs = stiff().operator, stiff().inputs
    vectors = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)), dtype=torch.float64)

    def every_sign(state, masks, *, seeds, probe):
        return operator.split(vectors[probe].expand(3, 4))

    monkeypatch.setattr(evaluation, "draw_signs", every_sign)
    sizes = block_sizes(evaluated(operator, inputs), 16)
    for pair, expected in exact_sizes(operator).items():
        torch.testing.assert_close(sizes[pair], expected.expand(3), rtol=1e-12, atol=0)


def test_random_signs_estimate_the_squares_of_three_modalities_without_bias():
    operator, batch = three_modalities().operator, 4000
    inputs = {name: x[:1].expand(batch, *x.shape[1:]) for name, x in three_modalities().inputs.items()}
    sizes = block_sizes(evaluated(operator, inputs, torch.arange(batch)), 1)
    for pair, expected in exact_sizes(operator).items():
        squares = sizes[pair] ** 2
        assert (squares.mean() - expected**2).abs() < 4 * squares.std() / batch**0.5, pair


def test_each_pair_below_its_floor_adds_what_it_lacks():
    problem = rotation(scale=0.3)  # both blocks off the diagonal are 0.3, both on it are 0
    here = evaluated(problem.operator, problem.inputs)
    for floors, penalty in [(0.5, 0.4), (0.2, 0.0), ({"a<-b": 0.5}, 0.2), ({"a<-b": 0.4, "b<-a": 1.0}, 0.8)]:
        torch.testing.assert_close(CrossFloor(floors).measure(here).per_sample, torch.full((3,), penalty).double())
    statistics = CrossFloor(0.5).measure(here).statistics
    assert list(statistics) == ["self/a", "cross/a<-b", "cross/b<-a", "self/b"]
    torch.testing.assert_close(statistics["cross/a<-b"], torch.full((3,), 0.3).double())
    assert statistics["self/a"].tolist() == [0, 0, 0]


def test_a_sample_that_lacks_a_modality_is_left_out_of_its_pairs():
    masks = {"text": torch.tensor([[True, False, False], [False, False, False], [True, True, True]])}
    measured = CrossFloor(0.5).measure(evaluated(Scaled(), tokens(), masks=masks))
    assert measured.per_sample.tolist() == [1.0, 0.0, 1.0]
    assert measured.statistics["cross/image<-text"].isnan().tolist() == [False, True, False]
    assert measured.statistics["self/text"].isnan().tolist() == [False, True, False]
    assert measured.statistics["self/image"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("floors", "words"),
    [
        (-0.1, "at least 0"),
        ({"image<-text": float("nan")}, "at least 0"),
        ({"image": 0.1}, "written like 'image<-text'"),
    ],
)
def test_wrong_floors_are_refused_in_words(floors, words):
    with pytest.raises(ValueError, match=words):
        CrossFloor(floors)


@pytest.mark.parametrize(
    ("floors", "words"),
    [
        ({"image<-txt": 0.1}, "unknown pair 'image<-txt': did you mean 'image<-text'"),
        ({"image<-image": 0.1}, "unknown pair 'image<-image'"),
        ({}, "no floors"),
    ],
)
def test_pairs_that_the_state_does_not_have_are_refused_in_words(floors, words):
    with pytest.raises(ValueError, match=words):
        CrossFloor(floors).measure(evaluated(Scaled(), tokens()))


def test_a_single_state_has_no_pair_to_hold():
    with pytest.raises(ValueError, match="at least two coupled states"):
        CrossFloor(0.1).measure(evaluated(Scaled(), {"joint": tokens()["image"]}))


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"CrossFloor\(probes\)"):
        CrossFloor(0.1, probes=0)
    with pytest.raises(ValueError, match=r"CrossFloor\(weight\)"):
        CrossFloor(0.1, weight=-1)
    with pytest.raises(TypeError, match="did you mean 'floors'"):
        CrossFloor(floor=0.1)
