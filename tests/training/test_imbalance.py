"""Weights of classes: balanced by train, or from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from training.small import WIDTHS, small_config, small_data

import meq
from meq.data import DataSet
from meq.objectives import Objective
from meq.training import TrainConfig, fit
from meq.training.imbalance import balanced_weights, class_weights, label_counts
from meq.training.predictions import read_predictions

QUIET = Console(quiet=True)


def light_model() -> meq.FusionModel:
    return meq.Concat(WIDTHS, 2, dim=8, heads=2)


def with_targets(targets: list[Any], head: str = "classes", labels: tuple[str, ...] = ("no", "yes")) -> DataSet:
    """The small data whose train split has these targets."""
    data = small_data(train=len(targets))
    train = [replace(x, target=torch.tensor(y)) for x, y in zip(data.splits["train"], targets, strict=True)]
    return replace(data, splits={**data.splits, "train": train}, head=head, labels=labels)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    targets = [0] * 7 + [1] * 2 + [2] * 3
    data = with_targets(targets, labels=("a", "b", "c"))
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(3), y=np.array(targets))
    assert balanced_weights(data) == pytest.approx(expected)
    absent = with_targets(targets, labels=("a", "b", "c", "d"))
    assert balanced_weights(absent) == pytest.approx((*expected, 1.0)), "a class that train lacks counts 1"


def test_of_several_labels_having_one_weighs_as_much_as_not_having_it() -> None:
    data = with_targets([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], head="labels")
    assert label_counts(data) == ([2.0, 0.0], 4)
    assert balanced_weights(data) == (1.0, 1.0)
    rare = with_targets([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], head="labels")
    assert balanced_weights(rare) == pytest.approx((3.0, 1 / 3))


def test_tokens_that_are_not_asked_are_not_counted() -> None:
    data = with_targets([[0, 1, -1], [1, 1, -1]], head="tokens")
    assert label_counts(data)[0] == [1, 3]


def test_a_file_of_weights_names_labels_and_others_count_one(tmp_path: Path) -> None:
    place = tmp_path / "weights.json"
    place.write_text('{"yes": 5}')
    assert class_weights(small_data(), TrainConfig(class_weight=str(place))) == (1.0, 5.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"yess": 5}', "has a weight for 'yess', no label: did you mean 'yes'"),
        ('{"yes": -1}', "the weight of 'yes' must be 0 or a positive number"),
        ('{"yes": 0, "no": 0}', "gives every label a weight of 0"),
        ("[1, 2]", "must hold labels with their weights"),
        ("{", "weights.json: not JSON"),
        ('{"yes": 1, "yes": 2}', "the key 'yes' is there twice"),
    ],
)
def test_a_wrong_file_of_weights_is_an_error_that_says_what(content: str, message: str, tmp_path: Path) -> None:
    place = tmp_path / "weights.json"
    place.write_text(content)
    with pytest.raises(ValueError, match=message):
        class_weights(small_data(), TrainConfig(class_weight=str(place)))


def test_a_misspelled_word_and_a_missing_file_are_told_apart() -> None:
    with pytest.raises(ValueError, match="class_weight cannot be 'balancd': did you mean 'balanced'"):
        class_weights(small_data(), TrainConfig(class_weight="balancd"))
    with pytest.raises(ValueError, match=r"there is no file nowhere/weights\.json"):
        class_weights(small_data(), TrainConfig(class_weight="nowhere/weights.json"))
    score = replace(small_data(), head="score")
    with pytest.raises(ValueError, match="class_weight has no meaning for the task 'score'"):
        class_weights(score, TrainConfig(class_weight="balanced"))


def test_a_run_is_trained_with_the_weights_and_its_record_has_them(tmp_path: Path) -> None:
    data = small_data()
    config = small_config(epochs=1, class_weight="balanced", label_smoothing=0.1)
    record = fit(light_model(), data, Objective(), tmp_path, config, console=QUIET)
    assert record.objective.class_weights == balanced_weights(data)
    assert record.objective.label_smoothing == 0.1
    assert record.config["class_weight"] == "balanced"
    plain = fit(light_model(), data, Objective(), tmp_path / "plain", small_config(epochs=1), console=QUIET)
    assert plain.objective.class_weights == ()
    assert "class_weight" not in plain.config


def test_weights_change_what_is_learned_as_they_say(tmp_path: Path) -> None:
    place = tmp_path / "weights.json"
    place.write_text('{"yes": 100, "no": 0.01}')
    config = small_config(epochs=4, class_weight=str(place))
    fit(light_model(), small_data(), Objective(), tmp_path / "run", replace(config, select="last"), console=QUIET)
    found = read_predictions(tmp_path / "run" / "predictions" / "dev.parquet")
    assert bool((found.logits.argmax(1) == 1).all()), "with such weights, yes is the answer to everything"
