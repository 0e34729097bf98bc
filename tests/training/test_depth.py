"""How deep updates go: what is drawn, that a model is run so, and that a run that was interrupted draws the same."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from training.small import PENALTIES, Interrupting, small_config, small_data, small_model, train_small

import meq
from meq.core.iteration import AtSteps
from meq.core.operator import Operator
from meq.errors import Interrupted
from meq.models.iterated import Disturbance, DisturbedOperator, IteratedModel
from meq.models.plan import DepthPlan
from meq.objectives import Objective
from meq.training import TrainConfig, fit, seed_everything
from meq.training.depth import Fixed, Poisson, Settle, Uniform, parse_depth
from meq.training.updates import average_weights, averaged, depth_plan, drawn_depth


def draws(text: str, count: int = 4000) -> list[tuple[int, int]]:
    numbers, depth = random.Random(0), parse_depth(text)
    found = [depth.draw(numbers) for _ in range(count)]
    return [(each.steps, each.tracked) for each in found if each is not None]


# -- what is drawn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("fixed", Fixed()),
        ("Fixed()", Fixed()),
        ("uniform(2, 8)", Uniform(2, 8)),
        (" UNIFORM(low=2, high=8) ", Uniform(2, 8)),
        ("poisson(8)", Poisson(8)),
        ("poisson(8.5, spread=0.25, tracked=4)", Poisson(8.5, 0.25, 4)),
        ("fixed(8)", Fixed(8)),
        ("fixed(tracked=3)", Fixed(tracked=3)),
        ("fixed(8, tracked=3)", Fixed(8, tracked=3)),
        ("uniform(2, 8, per_sample=True)", Uniform(2, 8, per_sample=True)),
        ("poisson(8, per_sample=true)", Poisson(8, per_sample=True)),
        ("poisson(8, per_sample=False)", Poisson(8)),
        ("settle(2, 8, per_sample=True)", Settle(2, 8, per_sample=True)),
        ("settle(2, 8)", Settle(2, 8)),
        ("settle(2, 8, free=60, tracked=3, late=0.25)", Settle(2, 8, 60, 3, 0.25)),
    ],
)
def test_a_depth_is_read_from_its_text_and_written_as_one(text: str, depth: Any) -> None:
    assert parse_depth(text) == depth
    assert parse_depth(str(depth)) == depth
    assert TrainConfig(depth=text).depth == str(depth)
    assert TrainConfig(depth=depth).depth == str(depth)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unifrom(2, 8)", "did you mean 'uniform'"),
        ("uniform(2)", "needs high"),
        ("uniform(8, 2)", "must not be below low"),
        ("uniform(0, 2)", "at least 1"),
        ("uniform(1.5, 2)", "whole number"),
        ("uniform(1, 2, 3)", "takes low, high"),
        ("uniform(1, true)", "must be a number"),
        ("fixed(tracked=0)", "fixed: tracked must be a whole number of at least 1"),
        ("fixed(8, 3)", "takes steps"),
        ("uniform(1, 2, per_sample=1)", "per_sample must be True or False"),
        ("settle(2, 8, per_sample=2)", "per_sample must be True or False"),
        ("uniform(1, __import__('os'))", "must be a number"),
        ("settle(2, 8, fre=4)", "did you mean 'free'"),
        ("settle(2, 8, late=1.5)", "share"),
        ("poisson(1)", "greater than 1"),
        ("2 + 2", "uniform"),
        ("uniform(2, 8", "uniform"),
        ("", "uniform"),
        (8, "text such as"),
    ],
)
def test_a_depth_that_makes_no_sense_is_an_error_that_says_so(text: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        TrainConfig(depth=text)


def test_uniform_depths_are_equally_frequent_and_all_tracked() -> None:
    found = draws("uniform(2, 8)")
    assert {steps for steps, _ in found} == set(range(2, 9))
    assert all(steps == tracked for steps, tracked in found)
    assert mean(steps for steps, _ in found) == pytest.approx(5, abs=0.1)


def test_poisson_depths_have_the_mean_that_was_asked_for_and_a_long_tail() -> None:
    steps = [steps for steps, _ in draws("poisson(8, tracked=4)", 20_000)]
    assert mean(steps) == pytest.approx(8, abs=0.1)
    assert min(steps) == 1
    assert max(steps) > 24
    assert all(tracked == min(4, steps) for steps, tracked in draws("poisson(8, tracked=4)"))


def test_settling_draws_late_updates_as_often_as_it_says() -> None:
    found = draws("settle(2, 8, free=40, tracked=4)", 20_000)
    late = [steps for steps, tracked in found if tracked < steps]
    early = [steps for steps, tracked in found if tracked == steps]
    assert len(late) / len(found) == pytest.approx(0.5, abs=0.02)
    assert min(late) == 5
    assert max(late) == 44
    assert set(early) == set(range(2, 9))
    assert not [1 for steps, tracked in draws("settle(2, 8, late=0)") if tracked < steps]


# -- how a model is run ------------------------------------------------------------------------------------------------


def test_an_update_runs_the_model_as_deep_as_was_drawn_and_leaves_it_as_it_was() -> None:
    model = small_model()
    assert isinstance(model, IteratedModel)
    config = small_config(depth="settle(5, 5, free=1, tracked=2)", path_noise=0.1, supervise=2)
    seen = set()
    for step in range(20):
        with drawn_depth(model, config, step):
            assert model.tol == 0
            assert model.disturbance == Disturbance(start=0.0, noise=0.1)
            assert model.supervised == 2
            seen.add((model.steps, repr(model.backward)))
        assert (model.steps, model.tol, model.backward) == (3, 1e-3, meq.Unrolled())
        assert model.disturbance is None
        assert model.supervised == 1
    assert seen == {(5, "Unrolled()"), (3, "Phantom(steps=2)")}


def test_gradients_of_the_last_steps_alone_are_those_of_phantom_at_the_models_own_depth() -> None:
    model, config = small_model(), TrainConfig(depth="fixed(tracked=2)")
    with drawn_depth(model, config, 0, ["a"]):
        assert (model.steps, model.tol, model.backward) == (small_model().steps, 0.0, meq.Phantom(2))
    with drawn_depth(model, TrainConfig(depth="fixed(2, tracked=9)"), 0, ["a"]):
        assert (model.steps, model.backward) == (2, meq.Unrolled()), "no more steps than there are"
    assert model.backward == meq.Unrolled()


def test_what_an_update_draws_depends_on_seed_and_step_alone() -> None:
    def depths(seed: int) -> list[int]:
        model, config = small_model(), small_config(depth="uniform(1, 50)", seed=seed)
        found = []
        for step in range(12):
            with drawn_depth(model, config, step):
                found.append(model.steps)  # type: ignore[arg-type]
        return found

    assert depths(1) == depths(1)
    assert depths(1) != depths(2)


# -- a depth for every sample ------------------------------------------------------------------------------------------

PLANS = {
    "all steps": (meq.Unrolled(), [1, 3, 6, 2], [1, 3, 6, 2]),
    "the last ones": (meq.Unrolled(), [1, 3, 6, 2], [1, 2, 4, 2]),
    "computed again": (meq.Checkpointed(), [1, 3, 6, 2], [1, 2, 4, 2]),
    "the model's own way": (meq.Phantom(2), [1, 3, 6, 2], [1, 3, 6, 2]),
}


def batch_of(count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    made = {"image": (count, 3, 5), "text": (count, 3, 4)}
    features = {name: torch.randn(shape, generator=generator).double() for name, shape in made.items()}
    return features, torch.randint(2, (count,), generator=generator)


def gradients(model: IteratedModel, rows: list[int], features: Any, target: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    output = model({name: x[rows] for name, x in features.items()}, seeds=torch.tensor(rows))
    torch.nn.functional.cross_entropy(output.logits, target[rows]).backward()
    return [weights.grad.clone() for weights in model.parameters() if weights.grad is not None]


@pytest.mark.parametrize(("case", "solver"), [*((case, None) for case in PLANS), ("all steps", meq.Anderson())])
def test_the_gradient_is_the_mean_of_those_of_samples_run_alone_to_their_depths(case: str, solver: Any) -> None:
    backward, steps, tracked = PLANS[case]
    torch.manual_seed(0)
    damping = "learned" if solver is None else 1.0
    model: Any = small_model(
        torch.float64, modality_dropout=0.0, tol=0.0, damping=damping, solver=solver, backward=backward
    )
    features, target = batch_of(4)
    alone = []
    for row in range(4):
        own = meq.Phantom(tracked[row]) if tracked[row] < steps[row] else None
        with model.run_as(steps=steps[row], backward=own):
            alone.append(gradients(model, [row], features, target))
    model.plan = DepthPlan(steps=torch.tensor(steps), tracked=torch.tensor(tracked))
    together = gradients(model, [0, 1, 2, 3], features, target)
    for found, *each in zip(together, *alone, strict=True):
        torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-9, atol=1e-12)
    output = model(features)
    assert output.solution.steps.tolist() == steps
    assert output.solution.operator is model.coupling


def test_a_diverging_sample_leaves_the_depths_of_the_others_alone() -> None:
    class Growing(Operator):
        def start(self, inputs: Any) -> Any:
            return {"a": inputs["x"].clone()}

        def forward(self, state: Any, inputs: Any) -> Any:
            return {"a": inputs["rate"] * state["a"]}

    rate = torch.tensor([[2.0], [1e30], [3.0]], requires_grad=True)
    inputs = {"x": torch.ones(3, 1), "rate": rate}
    rule = AtSteps(torch.tensor([3, 4, 2]))
    found = meq.solve(Growing(), inputs, solver=meq.Damped(step=1.0), steps=4, tol=0.0, stop_when=rule)
    assert found.state["a"][[0, 2], 0].tolist() == [8.0, 9.0]
    found.state["a"].sum().backward()
    assert rate.grad[:, 0].tolist() == [3 * 2.0**2, 0.0, 2 * 3.0]


def test_the_depth_of_a_sample_depends_on_seed_step_and_its_id_alone() -> None:
    depth = parse_depth("poisson(8, tracked=4, per_sample=True)")
    names = [f"s{row}" for row in range(200)]
    whole = depth_plan(depth, 1, 7, names)
    part = depth_plan(depth, 1, 7, names[50:60])
    assert torch.equal(whole.steps[50:60], part.steps)
    assert torch.equal(whole.tracked, whole.steps.clamp(max=4))
    assert len(whole.steps.unique()) > 8
    assert not torch.equal(whole.steps, depth_plan(depth, 1, 8, names).steps)
    assert not torch.equal(whole.steps, depth_plan(depth, 2, 7, names).steps)


def test_an_update_gives_every_sample_its_depth_and_takes_it_back() -> None:
    model: Any = small_model(torch.float64)
    features, _ = batch_of(3)
    with drawn_depth(model, small_config(depth="uniform(1, 9, per_sample=True)"), 0, ["a", "b", "c"]):
        plan = model.plan
        assert model(features).solution.steps.tolist() == plan.steps.tolist()
        assert len(plan.steps.unique()) > 1
    assert model.plan is None
    assert model(features).solution.steps.max() <= 3


def test_the_choices_of_an_example_go_equally_deep_and_other_batches_are_refused() -> None:
    plan = DepthPlan(steps=torch.tensor([2, 5]), tracked=torch.tensor([1, 1]))
    assert plan.of_rows(6, torch.device("cpu")).steps.tolist() == [2, 2, 2, 5, 5, 5]
    with pytest.raises(ValueError, match="the depths of 2 samples were drawn, and the batch has 3 rows"):
        plan.of_rows(3, torch.device("cpu"))


def test_noise_along_the_path_of_a_sample_does_not_depend_on_how_deep_the_others_go() -> None:
    torch.manual_seed(0)
    model: Any = small_model(torch.float64, dropout=0.0, modality_dropout=0.0, tol=0.0)
    model.disturbance = Disturbance(start=0.5, noise=0.1)
    features, _ = batch_of(2)
    seeds = torch.tensor([11, 12])
    ends = []
    for other in (2, 9):
        model.plan = DepthPlan(steps=torch.tensor([4, other]), tracked=torch.tensor([2, 2]))
        ends.append(model(features, seeds=seeds).logits[0])
    assert torch.equal(*ends)


def test_a_model_can_be_read_at_another_step_than_its_own() -> None:
    model = small_model(tol=0.0).eval()
    assert isinstance(model, IteratedModel)
    x = {"image": torch.randn(2, 3, 5), "text": torch.randn(2, 3, 4)}
    deeper = model(x, steps=7)
    assert deeper.solution is not None
    assert deeper.solution.steps.tolist() == [7, 7]
    assert model.steps == 3
    model.steps = 7
    assert torch.equal(model(x).logits, deeper.logits)
    with pytest.raises(ValueError, match="Concat does not iterate"):
        meq.Concat({"image": 5, "text": 4}, 2, 8)(x, steps=7)
    with pytest.raises(ValueError, match="steps must be a whole number"):
        model(x, steps=0)
    assert model.steps == 7


class Still(Operator):
    """T(z) = z, from 5."""

    def start(self, inputs: Any) -> dict[str, torch.Tensor]:
        return {"a": torch.full((len(inputs["x"]), 3, 2), 5.0)}

    def forward(self, state: Any, inputs: Any) -> Any:
        return dict(state)


def test_random_starts_take_their_share_and_leave_the_others_alone() -> None:
    inputs, seeds = {"x": torch.zeros(2000, 1)}, torch.arange(2000)
    state = DisturbedOperator(Still(), Disturbance(start=0.3), seeds).start(inputs)["a"]
    redrawn = (state != 5).flatten(1).any(1)
    assert redrawn.double().mean() == pytest.approx(0.3, abs=0.03)
    assert state[redrawn].std() == pytest.approx(1, abs=0.05)
    assert bool((state[~redrawn] == 5).all())


def test_what_disturbs_a_sample_does_not_depend_on_who_shares_the_batch() -> None:
    seeds, disturbance = torch.tensor([11, 12, 13]), Disturbance(start=0.5, noise=0.1)

    def end(rows: list[int]) -> torch.Tensor:
        operator = DisturbedOperator(Still(), disturbance, seeds[rows])
        return meq.solve(operator, {"x": torch.zeros(len(rows), 1)}, solver=meq.Damped(step=1.0), steps=4, tol=0).state[
            "a"
        ]

    assert torch.equal(end([0, 1, 2])[1:], end([1, 2]))
    assert not torch.equal(end([0])[0], end([1])[0])


def test_nothing_is_disturbed_in_eval_mode_and_the_solution_has_the_map_itself() -> None:
    model = small_model(dropout=0.0, modality_dropout=0.0, tol=0.0)
    assert isinstance(model, IteratedModel)
    x = {"image": torch.randn(2, 3, 5), "text": torch.randn(2, 3, 4)}
    plain = model.eval()(x).logits
    model.disturbance = Disturbance(start=1.0, noise=0.5)
    assert torch.equal(model(x).logits, plain)
    disturbed = model.train()(x)
    assert not torch.equal(disturbed.logits, plain)
    assert disturbed.solution.operator is model.coupling


def test_several_supervised_steps_are_what_reading_at_those_steps_gives() -> None:
    model = small_model(dropout=0.0, modality_dropout=0.0, tol=0.0, steps=5).train()
    assert isinstance(model, IteratedModel)
    x = {"image": torch.randn(2, 3, 5), "text": torch.randn(2, 3, 4)}
    at = {k: model(x, steps=k).logits for k in range(1, 6)}
    model.supervised = 3
    output = model(x)
    assert [torch.equal(a, at[k]) for a, k in zip(output.along, (3, 4), strict=True)] == [True, True]
    model.supervised = 0
    assert len(model(x).along) == 4
    with model.run_as(backward=meq.Phantom(2)):  # steps without gradients have nothing to teach
        assert len(model(x).along) == 1
    assert model.eval()(x).along == ()


def test_the_loss_of_several_steps_is_their_weighted_mean() -> None:
    model = small_model(dropout=0.0, modality_dropout=0.0, tol=0.0, steps=3).train()
    assert isinstance(model, IteratedModel)
    x, y = {"image": torch.randn(4, 3, 5), "text": torch.randn(4, 3, 4)}, torch.tensor([0, 1, 1, 0])
    single = [Objective()(model, model(x, steps=k), y).total.item() for k in (1, 2, 3)]
    model.supervised = 0
    total = Objective(decay=0.5)(model, model(x), y).total.item()
    assert total == pytest.approx((0.25 * single[0] + 0.5 * single[1] + single[2]) / 1.75, rel=1e-6)


# -- moving averages ---------------------------------------------------------------------------------------------------


def test_averages_follow_the_weights_and_are_swapped_in_and_out() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1)
    expected = None
    for step in range(5):
        layer(torch.ones(1, 1)).sum().backward()
        optimiser.step()
        now = layer.weight.item()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = now if expected is None else decay * expected + (1 - decay) * now
        average_weights(layer, optimiser, 0.9, step)
    before = layer.weight.item()
    with averaged(layer, optimiser):
        assert layer.weight.item() == pytest.approx(expected, rel=1e-5)
    assert layer.weight.item() == before


# -- whole runs --------------------------------------------------------------------------------------------------------

RECIPE = {"depth": "settle(2, 4, free=6, tracked=2)", "random_start": 0.5, "path_noise": 0.01, "average": 0.9}


def test_a_run_with_drawn_depths_and_averages_goes_on_as_if_it_had_never_been_interrupted(tmp_path: Path) -> None:
    whole = train_small(tmp_path / "whole", **RECIPE)
    seed_everything(3)
    quiet, config = Console(quiet=True), small_config(**RECIPE)
    model = small_model(damping="learned")
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        fit(model, small_data(), Interrupting(penalties=PENALTIES), tmp_path / "broken", config, console=quiet)
    again = train_small(tmp_path / "broken", resume=True, **RECIPE)
    assert len(again.sessions) == 2
    assert again.metrics == whole.metrics
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_the_kept_weights_are_the_averages_and_the_checkpoint_has_both(tmp_path: Path) -> None:
    train_small(tmp_path / "run", average=0.9, select="last")
    (newest,) = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)[:1]
    raw, kept = load_file(newest / "model.safetensors"), load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert any(not torch.equal(x, kept[name]) for name, x in raw.items())
    stored = load_file(newest / "optimiser.safetensors")
    averages = [x for name, x in stored.items() if name.endswith(".average")]
    assert averages
    assert all(any(x.shape == y.shape and torch.equal(x, y) for y in kept.values()) for x in averages)


def test_a_record_names_options_of_depth_only_where_they_are_set(tmp_path: Path) -> None:
    assert "depth" not in TrainConfig().to_json()
    assert TrainConfig(depth="uniform(2, 8)").to_json()["depth"] == "uniform(low=2, high=8)"
    with_depth = train_small(tmp_path / "run", depth="uniform(1, 3)")
    assert with_depth.config["depth"] == "uniform(low=1, high=3)"


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (meq.Concat({"image": 5, "text": 4}, 2, 8), {"depth": "uniform(1, 2)"}, "does not iterate.*leave out depth"),
        (small_model(backward=meq.Implicit()), {"path_noise": 0.1}, "path_noise cannot go with"),
        (small_model(backward=meq.Checkpointed()), {"path_noise": 0.1}, "path_noise cannot go with"),
        (small_model(backward=meq.Implicit()), {"supervise": 2}, "supervise cannot go with"),
        (small_model(), {"supervise": 2, "depth": "uniform(1, 2, per_sample=True)"}, "with a depth per sample"),
        (small_model(backward=meq.Implicit()), {"depth": "fixed(tracked=3)"}, "both say which steps have gradients"),
        (small_model(backward=meq.Phantom(2)), {"depth": "poisson(8)"}, "both say which steps have gradients"),
        (small_model(backward=meq.Checkpointed()), {"depth": "settle(2, 8)"}, "both say which steps have gradients"),
    ],
)
def test_options_that_a_model_cannot_have_are_refused_before_training(
    model: Any, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        fit(model, small_data(), Objective(), tmp_path / "run", replace(small_config(), **options))
