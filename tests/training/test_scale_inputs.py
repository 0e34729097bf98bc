"""First layers, scaled before training: to the size that was asked for, whatever the model, and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import zoo
from rich.console import Console
from safetensors.torch import load_file
from training.small import PENALTIES, WIDTHS, Interrupting, small_config, small_data, small_model, train_small

import meq
from meq.data import Batch, DataSet, Example, features
from meq.data.metrics import ACCURACY
from meq.errors import Interrupted
from meq.models.base import FusionModel
from meq.models.blocks import Injection, masked_mean
from meq.objectives import Objective
from meq.training import TrainConfig, seed_everything
from meq.training.fit import Training, fit
from meq.training.updates import SEEN_FIRST, epoch_order, scale_inputs

CONFIG = TrainConfig(scale_inputs=2.0, seed=5)


def data_for(widths: dict[str, int], *, lacking: str | None = None, count: int = SEEN_FIRST + 40) -> DataSet:
    """Sparse tokens, fewer or more of them; every seventh example lacks its text, and all of them what is `lacking`."""
    generator = torch.Generator().manual_seed(2)

    def tokens(row: int, width: int) -> torch.Tensor:
        drawn = torch.rand(1 + row % 3, width, generator=generator, dtype=torch.float64)
        drawn[:, 0] += 0.1  # no token is zero throughout
        return drawn * (drawn > 0.7) + 0.1 * torch.eye(width, dtype=torch.float64)[0]

    rows = []
    for row in range(count):
        here = [name for name in widths if name != lacking and not (name == "text" and row % 7 == 3)]
        content = {name: tokens(row, widths[name]) for name in here}
        rows.append(Example(id=f"{row}", content=content, target=torch.tensor(row % 2)))
    return DataSet(
        name="sparse",
        splits={"train": rows, "dev": rows[:5]},
        modalities={name: features(width) for name, width in widths.items()},
        labels=("no", "yes"),
        head="classes",
        metric=ACCURACY,
        facts={},
    )


def first_examples(data: DataSet) -> Batch:
    train = data.splits["train"]
    return data.collate([train[row] for row in epoch_order(CONFIG.seed, 0, len(train))[:SEEN_FIRST]])


def first_layers(model: FusionModel) -> list[Injection]:
    return [module for module in model.modules() if isinstance(module, Injection)]


def root_mean_square(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def given_by(layer: Injection, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """W x of every real token, or of the mean of every sample that has one."""
    pooled = type(layer) is not Injection
    rows = masked_mean(x, mask)[mask.any(1)] if pooled else x[mask]
    return rows @ layer.project.weight.detach().T


@pytest.mark.parametrize("name", zoo.MODELS)
def test_what_first_layers_give_has_the_size_that_was_asked_for(name: str) -> None:
    model = zoo.build(name)
    data = data_for(dict(model.widths))
    batch, width_of = first_examples(data), {width: name for name, width in model.widths.items()}
    scale_inputs(model, data, CONFIG)
    found = {}
    for layer in first_layers(model):
        if layer.project.in_features in width_of:  # others, in a tree, read what a pair made
            modality = width_of[layer.project.in_features]
            x, mask = batch.features[modality], batch.masks.get(modality)
            mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
            found[modality] = root_mean_square(given_by(layer, x, mask))
    assert found == pytest.approx(dict.fromkeys(model.widths, 2.0), rel=1e-9)


@pytest.mark.parametrize("name", ["tree", "tree of vectors"])
def test_in_a_tree_the_layer_above_is_measured_on_what_the_scaled_pair_makes(name: str) -> None:
    model = zoo.build(name)
    data = data_for(dict(model.widths))
    batch = first_examples(data)
    scale_inputs(model, data, CONFIG)
    (above,) = [layer for layer in first_layers(model) if layer.project.in_features == model.dim]
    seen: list[torch.Tensor] = []
    above.project.register_forward_hook(lambda layer, given, made: seen.append(made - layer.bias))
    with torch.no_grad():
        model(batch.features, batch.masks)
    assert root_mean_square(seen[0]) == pytest.approx(2.0, rel=1e-9)


def test_padding_does_not_count() -> None:
    """With it, two texts of which one is short would look small, and be scaled up too far."""
    model = small_model(torch.float64)
    short, long = torch.ones(1, 4, dtype=torch.float64), torch.ones(9, 4, dtype=torch.float64)
    data = small_data(dtype=torch.float64)
    image = torch.ones(1, 5, dtype=torch.float64)
    rows = [
        Example(id=str(row), content={"image": image, "text": text}, target=torch.tensor(0))
        for row, text in enumerate([short, long])
    ]
    data = DataSet(**{**vars(data), "splits": {**data.splits, "train": rows}})
    scale_inputs(model, data, CONFIG)
    (layer,) = [each for each in first_layers(model) if each.project.in_features == 4]
    assert root_mean_square(layer.project.weight.detach().sum(1)) == pytest.approx(2.0, rel=1e-9)


def test_biases_and_all_other_weights_are_left_alone() -> None:
    model = zoo.build("pair")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    scale_inputs(model, data_for(dict(model.widths)), CONFIG)
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert changed == {name for name in before if name.endswith("inject.project.weight")}
    for name in changed:  # by one factor each
        factors = model.state_dict()[name] / before[name]
        torch.testing.assert_close(factors, factors[0, 0].expand_as(factors))


@pytest.mark.parametrize("name", ["three modalities", "mlp", "tree", "concat", "single state", "feature sum"])
def test_a_modality_that_no_example_has_is_left_alone_and_no_hook_stays_behind(name: str) -> None:
    model = zoo.build(name)
    (audio,) = [each for each in first_layers(model) if each.project.in_features == zoo.WIDTHS["audio"]]
    before = audio.project.weight.detach().clone()
    scale_inputs(model, data_for(dict(model.widths), lacking="audio"), CONFIG)
    assert torch.equal(audio.project.weight, before)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_is_not_called_keeps_no_hook_and_neither_does_one_after_an_error() -> None:
    class Unused(meq.Concat):
        def fuse(self, *given: Any) -> Any:
            raise RuntimeError("broken")

    model = Unused({"image": 5, "text": 4}, 2, 8)
    with pytest.raises(RuntimeError, match="broken"):
        scale_inputs(model, small_data(), CONFIG)
    assert not any(module._forward_hooks for module in model.modules())


def test_dropout_has_no_part_in_it_and_the_model_stays_in_training() -> None:
    scaled = []
    for rate in (0.0, 0.9):
        torch.manual_seed(0)
        model = small_model(dropout=0.0, modality_dropout=rate).train()
        scale_inputs(model, small_data(), CONFIG)
        assert model.training
        scaled.append([layer.project.weight for layer in first_layers(model)])
    assert all(torch.equal(x, y) for x, y in zip(*scaled, strict=True))


def test_scaling_twice_is_scaling_once() -> None:
    model, data = zoo.build("pair"), data_for(zoo.PAIR)
    scale_inputs(model, data, CONFIG)
    once = [layer.project.weight.detach().clone() for layer in first_layers(model)]
    scale_inputs(model, data, CONFIG)
    for layer, weight in zip(first_layers(model), once, strict=True):
        torch.testing.assert_close(layer.project.weight.detach(), weight)


# -- whole runs --------------------------------------------------------------------------------------------------------


def begun(folder: Path, **options: Any) -> FusionModel:
    """A model as its first update finds it."""
    torch.manual_seed(0)
    model = small_model()
    Training(model, small_data(), Objective(), folder, small_config(**options), Console(quiet=True))
    return model


def test_training_begins_with_scaled_layers_and_with_the_drawn_ones_unless_asked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    drawn = small_model().state_dict()
    plain, scaled = begun(tmp_path).state_dict(), begun(tmp_path, scale_inputs=3.0).state_dict()
    assert all(torch.equal(x, plain[name]) for name, x in drawn.items())
    changed = {name for name, x in drawn.items() if not torch.equal(x, scaled[name])}
    assert changed == {name for name in drawn if name.endswith("inject.project.weight")}


def test_a_run_with_scaled_inputs_goes_on_as_if_it_had_never_been_interrupted(tmp_path: Path) -> None:
    whole = train_small(tmp_path / "whole", scale_inputs=2.0)
    seed_everything(3)
    quiet, config = Console(quiet=True), small_config(scale_inputs=2.0)
    model = small_model(damping="learned")
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        fit(model, small_data(), Interrupting(penalties=PENALTIES), tmp_path / "broken", config, console=quiet)
    again = train_small(tmp_path / "broken", resume=True, scale_inputs=2.0)
    assert len(again.sessions) == 2
    assert again.metrics == whole.metrics
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_a_record_names_the_scale_of_inputs_only_where_it_is_set(tmp_path: Path) -> None:
    assert "scale_inputs" not in train_small(tmp_path / "plain", epochs=1).config
    assert train_small(tmp_path / "scaled", epochs=1, scale_inputs=2.0).config["scale_inputs"] == 2.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "two", True, None])
def test_a_scale_that_is_no_size_is_refused_in_words(value: Any) -> None:
    with pytest.raises(ValueError, match="scale_inputs must be 0 or positive, got"):
        TrainConfig(scale_inputs=value)


def test_a_model_with_first_layers_of_its_own_alone_is_refused_in_words() -> None:
    parts = {name: meq.Parts(inject=torch.nn.Linear(width, 8)) for name, width in WIDTHS.items()}
    with pytest.raises(ValueError, match=r"scale_inputs scales the first layers .* leave it out"):
        scale_inputs(small_model(parts=parts), small_data(), small_config(scale_inputs=1.0))
