from __future__ import annotations

import pytest
import torch
from models.zoo import build, features_for

from meq.models.readout import ControlReadout, FirstTokenReadout, MergedReadout, PooledReadout


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {"a": torch.randn(3, 4, 8, dtype=torch.float64), "b": torch.randn(3, 2, 8, dtype=torch.float64)}


def test_pooling_is_the_mean_of_the_real_tokens_or_the_stand_in(state: dict[str, torch.Tensor]) -> None:
    pool = PooledReadout(["a", "b"], 8).double()
    with torch.no_grad():
        pool.stand_ins["b"].fill_(7)
    masks = {"b": torch.tensor([[True, True], [True, False], [False, False]])}
    pooled = pool(state, masks)
    torch.testing.assert_close(pooled["a"], state["a"].mean(1))
    torch.testing.assert_close(pooled["b"][1], state["b"][1, 0])
    assert (pooled["b"][2] == 7).all()


def test_the_first_token_is_read_or_the_stand_in(state: dict[str, torch.Tensor]) -> None:
    pool = FirstTokenReadout(["a", "b"], 8).double()
    with torch.no_grad():
        pool.stand_ins["b"].fill_(7)
    masks = {"b": torch.tensor([[True, True], [False, True], [False, False]])}
    read = pool(state, masks)
    torch.testing.assert_close(read["a"], state["a"][:, 0])
    torch.testing.assert_close(read["b"][0], state["b"][0, 0])
    torch.testing.assert_close(read["b"][1], state["b"][1, 1])
    assert (read["b"][2] == 7).all()
    vectors = {name: z[:, 1] for name, z in state.items()}
    torch.testing.assert_close(pool(vectors, {})["a"], vectors["a"])


def test_the_merge_reads_across_and_its_control_does_not(state: dict[str, torch.Tensor]) -> None:
    changed = {**state, "b": state["b"] + 1}
    for readout, sees in ((MergedReadout, True), (ControlReadout, False)):
        torch.manual_seed(0)
        pool = readout(["a", "b"], 8, 2).double()
        moved = (pool(changed, {})["a"] - pool(state, {})["a"]).abs().max() > 1e-6
        assert bool(moved) is sees


def test_the_merge_and_its_control_have_the_same_parameters() -> None:
    counts = [sum(p.numel() for p in kind(["a", "b"], 8, 2).parameters()) for kind in (MergedReadout, ControlReadout)]
    assert counts[0] == counts[1]


def test_a_merge_with_nobody_to_read_keeps_the_state(state: dict[str, torch.Tensor]) -> None:
    pool = MergedReadout(["a", "b"], 8, 2).double()
    masks = {"b": torch.tensor([[True, True], [False, False], [True, False]])}
    torch.testing.assert_close(pool(state, masks)["a"][1], state["a"][1].mean(0))


def test_the_readout_serves_any_state_along_the_way() -> None:
    model = build("merge", steps=6, tol=0.0)
    features = features_for(model)
    solution = model(features).solution
    torch.testing.assert_close(model.read(solution.state, solution.masks), model(features).logits)
    halfway = build("merge", steps=3, tol=0.0)
    torch.testing.assert_close(halfway(features).logits, model.read(halfway(features).solution.state, {}))
