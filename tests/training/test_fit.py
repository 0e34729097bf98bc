from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from plain import run_plain
from rich.console import Console
from training.small import small_config, small_data, small_model, train_small

import meq
from meq.data.metrics import Metric
from meq.objectives import Objective
from meq.training import TrainConfig, fit
from meq.training.checkpoint import rng_state, set_rng_state
from meq.training.record import read_record
from meq.training.updates import Schedule, epoch_order, make_optimiser, sample_seeds, seed_everything


def test_the_learning_rate_warms_up_linearly_and_then_decays_to_zero() -> None:
    schedule = Schedule(total_steps=200, peak=1.0)
    rates = [schedule.at(step) for step in range(200)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[105] == pytest.approx(0.5)
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))
    assert rates[-1] < 1e-3
    assert Schedule(total_steps=100, peak=1.0, decay="constant").at(99) == 1.0
    assert Schedule(total_steps=100, peak=1.0, decay="linear", warmup=0.0).at(50) == 0.5


def test_scalars_norms_and_biases_do_not_decay() -> None:
    model = small_model(damping="learned")
    optimiser = make_optimiser(model, 1e-3, 0.01)
    decayed, spared = ({id(p) for p in group["params"]} for group in optimiser.param_groups)
    assert optimiser.param_groups[0]["weight_decay"] == 0.01
    assert optimiser.param_groups[1]["weight_decay"] == 0.0
    for name, p in model.named_parameters():
        scalar = (
            name == "damping"
            or name.endswith(("balance", "bias", "norm.weight", "settle.weight"))
            or "stand_ins" in name
        )
        assert (id(p) in spared) is scalar, name
        assert (id(p) in decayed) is not scalar, name


@pytest.mark.parametrize("gate", [True, False])
def test_what_a_model_does_not_have_is_a_dash_in_the_line_of_an_epoch(gate: bool, tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=200)
    fit(small_model(gate=gate), small_data(), Objective(), tmp_path, small_config(epochs=1), console=console)
    line = next(line for line in said.getvalue().splitlines() if line.startswith("epoch 0:"))
    assert ("gate -" in line) is not gate
    assert "nan" not in line


def test_training_lowers_the_loss_and_records_what_happened(tmp_path: Path) -> None:
    record = train_small(tmp_path, epochs=6)
    assert read_record(tmp_path) == record
    assert record.status == "finished"
    assert [entry["epoch"] for entry in record.curves] == list(range(6))
    assert record.curves[-1]["train_loss"] < record.curves[0]["train_loss"]
    assert record.selected.by == "best"
    assert record.selected.value == max(entry["accuracy"] for entry in record.curves)
    assert set(record.metrics) == {"dev", "test"}
    assert set(record.metrics["test"]) == {"accuracy", "loss"}
    assert record.metrics["dev"]["accuracy"] == record.selected.value, "the selected weights, once more"
    assert record.data.fingerprint == small_data().fingerprint()
    assert record.alarms == ()


def test_every_labelled_split_is_scored_by_every_metric_and_an_unlabelled_one_is_not(tmp_path: Path) -> None:
    data = small_data()
    hidden = [replace(example, target=None) for example in data.splits["test"]]
    splits = {**data.splits, "test": hidden, "dev_unseen": data.splits["test"]}
    data = replace(data, splits=splits, also=(Metric(name="share of yes", score=lambda logits, target: 0.25),))
    quiet = Console(quiet=True)
    record = fit(small_model(), data, Objective(), tmp_path, small_config(epochs=1), console=quiet)
    assert set(record.metrics) == {"dev", "dev_unseen"}
    assert all(set(found) == {"accuracy", "share of yes", "loss"} for found in record.metrics.values())
    assert {path.stem for path in (tmp_path / "predictions").iterdir()} == {"dev", "dev_unseen"}


def test_the_kept_weights_are_those_of_the_selected_epoch(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    last = train_small(tmp_path / "last", select="last", epochs=3)
    assert last.selected.epoch == 2
    kept = load_file(tmp_path / "last" / "model" / "model.safetensors")
    final = load_file(sorted((tmp_path / "last" / "checkpoints").glob("step-*"))[-1] / "model.safetensors")
    assert all(torch.equal(kept[name], x) for name, x in final.items())
    model = meq.FusionModel.from_pretrained(tmp_path / "last" / "model")
    assert isinstance(model, meq.MutualEquilibrium)


def test_too_few_examples_for_one_update_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 48 examples, fewer than the 64 of one update"):
        train_small(tmp_path, batch_size=64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"decay": "cosin"}, "did you mean 'cosine'"),
        ({"select": "bets"}, "did you mean 'best'"),
        ({"precision": "bf61"}, "did you mean 'bf16'"),
        ({"learning_rate": -1.0}, "must be positive"),
    ],
)
def test_a_wrong_recipe_is_answered_in_words(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'epochs'"):
        TrainConfig(epoch=3)


def test_a_samples_seed_depends_on_seed_step_and_id_alone() -> None:
    together, alone = sample_seeds(1, 5, ["a", "b", "c"]), sample_seeds(1, 5, ["b"])
    assert together[1] == alone[0]
    assert (
        len(set(together.tolist()) | set(sample_seeds(1, 6, ["a"]).tolist()) | set(sample_seeds(2, 5, ["a"]).tolist()))
        == 5
    )


def test_an_epochs_order_is_a_fixed_permutation() -> None:
    assert sorted(epoch_order(0, 1, 50)) == list(range(50))
    assert epoch_order(0, 1, 50) == epoch_order(0, 1, 50)
    assert epoch_order(0, 1, 50) != epoch_order(0, 2, 50)


def test_the_generators_state_survives_json() -> None:
    import random

    import numpy as np

    seed_everything(4)
    state = json.loads(json.dumps(rng_state()))
    first = (random.random(), np.random.rand(), torch.rand(3))  # noqa: NPY002
    set_rng_state(state)
    second = (random.random(), np.random.rand(), torch.rand(3))  # noqa: NPY002
    assert first[:2] == second[:2]
    assert torch.equal(first[2], second[2])


def bf16_run(folder: str) -> None:
    record = train_small(Path(folder), precision="bf16", tol=0.0)
    assert record.status == "finished"
    assert math.isfinite(record.curves[-1]["train_loss"])


def test_mixed_precision_trains(tmp_path: Path) -> None:
    run_plain(Path(__file__), "bf16_run", str(tmp_path))


def tracked_run(folder: str) -> None:
    train_small(Path(folder), trackers=("tensorboard",))
    assert list(Path(folder).rglob("events.out.tfevents*"))


def test_a_tracker_is_chosen_by_name(tmp_path: Path) -> None:
    run_plain(Path(__file__), "tracked_run", str(tmp_path))


def test_a_tracker_that_is_not_installed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the trackers mlflow are not installed"):
        train_small(tmp_path, trackers=("mlflow",))
