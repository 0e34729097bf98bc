from __future__ import annotations

import torch
from objectives.cases import tokens

from meq.objectives.probes import draw_signs, mixed

SEEDS = torch.tensor([3, 2**33, -8])


def test_signs_are_plus_or_minus_one_and_zero_on_padding():
    state = tokens()
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    signs = draw_signs(state, {"text": mask}, seeds=SEEDS, probe=0)
    assert torch.equal(signs["image"].abs(), torch.ones(3, 4, 5).double())
    assert torch.equal(signs["text"].abs(), mask[..., None].expand(3, 3, 2).double())


def test_more_tokens_do_not_change_the_signs_of_the_first_ones():
    long = {"image": torch.zeros(3, 40, 5), "text": torch.zeros(3, 9, 2)}
    for length in (1, 7, 16, 33):
        short = {name: z[:, :length] for name, z in long.items()}
        few, many = draw_signs(short, {}, seeds=SEEDS, probe=1), draw_signs(long, {}, seeds=SEEDS, probe=1)
        assert all(torch.equal(few[name], many[name][:, :length]) for name in long)


def test_neighbours_do_not_change_a_samples_signs():
    state = tokens()
    alone = {name: z[1:2] for name, z in state.items()}
    together, single = (draw_signs(s, {}, seeds=k, probe=0) for s, k in ((state, SEEDS), (alone, SEEDS[1:2])))
    assert all(torch.equal(together[name][1:2], single[name]) for name in state)


def test_seeds_modalities_probes_and_dropout_all_draw_differently():
    state = {"a": torch.zeros(2, 10_000), "b": torch.zeros(2, 10_000)}
    seeds = torch.tensor([0, 1])
    first, second = (draw_signs(state, {}, seeds=seeds, probe=probe) for probe in (0, 1))
    dropout = 2 * (torch.rand(10_000, generator=torch.Generator().manual_seed(0)) >= 0.5).float() - 1
    streams = torch.stack([*first["a"], *first["b"], *second["a"], dropout])
    overlap = (streams @ streams.T / 10_000).fill_diagonal_(0)
    assert overlap.abs().max() < 0.05


def test_the_upper_half_of_a_seed_reaches_the_lower_half():
    """torch's CPU generator looks at the lower 32 bits only."""
    assert len({mixed(seed << 32, 0) & 0xFFFFFFFF for seed in range(1000)}) == 1000
    assert mixed(-1, 5) == mixed(2**64 - 1, 5)


def test_without_seeds_the_global_generator_draws():
    draws = []
    for _ in range(2):
        torch.manual_seed(4)
        draws.append(draw_signs({"a": torch.zeros(2, 30)}, {}, seeds=None, probe=0)["a"])
    assert torch.equal(*draws)
    assert draws[0].unique().tolist() == [-1, 1]
