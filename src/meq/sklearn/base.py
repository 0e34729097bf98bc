"""What the estimators share: X read and checked, a mutual equilibrium trained in memory, answers, pickles."""
# ruff: noqa: N803, N806 - X is what scikit-learn calls it

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from meq.devices import device_of
from meq.models import MutualEquilibrium
from meq.objectives import Objective
from meq.options import real_number, whole_number
from meq.sklearn.columns import Columns, Groups, Roles, find_roles, is_frame
from meq.sklearn.reading import Inputs, Reading, RowBatches, learn_reading
from meq.training.config import TrainConfig
from meq.training.fitted import Fitted
from meq.training.loop import fit

FEWEST = 200
"""With fewer rows, early_stopping="auto" keeps none of them for dev: a score on twenty says little."""
ANSWERED = 256
"""Rows that are answered at a time."""


class Equilibrium(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; see `EquilibriumClassifier`."""

    model_: MutualEquilibrium
    _reading: Reading
    _shape: dict[str, Any]

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
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        self.groups = groups
        self.images = images
        self.texts = texts
        self.numbers = numbers
        self.categories = categories
        self.root = root
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.dim = dim
        self.heads = heads
        self.steps = steps
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device

    # -- training ------------------------------------------------------------------------------------------------------

    def _begin(self, X: Any, y: Any, *, numeric: bool) -> tuple[Any, np.ndarray[Any, Any], Roles | None]:
        """X and y, checked, and the roles of a frame's columns; None for an array, or a frame of numbers."""
        roles = find_roles(X, vars(self)) if is_frame(X) else None
        if roles is None or (roles.only_numbers and self._asks_nothing):
            self._refuse_roles()
            X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=2)
            return X, y, None
        validate_data(self, X, y, skip_check_array=True)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        if len(X) < 2:
            raise ValueError(f"X has {len(X)} row: at least two are needed to learn from")
        return X, np.asarray(y, dtype=np.float64) if numeric else y, roles

    @property
    def _asks_nothing(self) -> bool:
        return not any((self.images, self.texts, self.categories))

    def _refuse_roles(self) -> None:
        asked = [name for name in ("images", "texts", "categories") if getattr(self, name) is not None]
        if asked:
            raise TypeError(f"{', '.join(f'`{name}`' for name in asked)} name columns of a DataFrame; X is an array")

    def _train(
        self,
        X: Any,
        target: Tensor,
        weight: np.ndarray[Any, Any],
        *,
        roles: Roles | None,
        head: str,
        outputs: int,
        strata: Any,
    ) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        recipe = TrainConfig(
            epochs=self.epochs, learning_rate=self.learning_rate, weight_decay=self.weight_decay, seed=seed
        )
        size = whole_number("batch_size", self.batch_size)
        self._reading = learn_reading(
            X,
            weight,
            names=list(getattr(self, "feature_names_in_", range(self.n_features_in_))),
            roles=roles,
            groups=self.groups,
            root=self.root,
            encoders={"image": self.image_encoder, "text": self.text_encoder},
        )
        inputs = self._reading.apply(X)
        train, dev = self._split(np.flatnonzero(weight > 0), strata, seed)
        counted = torch.from_numpy(weight / weight[weight > 0].mean())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._shape = self._shape_for(inputs, head, outputs)
            model = MutualEquilibrium(**self._shape)
        fitted = fit(
            model,
            RowBatches(inputs, train, target, counted, size, seed),
            None if dev is None else RowBatches(inputs, dev, target, counted, ANSWERED),
            objective=Objective(task=head),
            config=recipe,
            patience=self.patience,
            device=self.device,
        )
        self._keep(model, fitted)

    def _shape_for(self, inputs: Inputs, head: str, outputs: int) -> dict[str, Any]:
        """Vectors alone need no attention; every row takes all steps, so that its answer is the same in any company."""
        return {
            "widths": inputs.widths,
            "classes": outputs,
            "dim": self.dim,
            "heads": self.heads,
            "steps": self.steps,
            "tol": 0.0,
            "mixer": "attention" if inputs.token_widths else "mlp",
            "dropout": self.dropout,
            "head": head,
            "head_width": 2 * self.dim,
        }

    def _split(self, rows: np.ndarray[Any, Any], strata: Any, seed: int) -> tuple[Tensor, Tensor | None]:
        """Rows to learn from, and rows that say when to stop; the classes are shared out alike where they can be."""
        if self.early_stopping not in (True, False, "auto"):
            raise ValueError(f"`early_stopping` must be True, False or 'auto', got {self.early_stopping!r:.80}")
        if self.early_stopping is False or (self.early_stopping == "auto" and len(rows) < FEWEST):
            return torch.from_numpy(rows), None
        share = real_number(
            "validation_fraction", self.validation_fraction, wanted="must lie between 0 and 1", low=1e-9, high=1.0
        )
        try:
            parts = train_test_split(rows, test_size=share, random_state=seed, stratify=strata[rows])
        except (ValueError, TypeError):  # a class of one row, or more classes than rows in a part; or none at all
            parts = train_test_split(rows, test_size=share, random_state=seed)
        train, dev = (torch.from_numpy(np.sort(part)) for part in parts)
        return train, dev

    def _keep(self, model: MutualEquilibrium, fitted: Fitted) -> None:
        self.model_ = model
        self.n_iter_ = len(fitted.history)
        self.best_epoch_ = fitted.best_epoch
        self.loss_curve_ = [epoch.train_loss for epoch in fitted.history]
        dev = [epoch.dev_loss for epoch in fitted.history]
        self.validation_loss_curve_ = None if None in dev else dev

    def _weights(self, sample_weight: Any, X: Any) -> np.ndarray[Any, Any]:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` is 0 for every row: there is nothing to learn from")
        return weight

    # -- answers -------------------------------------------------------------------------------------------------------

    def _logits(self, X: Any) -> np.ndarray[Any, Any]:
        check_is_fitted(self)
        roles = self._reading.roles
        if roles is None:
            X = validate_data(self, X, dtype=np.float64, reset=False)
        else:
            if not is_frame(X):
                raise TypeError(
                    f"this estimator was fitted on a DataFrame, and X is a {type(X).__name__}: give a frame"
                )
            validate_data(self, X, skip_check_array=True, reset=False)
        inputs = self._reading.apply(X)
        model, answers = self._answering(), []
        with torch.no_grad():
            for rows in torch.arange(inputs.rows).split(ANSWERED):
                features, masks = inputs.batch(rows)
                place = device_of(model)
                tokens = {name: x.to(place, torch.float64) for name, x in features.items()}
                logits = model(tokens, {name: mask.to(place) for name, mask in masks.items()}).logits
                assert logits is not None
                answers.append(logits.cpu())
        return torch.cat(answers).numpy()

    def _answering(self) -> MutualEquilibrium:
        """The model in double precision: a row's answer is the same to many digits, whoever shares its batch."""
        model = copy.deepcopy(self.model_)
        return (model.cpu() if device_of(model).type == "mps" else model).double()  # which has no double precision

    # -- pickles: weights as safetensors, and plain values; never a module ---------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        model = state.pop("model_", None)
        if model is not None:
            state["_weights"] = save({name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        weights = state.pop("_weights", None)
        super().__setstate__(state)
        if weights is not None:
            self.model_ = MutualEquilibrium(**self._shape)
            self.model_.load_state_dict(load(weights))
            self.model_.eval()
