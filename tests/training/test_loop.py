"""meq.fit: any module on anybody's batches, in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from training.small import small_data, small_model

import meq
from meq.training import TrainConfig, TrainingError

ROWS, WIDTH = 24, 4


def some_batches(count: int = 3, *, rows: int = 8, **more: Any) -> list[dict[str, Any]]:
    """Two modalities whose sum decides the class."""
    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(count):
        a, b = (torch.randn(rows, WIDTH, generator=generator) for _ in range(2))
        batches.append({"features": {"a": a, "b": b}, "target": (a[:, 0] + b[:, 0] > 0).long(), **more})
    return batches


def equilibrium(**options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    given: dict[str, Any] = {"dim": 8, "heads": 2, "steps": 2, "head_width": 8, "mixer": "mlp", **options}
    return meq.MutualEquilibrium({"a": WIDTH, "b": WIDTH}, given.pop("classes", 2), **given)


class Larger(nn.Module):
    """Encoders of its own, an equilibrium in the middle, a head of its own."""

    def __init__(self, *, answer: str = "logits") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict({"a": nn.Linear(WIDTH, 6), "b": nn.Linear(WIDTH, 6)})
        self.fusion = meq.MutualEquilibrium({"a": 6, "b": 6}, 2, 8, heads=2, steps=2, head_width=8, mixer="mlp")
        self.answer = answer

    def forward(self, batch: dict[str, Any]) -> Any:
        encoded = {name: self.encoders[name](x) for name, x in batch["features"].items()}
        output = self.fusion(encoded)
        return output if self.answer == "output" else output.logits


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([x.detach().flatten().clone() for x in model.parameters()])


def test_a_model_learns_from_a_list_of_batches() -> None:
    model, batches = equilibrium(), some_batches()
    fitted = meq.fit(model, batches, batches, epochs=15, learning_rate=2e-2, metric="accuracy", patience=None)
    assert fitted.best.score is not None
    assert fitted.best.score > 0.9
    assert fitted.history[0].train_loss > fitted.best.train_loss
    assert not model.training
    assert "15 epochs, 45 updates" in str(fitted)
    assert f"the weights are those of epoch {fitted.best_epoch}" in str(fitted)


def test_tuples_whole_batches_and_collated_examples_are_read() -> None:
    pairs = [(batch["features"], batch["target"]) for batch in some_batches()]
    assert meq.fit(equilibrium(), pairs, epochs=1).task == "classes"
    data = small_data(train=16)
    loader = DataLoader(data.splits["train"], batch_size=8, collate_fn=data.collate)  # type: ignore[arg-type]
    assert meq.fit(small_model(), loader, epochs=1).history[0].step == 2


def test_a_larger_network_gets_the_whole_batch_and_all_of_it_learns() -> None:
    network, batches = Larger(), some_batches(note="of its own")
    before = {name: x.clone() for name, x in network.named_parameters()}
    fitted = meq.fit(network, batches, batches, epochs=2, learning_rate=1e-2)
    moved = [name for name, x in network.named_parameters() if not torch.equal(x, before[name])]
    assert {"encoders.a.weight", "encoders.b.weight"} <= set(moved)
    assert any(name.startswith("fusion.coupling") for name in moved)
    assert fitted.task == "classes"


def test_call_says_how_a_module_is_called() -> None:
    linear = nn.Linear(WIDTH, 1)
    batches = [{"features": {"a": torch.randn(4, WIDTH)}, "target": torch.randn(4)}]
    fitted = meq.fit(linear, batches, epochs=1, call=lambda model, batch: model(batch["features"]["a"])[:, 0])
    assert fitted.task == "score"


def test_penalties_hold_the_equilibrium_inside_a_larger_network() -> None:
    objective = meq.Objective(penalties=(meq.ResidualCorrection(weight=5.0),))
    batches = some_batches()

    def gap(penalised: bool) -> float:
        network = Larger(answer="output")
        meq.fit(network, batches, epochs=5, learning_rate=1e-2, objective=objective if penalised else None)
        solution = network(batches[0]).solution
        return float(torch.stack(list(solution.final_residual.values())).mean())

    assert gap(True) < gap(False)
    with pytest.raises(ValueError, match="Larger gives has no `solution` for them to hold"):
        meq.fit(Larger(), batches, epochs=1, objective=objective)


def test_weights_say_how_much_a_sample_counts() -> None:
    batches = some_batches(rows=4)
    ignored = [{**batch, "weight": torch.tensor([1.0, 1, 0, 0])} for batch in batches]
    fewer = [
        {"features": {name: x[:2] for name, x in batch["features"].items()}, "target": batch["target"][:2]}
        for batch in batches
    ]
    one, other = equilibrium(), equilibrium()
    first, second = meq.fit(one, ignored, ignored, epochs=2), meq.fit(other, fewer, fewer, epochs=2)
    torch.testing.assert_close(weights_of(one), weights_of(other), rtol=0, atol=1e-5)
    assert first.best.dev_loss == pytest.approx(second.best.dev_loss, abs=1e-5)


def test_the_best_weights_on_dev_are_restored_and_patience_ends_it() -> None:
    batches, wrong = some_batches(), [{**batch, "target": 1 - batch["target"]} for batch in some_batches()]
    model, seen = equilibrium(), []
    fitted = meq.fit(
        model, batches, wrong, epochs=30, learning_rate=2e-2, patience=2, progress=lambda epoch: seen.append(epoch)
    )
    assert len(fitted.history) == fitted.best_epoch + 3 < 30
    assert tuple(seen) == fitted.history
    assert "no better on dev for 2 epochs" in str(fitted)
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(batch["features"]).logits, batch["target"]) for batch in wrong]
    assert float(torch.stack(losses).mean()) == pytest.approx(fitted.best.dev_loss, abs=1e-5)


def test_an_interrupted_training_leaves_the_best_weights() -> None:
    model, kept = equilibrium(), []

    def stop(epoch: Any) -> None:
        kept.append(weights_of(model))
        if epoch.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        meq.fit(model, some_batches(), epochs=3, progress=stop)
    assert torch.equal(weights_of(model), kept[1])
    assert not model.training


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_generator_alone() -> None:
    class Dropped(Larger):
        def forward(self, batch: dict[str, Any]) -> Any:
            return nn.functional.dropout(super().forward(batch), 0.5, self.training)

    rows = [(x, y) for batch in some_batches() for x, y in zip(batch["features"]["a"], batch["target"], strict=True)]

    def together(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
        x, y = map(torch.stack, zip(*samples, strict=True))
        return {"features": {"a": x, "b": x}, "target": y}

    def trained(seed: int, noise: int) -> Tensor:
        network = Dropped()
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        meq.fit(network, DataLoader(rows, batch_size=8, shuffle=True, collate_fn=together), epochs=2, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return weights_of(network)

    assert torch.equal(trained(1, 5), trained(1, 6))
    assert not torch.equal(trained(1, 5), trained(2, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"depth": "uniform(1, 4)", "average": 0.9},
        {"depth": "settle(1, 3, free=4, tracked=2, per_sample=True)", "random_start": 0.5},
        {"supervise": 2, "supervise_decay": 0.5, "path_noise": 0.1, "decay": "linear", "select": "last"},
    ],
)
def test_recipes_of_depth_reach_an_equilibrium_inside_a_network(options: dict[str, Any]) -> None:
    network, batches = Larger(answer="output"), some_batches()
    config = TrainConfig(epochs=2, learning_rate=1e-2, **options)
    fitted = meq.fit(network, batches, batches, config=config)
    plain = Larger(answer="output")
    meq.fit(plain, batches, batches, config=TrainConfig(epochs=2, learning_rate=1e-2))
    assert not torch.equal(weights_of(network), weights_of(plain))
    assert network.fusion.steps == 2
    assert network.fusion.supervised == 1
    assert network.fusion.plan is None
    if config.select == "last":
        assert fitted.best_epoch == 1


class OnceMore:
    """Claims to begin anew, and does not."""

    def __init__(self, batches: list[Any]) -> None:
        self.left = iter(batches)

    def __iter__(self) -> Iterator[Any]:
        return self.left

    def __len__(self) -> int:
        return 3


BATCH = some_batches(1)[0]


@pytest.mark.parametrize(
    ("loader", "error", "words"),
    [
        (
            (each for each in some_batches()),
            ValueError,
            "`train_loader` is a generator, which is empty after",
        ),
        (OnceMore(some_batches()), TrainingError, "train_loader gave no batch in epoch 1, though it had some before"),
        ([], TrainingError, "train_loader gave no batch in epoch 0"),
        (BATCH, TypeError, "got one dict: put it in a list"),
        (5, TypeError, "must be an iterable of batches, such as a DataLoader, got int"),
        ([BATCH["target"]], TypeError, "batch 0 of train_loader in epoch 0 is a Tensor: a batch is a dict"),
        ([(1, 2, 3)], TypeError, "is a tuple of 3: a batch is a dict"),
        ([{"features": BATCH["features"], "traget": 1}], ValueError, "unknown key 'traget': did you mean 'target'"),
        ([{"features": BATCH["features"]}], ValueError, "has no 'target'"),
        ([{**BATCH, "weight": [1.0, 2.0]}], ValueError, r"`weight` has shape \(2,\), with 8 targets it must be \(8,\)"),
        ([{**BATCH, "weight": [-1.0] * 8}], ValueError, "`weight` must be 0 or positive"),
        ([{**BATCH, "ids": ["x"]}], ValueError, "there are 1 ids and 8 targets"),
        ([{**BATCH, "target": "yes"}], TypeError, "'target' cannot be made a tensor"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value[:30],
)
def test_what_is_no_batch_is_told_in_words(loader: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        meq.fit(equilibrium(), loader, epochs=2)


def test_a_key_of_a_larger_network_is_its_own_but_the_target_is_needed() -> None:
    with pytest.raises(ValueError, match="has no 'target': did you mean 'targets'"):
        meq.fit(Larger(), [{"features": BATCH["features"], "targets": BATCH["target"]}], epochs=1)


def test_a_loss_that_is_not_finite_names_the_batch_and_the_sample_and_changes_nothing() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 2)

        def forward(self, batch: dict[str, Any]) -> Tensor:
            return self.layer(batch["features"]["a"])

    batches = some_batches()
    for number, batch in enumerate(batches):
        batch["ids"] = [f"row-{number}-{row}" for row in range(8)]
    batches[1]["features"]["a"][5] = torch.inf
    model = Breaks()
    with pytest.raises(TrainingError, match=r"loss is not finite in batch 1 of train_loader in epoch 0, .* row-1-5"):
        meq.fit(model, batches, epochs=1)
    assert bool(torch.isfinite(weights_of(model)).all())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"epoch": 3}, TypeError, r"fit\(\) has no option 'epoch': did you mean 'epochs'"),
        ({"patience": 0}, ValueError, "patience must be a whole number of at least 1"),
        ({"metric": "acuracy"}, ValueError, "did you mean 'accuracy'"),
        ({"metric": "accuracy"}, ValueError, "is for dev: give a `dev_loader`"),
        ({"config": TrainConfig(batch_size=8)}, ValueError, "meq.fit takes no batch_size from a TrainConfig"),
        ({"device": "gpu"}, ValueError, "there is no device 'gpu'"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
    ],
)
def test_wrong_options_are_told_before_anything_is_computed(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        meq.fit(equilibrium(), some_batches(), **options)


def test_models_that_cannot_be_trained_so_are_told() -> None:
    with pytest.raises(ValueError, match="nothing in Linear iterates, so it has no depth to train: leave out depth"):
        meq.fit(nn.Linear(2, 2), some_batches(), config=TrainConfig(depth="uniform(2, 8)"))
    with pytest.raises(ValueError, match="ReLU has no weights to train"):
        meq.fit(nn.ReLU(), some_batches())
    with pytest.raises(TypeError, match="gave a dict: it must give an Output with logits, or logits"):
        meq.fit(nn.Linear(2, 2), some_batches(), call=lambda model, batch: {"x": 1})
    with pytest.raises(TypeError, match="gave logits that are None"):
        meq.fit(equilibrium(classes=None), some_batches())
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got int"):
        meq.fit(5, some_batches())  # type: ignore[arg-type]


def test_a_loader_without_a_length_is_counted() -> None:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter(some_batches())

    assert meq.fit(equilibrium(), Stream(), epochs=2).history[-1].step == 6


def test_fit_needs_neither_accelerate_nor_rich_nor_pyarrow() -> None:
    code = (
        "import sys, torch, meq\n"
        "batch = {'features': {'a': torch.randn(4, 3), 'b': torch.randn(4, 3)}, 'target': torch.tensor([0, 1, 0, 1])}\n"
        "model = meq.MutualEquilibrium({'a': 3, 'b': 3}, 2, 8, heads=2, steps=2, head_width=8)\n"
        "print(meq.fit(model, [batch], epochs=1))\n"
        "assert not {'accelerate', 'rich', 'pyarrow', 'typer', 'pandas'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "1 epoch, 1 updates" in done.stdout
