"""What is wrong with a training is said before anything that takes long; Python's words are for Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meq import MutualEquilibrium
from meq.data.contract import collate
from meq.data.request import DataRequest, open_data
from meq.objectives import Objective
from meq.runs.train_on import train_on
from meq.training import TrainConfig
from meq.training.arms import ARMS, SHAPE, check_recipe, make_model
from meq.training.config import check_model, check_splits, check_trackers
from meq.training.fit import Training

DATA = open_data("statements", train=24, dev=8, test=8)
SIZE = {"dim": 8, "heads": 2, "steps": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, got 2.5"),
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"epochs": True}, "epochs must be a whole number, got True"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite, got inf"),
        ({"learning_rate": "fast"}, "learning_rate must be positive and finite, got 'fast'"),
        ({"weight_decay": float("nan")}, "weight_decay must be not negative and finite"),
        ({"clip": 0}, "clip must be positive and finite, got 0"),
        ({"warmup": 1.0}, r"warmup must lie in \[0, 1\)"),
        ({"radius_samples": -1}, "radius_samples must be at least 0"),
        ({"seed": 2**64}, r"seed must be less than 2\*\*64"),
        ({"decay": None}, "decay cannot be None"),
    ],
)
def test_a_recipe_that_cannot_train_is_refused_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)


def test_trackers_are_a_tuple_of_known_names() -> None:
    with pytest.raises(TypeError, match="trackers must be a tuple of names"):
        TrainConfig(trackers="wandb")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        check_trackers(("tensorbord",))


@pytest.mark.parametrize("missing", ["train", "dev"])
def test_a_missing_split_is_said_before_anything_is_trained(missing: str, tmp_path: Path) -> None:
    data = replace(DATA, splits={name: part for name, part in DATA.splits.items() if name != missing})
    with pytest.raises(ValueError, match=f"statements has no {missing} split, which training needs"):
        check_splits(data, TrainConfig())
    with pytest.raises(ValueError, match=f"statements has no {missing} split"):
        train(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("classes", [1, 3])
def test_a_model_for_other_labels_is_refused(classes: int, tmp_path: Path) -> None:
    """Three outputs for two labels would train without a word."""
    with pytest.raises(ValueError, match=rf"has {classes} classes and statements has 2 labels \(false, true\)"):
        train(DATA, tmp_path / "run", classes=classes)
    assert not (tmp_path / "run").exists()


def test_a_model_for_other_modalities_or_another_head_is_refused() -> None:
    widths = dict(DATA.widths)
    with pytest.raises(ValueError, match="reads the modalities audio, text, and statements has image, text"):
        check_model(MutualEquilibrium({"audio": 3, "text": widths["text"]}, 2, **SIZE), DATA)
    with pytest.raises(ValueError, match="reads 'image' as features of width 3, and statements has features of 17"):
        check_model(MutualEquilibrium({**widths, "image": 3}, 2, **SIZE), DATA)
    with pytest.raises(ValueError, match="has the head 'labels' and statements asks for 'classes'"):
        check_model(MutualEquilibrium(widths, 2, head="labels", **SIZE), DATA)


@pytest.mark.parametrize(
    ("arm", "shape", "penalties", "message"),
    [
        ("meqq", {}, {}, "there is no arm 'meqq': did you mean 'meq'"),
        ("meq", {"heads": 5}, {}, "cannot be split into 5 heads"),
        ("meq-gmlp", {"dropout": 2.0}, {}, "dropout must lie"),
        ("meq", {}, {"jacobian-range": {"weight": float("nan")}}, r"JacobianRange\(weight\) must be 0"),
        ("meq", {}, {"residual-correction": {"weight": -1.0}}, r"ResidualCorrection\(weight\) must be 0"),
        ("meq", {}, {"jacobian-rnage": {}}, "there is no penalty 'jacobian-rnage': did you mean 'jacobian-range'"),
    ],
)
def test_a_model_that_cannot_be_built_is_known_before_the_data(
    arm: str, shape: dict[str, Any], penalties: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        check_recipe(arm, {**SHAPE, **shape}, penalties)
    if not penalties:
        with pytest.raises(ValueError, match=message):
            train_on(DataRequest(data=str(tmp_path / "never-read.csv")), tmp_path, arm=arm, shape=shape)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_that_the_command_line_names_can_be_built(arm: str) -> None:
    check_recipe(arm, {**SHAPE, "dim": 4096})
    model = make_model(arm, DATA, SIZE)
    batch = collate(DATA.splits["dev"][:2], DATA.widths)
    assert model(batch.features, batch.masks).logits.shape == (2, 2)


def test_a_tree_that_was_told_no_order_merges_one_after_the_other() -> None:
    assert make_model("tree", DATA, SIZE).order == ("image", "text")


def train(data: Any, folder: Path, *, classes: int = 2) -> None:
    model = MutualEquilibrium(dict(data.widths), classes, **SIZE)
    Training(model, data, Objective(task=data.head), folder, TrainConfig(epochs=1, batch_size=8))
