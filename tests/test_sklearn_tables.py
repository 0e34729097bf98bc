"""The estimators on frames of pictures, texts, categories and numbers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image
from sklearn.inspection import permutation_importance
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from meq.data.findings import DataError
from meq.sklearn import EquilibriumClassifier, EquilibriumRegressor
from meq.sklearn.columns import find_roles
from meq.sklearn.reading import encoder_named

pytestmark = pytest.mark.usefixtures("unchecked")
QUICK: dict[str, Any] = {
    **{"dim": 8, "heads": 2, "steps": 2, "epochs": 6, "learning_rate": 2e-2, "random_state": 0},
    **{"image_encoder": "patches", "text_encoder": "words"},
}
ROWS = 24
COLOURS = ("red", "blue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures")
    for colour in COLOURS:
        Image.new("RGB", (24, 24), colour).save(place / f"{colour}.png")
    return place


@pytest.fixture
def frame() -> pandas.DataFrame:
    """Warm where the picture is red; the rest is said beside it."""
    rng = np.random.RandomState(0)
    kinds = np.arange(ROWS) % 2
    return pandas.DataFrame(
        {
            "photo": [f"{COLOURS[kind]}.png" for kind in kinds],
            "caption": [f"number {row} of a long series of pictures" for row in range(ROWS)],
            "size": rng.randn(ROWS),
            "count": rng.randint(0, 9, ROWS),
            "place": [("north", "south", "east")[row % 3] for row in range(ROWS)],
            "sunny": rng.rand(ROWS) > 0.5,
        }
    )


@pytest.fixture
def labels() -> np.ndarray[Any, Any]:
    return np.where(np.arange(ROWS) % 2, "cold", "warm")


def test_roles_are_found_by_dtype_and_look(frame: pandas.DataFrame) -> None:
    roles = find_roles(frame.assign(kind=pandas.Categorical(["a", "b"] * (ROWS // 2))), {})
    assert roles.images == ("photo",)
    assert roles.texts == ("caption",)
    assert roles.numbers == ("size", "count", "sunny")
    assert roles.categories == {"place": ("east", "north", "south"), "kind": ("a", "b")}


def test_roles_can_be_given(frame: pandas.DataFrame) -> None:
    roles = find_roles(frame, {"texts": ["place", "photo"], "categories": ["count"], "numbers": None})
    assert roles.texts == ("photo", "caption", "place")
    assert set(roles.categories) == {"count"}
    assert not roles.images


def test_a_whole_number_is_the_same_category_as_a_float(frame: pandas.DataFrame, labels: Any) -> None:
    x = frame[["count", "size"]]
    model = EquilibriumClassifier(**{**QUICK, "epochs": 1}, categories=["count"]).fit(x, labels)
    assert (model.predict_proba(x.astype({"count": float})) == model.predict_proba(x)).all()


def test_pictures_texts_categories_and_numbers_are_learned_from(
    frame: pandas.DataFrame, labels: Any, folder: Path
) -> None:
    model = EquilibriumClassifier(**QUICK, root=folder).fit(frame, labels)
    assert model.score(frame, labels) == 1
    assert model.feature_names_in_.tolist() == list(frame.columns)
    assert model.n_features_in_ == 6
    assert model.model_.widths == {
        "numbers": 3 + 3,
        "photo": encoder_named("patches", "image").width,
        "caption": encoder_named("words", "text").width,
    }
    gaps = frame.head(3).copy()
    gaps.loc[0, "photo"] = None
    gaps.loc[1, "caption"] = np.nan
    gaps.loc[2, "place"] = "a place that nobody knows"
    assert set(model.predict(gaps)) <= {"warm", "cold"}
    found = permutation_importance(model, frame, labels, n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 0


def test_a_pickled_estimator_reads_frames_as_before(frame: pandas.DataFrame, labels: Any, folder: Path) -> None:
    model = EquilibriumClassifier(**{**QUICK, "epochs": 1}, root=folder).fit(frame, labels)
    data = pickle.dumps(model)
    assert b"torch" not in data
    same = pickle.loads(data)
    assert (same.predict_proba(frame) == model.predict_proba(frame)).all()


def test_an_encoder_with_other_weights_is_refused(frame: pandas.DataFrame, labels: Any, folder: Path) -> None:
    model = EquilibriumClassifier(**{**QUICK, "epochs": 1}).fit(frame[["caption", "size"]], labels)
    name, hashed = model._reading.encoders["text"]
    model._reading.encoders["text"] = (name, "0" * len(hashed))
    with pytest.raises(DataError, match=r"text encoder 'words' has other weights here .* than when this estimator was"):
        model.predict(frame[["caption", "size"]])


def test_texts_alone_are_read_by_both_sides_in_a_pipeline(labels: Any) -> None:
    texts = [f"picture {row} that is quite {'warm' if row % 2 == 0 else 'cold'}" for row in range(ROWS)]
    pipeline = make_pipeline(
        FunctionTransformer(lambda x: x.apply(lambda column: column.str.upper())), EquilibriumClassifier(**QUICK)
    )
    scores = cross_val_score(pipeline, pandas.DataFrame({"words": texts}), labels, cv=2)
    assert scores.mean() > 0.8


def test_a_regressor_reads_frames_with_groups_of_columns(frame: pandas.DataFrame) -> None:
    x = frame[["size", "count", "place", "sunny"]]
    model = EquilibriumRegressor(**{**QUICK, "epochs": 20}, groups={"a": ["size"], "b": ["place", 1]}).fit(
        x, frame["size"]
    )
    assert model.model_.widths == {"a": 1, "b": 4}
    assert model.score(x, frame["size"]) > 0.5
    assert EquilibriumRegressor(**{**QUICK, "epochs": 1}).fit(x, frame["size"]).model_.widths == {
        "first": 2,  # size, count
        "second": 4,  # three places, and sunny
    }


def test_a_frame_of_numbers_is_an_array_with_names(frame: pandas.DataFrame, labels: Any) -> None:
    numbers = frame[["size", "count"]]
    named = EquilibriumClassifier(**{**QUICK, "epochs": 1}, groups=[["count"], ["size"]]).fit(numbers, labels)
    plain = EquilibriumClassifier(**{**QUICK, "epochs": 1}, groups=[[1], [0]]).fit(numbers.to_numpy(), labels)
    assert (named.predict_proba(numbers) == plain.predict_proba(numbers.to_numpy())).all()
    assert named.feature_names_in_.tolist() == ["size", "count"]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"photo": ["gone.png"] * ROWS}, {}, "row 0 of X: column 'photo': there is no picture 'gone.png' below"),
        ({"size": [np.nan] + [1.0] * (ROWS - 1)}, {}, r"column 'size' has no finite number in row 0 \(1 rows in all\)"),
        ({}, {"texts": ["captoin"]}, "X has no column 'captoin', which `texts` names: did you mean 'caption'"),
        ({}, {"texts": ["size"], "numbers": ["size"]}, "'size' is named twice, in `texts` and in `numbers`"),
        ({}, {"texts": "caption"}, "`texts` must be a list of columns, got 'caption'"),
        ({}, {"numbers": ["caption"]}, "column 'caption' holds something that is no number"),
        ({}, {"groups": [["size"], ["caption"]]}, "'group_1' has the column 'caption', which is a picture or a text"),
        (
            {"when": pandas.Timestamp("2020-01-01")},
            {},
            "column 'when' holds datetime64.*: turn it into numbers",
        ),
        ({"odd": [["a"]] * ROWS}, {}, "column 'odd' holds a list"),
        ({"odd": [None] * ROWS}, {}, "column 'odd' holds nothing: leave it out, or say what it is"),
        (
            {"cap.tion": "a long text of words", "cap_tion": "a text of more words"},
            {},
            "would both be called 'cap_tion'",
        ),
        ({}, {"text_encoder": "wrods"}, "did you mean 'words'"),
    ],
)
def test_what_is_wrong_with_a_frame_is_told_with_its_place(
    frame: pandas.DataFrame, labels: Any, folder: Path, columns: Any, options: Any, words: str
) -> None:
    model = EquilibriumClassifier(**{**QUICK, "root": folder, **options})
    with pytest.raises((TypeError, ValueError), match=words):
        model.fit(frame.assign(**columns), labels)


def test_what_is_wrong_with_new_rows_is_told(frame: pandas.DataFrame, labels: Any) -> None:
    x = frame[["caption", "place"]]
    model = EquilibriumClassifier(**{**QUICK, "epochs": 1}).fit(x, labels)
    with pytest.raises(TypeError, match="this estimator was fitted on a DataFrame, and X is a ndarray: give a frame"):
        model.predict(x.to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.rename(columns={"caption": "title"}))
    alone = EquilibriumClassifier(**{**QUICK, "epochs": 1}).fit(x[["caption"]], labels)
    with pytest.raises(DataError, match="row 1 of X is empty in 'caption': there is nothing to read"):
        alone.predict(pandas.DataFrame({"caption": ["a", None]}))
    with pytest.raises(ValueError, match="X has 1 row: at least two are needed"):
        alone.fit(x[["caption"]].head(1), labels[:1])
