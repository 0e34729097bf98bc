"""EquilibriumClassifier and EquilibriumRegressor: mutual equilibria with the interface of scikit-learn."""
# ruff: noqa: N803, N806 - X is what scikit-learn calls it

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from meq.sklearn.base import Equilibrium
from meq.sklearn.columns import Columns, Groups

Self = TypeVar("Self", bound="Equilibrium")


class EquilibriumClassifier(ClassifierMixin, Equilibrium):  # type: ignore[misc]
    """A mutual equilibrium of the modalities of X, for classes.

    X is a pandas DataFrame of pictures (paths below `root`), texts, categories and numbers, or an array of numbers. The
    role of a column is found by its dtype and look, see `meq.sklearn.columns`; `images`, `texts`, `numbers` and
    `categories` list columns that are to have another. Every column of pictures or texts is a modality, encoded by
    `image_encoder` and `text_encoder` as `meq train` does: the offline ones where they are installed, else the built-in
    ones. Numbers are standardised; categories become ones and zeros beside them. `groups`, lists of columns by number
    or name, say which numbers make a modality; without them, numbers beside pictures or texts are one, and numbers
    alone are two, the first half of the columns and the second. A modality that is alone is read by both sides.

    `early_stopping`: whether a `validation_fraction` of the rows is kept to say when to stop, after `patience` epochs
    that were no better; "auto" keeps some of tables that have enough. `class_weight` is a dict from class to weight,
    or "balanced".

    After `fit` there are `classes_`, `n_iter_`, `loss_curve_`, `validation_loss_curve_`, `best_epoch_`, and `model_`,
    the module itself.
    """

    def __init__(
        self,
        *,
        groups: Groups = None,
        images: Columns = None,
        texts: Columns = None,
        numbers: Columns = None,
        categories: Columns = None,
        root: str | Path | None = None,
        image_encoder: str | None = None,
        text_encoder: str | None = None,
        dim: int = 32,
        heads: int = 2,
        steps: int = 4,
        dropout: float = 0.0,
        epochs: int = 30,
        batch_size: int = 64,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.15,
        patience: int = 8,
        class_weight: Any = None,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        super().__init__(
            groups=groups,
            images=images,
            texts=texts,
            numbers=numbers,
            categories=categories,
            root=root,
            image_encoder=image_encoder,
            text_encoder=text_encoder,
            dim=dim,
            heads=heads,
            steps=steps,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            random_state=random_state,
            device=device,
        )
        self.class_weight = class_weight

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from a frame or an array, and a class per row."""
        X, y, roles = self._begin(X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]!r}: a classifier needs two to tell apart")
        weight = self._weights(sample_weight, X) * compute_sample_weight(self.class_weight, y)
        target = torch.from_numpy(places.astype(np.int64))
        self._train(X, target, weight, roles=roles, head="classes", outputs=len(self.classes_), strata=places)
        return self

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """The logits, one column per class; of two classes, how much more the second one has."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """A probability per class, in the order of `classes_`."""
        return torch.from_numpy(self._logits(X)).softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The likeliest class of every row."""
        places = self._logits(X).argmax(1)
        found: np.ndarray[Any, Any] = self.classes_[places]
        return found


class EquilibriumRegressor(RegressorMixin, Equilibrium):  # type: ignore[misc]
    """A mutual equilibrium of the modalities of X, for numbers; options and X as in `EquilibriumClassifier`.

    The target is standardised for training, and its loss is one that outliers do not dominate.
    """

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from a frame or an array, and a number per row."""
        X, y, roles = self._begin(X, y, numeric=True)
        if not np.isfinite(y).all():
            raise ValueError(f"y has no finite number in row {np.flatnonzero(~np.isfinite(y))[0]}: leave such rows out")
        weight = self._weights(sample_weight, X)
        mean = float(np.average(y, weights=weight))
        std = float(np.sqrt(np.average((y - mean) ** 2, weights=weight))) or 1.0
        self._target = (mean, std)
        target = torch.from_numpy(((y - mean) / std).astype(np.float32))
        self._train(X, target, weight, roles=roles, head="score", outputs=1, strata=None)
        return self

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """A number for every row."""
        scores = self._logits(X)[:, 0]
        mean, std = self._target
        return scores * std + mean
