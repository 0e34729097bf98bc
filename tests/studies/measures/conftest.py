"""One small set of pictures for all measures, drawn and encoded once."""

from __future__ import annotations

import pytest

from meq.studies import DataConfig
from meq.studies.build import PreparedData, prepare_data

SIZES = {"train": 18, "dev": 18, "test": 36}


@pytest.fixture(scope="session")
def scenes() -> PreparedData:
    return prepare_data(DataConfig(name="scenes", options=SIZES))


@pytest.fixture(scope="session")
def statements() -> PreparedData:
    """Came as features."""
    return prepare_data(DataConfig(name="statements", options={"train": 24, "dev": 12, "test": 24}))
