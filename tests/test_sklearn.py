"""The estimators keep scikit-learn's contract, and work wherever its own do."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification, make_regression
from sklearn.inspection import permutation_importance
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from meq.sklearn import EquilibriumClassifier, EquilibriumRegressor

SMALL: dict[str, Any] = {"dim": 8, "heads": 1, "steps": 2, "batch_size": 256, "random_state": 0}
QUICK = {**SMALL, "epochs": 4, "learning_rate": 3e-2}
"""Learns enough for the checks, in a few updates."""
BETTER = {**SMALL, "epochs": 6, "learning_rate": 5e-2}
SINGLE_PRECISION = {
    "check_sample_weight_equivalence_on_dense_data": (
        "weights and repeated rows agree to the rounding of single precision, and this compares seven digits and more; "
        "test_a_weight_counts_as_a_repeated_row holds them to five"
    )
}

pytestmark = pytest.mark.usefixtures("unchecked")
"""Shapes are checked where models are tested; here it would take as long as the training."""


@parametrize_with_checks(
    [EquilibriumClassifier(**QUICK), EquilibriumRegressor(**BETTER)],
    expected_failed_checks=lambda estimator: SINGLE_PRECISION,
)
def test_the_contract_of_scikit_learn_is_kept(estimator: Any, check: Any) -> None:
    check(estimator)


def some_classes(rows: int = 60, **options: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two classes by two columns of six."""
    given = {"n_features": 6, "n_informative": 2, "n_redundant": 0, "class_sep": 2.0, "random_state": 0, **options}
    x, y = make_classification(rows, **given)
    return x, y


@pytest.mark.parametrize("estimator", [EquilibriumClassifier(**QUICK), EquilibriumRegressor(**QUICK)])
def test_a_weight_counts_as_a_repeated_row(estimator: Any) -> None:
    x, y = some_classes(20)
    times = np.arange(20) % 4
    weighted = clone(estimator).fit(x, y, sample_weight=times)
    repeated = clone(estimator).fit(x.repeat(times, axis=0), y.repeat(times))
    method = "predict_proba" if hasattr(estimator, "predict_proba") else "predict"
    np.testing.assert_allclose(getattr(weighted, method)(x), getattr(repeated, method)(x), rtol=1e-4, atol=1e-5)


def test_the_defaults_learn_flowers() -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = EquilibriumClassifier(random_state=0).fit(x[::2], names[::2])
    assert model.score(x[1::2], names[1::2]) > 0.9
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert model.decision_function(x).shape == (150, 3)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1, rtol=1e-5)
    assert len(model.loss_curve_) == model.n_iter_ == 30
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.validation_loss_curve_ is None


def test_the_regressor_learns_in_the_units_of_its_target() -> None:
    x, y = make_regression(120, 4, noise=5.0, random_state=0)
    model = EquilibriumRegressor(**{**SMALL, "epochs": 25, "learning_rate": 2e-2}).fit(x, 1000 + 10 * y)
    assert model.score(x, 1000 + 10 * y) > 0.8
    far = clone(model).fit(x, 1e9 + y / y.std())  # digits that single precision would not have
    assert far.score(x, 1e9 + y / y.std()) > 0.8


def test_it_works_in_a_pipeline_and_a_grid_search_finds_its_options() -> None:
    x, y = some_classes()
    pipeline = make_pipeline(PowerTransformer(), EquilibriumClassifier(**QUICK))
    grid = {"equilibriumclassifier__learning_rate": [1e-6, 3e-2]}
    found = GridSearchCV(pipeline, grid, cv=2).fit(x, y)
    assert found.best_params_ == {"equilibriumclassifier__learning_rate": 3e-2}
    assert found.best_estimator_.predict(x).shape == (60,)


def test_it_is_cross_validated() -> None:
    scores = cross_val_score(EquilibriumClassifier(**BETTER), *some_classes(), cv=3, scoring="roc_auc")
    assert scores.mean() > 0.8


def test_permutation_finds_the_column_that_counts() -> None:
    x = np.random.RandomState(0).randn(80, 4)
    y = x[:, 2] > 0
    model = EquilibriumClassifier(**BETTER).fit(x, y)
    found = permutation_importance(model, x, y, n_repeats=3, random_state=0)
    assert found.importances_mean.argmax() == 2
    assert found.importances_mean[2] > 0.2


def test_it_is_calibrated() -> None:
    x, y = some_classes()
    model = CalibratedClassifierCV(EquilibriumClassifier(**BETTER), cv=2).fit(x, y)
    assert model.score(x, y) > 0.8
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)


def test_class_weights_help_the_rare_class() -> None:
    x, y = some_classes(150, weights=[0.93], class_sep=0.5, flip_y=0)
    plain = EquilibriumClassifier(**BETTER).fit(x, y)
    balanced = EquilibriumClassifier(**BETTER, class_weight="balanced").fit(x, y)
    by_hand = EquilibriumClassifier(**BETTER, class_weight={0: 1.0, 1: 14.0}).fit(x, y)
    score = balanced_accuracy_score(y, plain.predict(x))
    assert balanced_accuracy_score(y, balanced.predict(x)) > score
    assert balanced_accuracy_score(y, by_hand.predict(x)) > score


def test_early_stopping_keeps_rows_for_dev_and_ends_training() -> None:
    rng = np.random.RandomState(0)
    x, y = rng.randn(80, 4), rng.randint(0, 2, 80)
    model = EquilibriumClassifier(**{**QUICK, "epochs": 40}, early_stopping=True, patience=2).fit(x, y)
    assert model.n_iter_ == model.best_epoch_ + 3 < 40
    assert len(model.validation_loss_curve_) == model.n_iter_
    alone = EquilibriumClassifier(**QUICK, early_stopping=True).fit(x, np.r_[[2], y[1:]])  # a class of a single row
    assert alone.classes_.tolist() == [0, 1, 2]
    assert EquilibriumClassifier(**QUICK).fit(x, y).validation_loss_curve_ is None  # too few rows to give some away
    many = EquilibriumRegressor(**{**QUICK, "epochs": 2}).fit(rng.randn(220, 3), rng.randn(220))
    assert many.validation_loss_curve_ is not None


def test_the_same_state_gives_the_same_model_and_torchs_generator_is_left_alone() -> None:
    x, y = some_classes(30)
    before = torch.get_rng_state()
    one, same = (EquilibriumClassifier(**QUICK).fit(x, y).predict_proba(x) for _ in range(2))
    other = EquilibriumClassifier(**{**QUICK, "random_state": 5}).fit(x, y).predict_proba(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert (one == same).all()
    assert (one != other).any()


class Listing(pickle.Unpickler):
    """Notes what a pickle imports."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.asked: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.asked.add(f"{module}:{name}")
        return super().find_class(module, name)


@pytest.mark.parametrize("kind", [EquilibriumClassifier, EquilibriumRegressor])
def test_a_pickle_holds_safetensors_and_plain_values_and_no_module(kind: Any) -> None:
    x, y = some_classes(30)
    model = kind(**QUICK).fit(x, y)
    reader = Listing(pickle.dumps(model))
    same = reader.load()
    assert (same.predict(x) == model.predict(x)).all()
    assert {each.partition(".")[0].partition(":")[0] for each in reader.asked} <= {"meq", "numpy", "builtins"}
    assert {each for each in reader.asked if each.startswith("meq")} <= {
        f"meq.sklearn.estimators:{kind.__name__}",
        "meq.sklearn.reading:Reading",
    }
    assert b'"dtype":"F32"' in pickle.dumps(model)  # the head of a safetensors file
    assert pickle.loads(pickle.dumps(kind(**QUICK))).get_params() == kind(**QUICK).get_params()
    again = clone(same)
    assert not hasattr(again, "model_")


def test_groups_say_which_columns_make_a_modality() -> None:
    x, y = some_classes(30)
    assert EquilibriumClassifier(**QUICK).fit(x, y).model_.widths == {"first": 3, "second": 3}
    lists = EquilibriumClassifier(**QUICK, groups=[[0, 1], [-1], [2, 3]]).fit(x, y)
    assert lists.model_.widths == {"group_0": 2, "group_1": 1, "group_2": 2}
    changed = x.copy()
    changed[:, 4] += 10  # in no group
    assert (lists.predict_proba(changed) == lists.predict_proba(x)).all()
    named = EquilibriumClassifier(**QUICK, groups={"left": [0, 1], "right": [1, 2]}).fit(x, y)
    assert named.model_.widths == {"left": 2, "right": 2}
    assert EquilibriumClassifier(**QUICK, groups=[[0, 1]]).fit(x, y).model_.widths == {"group_0": 2, "group_0_again": 2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": [[0], [6]]}, "'group_1' has the column 6, and X has columns 0 to 5"),
        ({"groups": [[0], ["a"]]}, "X has no column 'a'"),
        ({"groups": [0, 1]}, "'group_0' must be a list of columns, got 0"),
        ({"groups": "ab"}, "`groups` must be lists of columns"),
        ({"texts": ["a"]}, "`texts` name columns of a DataFrame; X is an array"),
        ({"early_stopping": "yes"}, "`early_stopping` must be True, False or 'auto'"),
        ({"early_stopping": True, "validation_fraction": 2}, "validation_fraction must lie between 0 and 1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_wrong_options_are_told_in_words(options: dict[str, Any], words: str) -> None:
    x, y = some_classes(30)
    with pytest.raises((TypeError, ValueError), match=words):
        EquilibriumClassifier(**{**QUICK, **options}).fit(x, y)
