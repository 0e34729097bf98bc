"""Equilibria as scikit-learn estimators: a frame of pictures, texts and numbers, or an array, in; answers out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meq.errors import require
from meq.lazy import make_lazy

if TYPE_CHECKING:
    from meq.sklearn.estimators import EquilibriumClassifier, EquilibriumRegressor
else:
    require("sklearn", "meq.sklearn")
    make_lazy(__name__)

__all__ = ["EquilibriumClassifier", "EquilibriumRegressor"]
