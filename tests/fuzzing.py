"""How long the tests go on that draw their cases: a bounded sample in the suite, MINUTES in all under `make fuzz`.

In the suite the draws are fixed, so that a run that fails will fail again; under `make fuzz` they are new every time,
and what fails is printed so that it can be repeated. Hypothesis tests need nothing from here: their profile is set in
`conftest.py`. Other tests (killed processes, flipped bytes) ask how many of their cases to take.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

MINUTES = float(os.environ.get("MEQ_FUZZ_MINUTES", "0"))
"""0 in the suite."""
EXAMPLES = 25
PER_MINUTE = 60
"""Examples of each hypothesis test for each of the MINUTES, so that all of them together take about as long."""
Case = TypeVar("Case")


def set_profile() -> None:
    """Called once, by `conftest.py`."""
    unhurried = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
    settings.register_profile("suite", max_examples=EXAMPLES, derandomize=True, database=None, **unhurried)
    settings.register_profile("fuzz", max_examples=max(EXAMPLES, round(PER_MINUTE * MINUTES)), **unhurried)
    settings.load_profile("fuzz" if MINUTES else "suite")


def some(cases: Sequence[Case], count: int, *, per_minute: int | None = None) -> list[Case]:
    """`count` of the cases in the suite, always the same ones; under `make fuzz` all of them.

    Where all would take hours, as every byte of a file would, `per_minute` says how many to draw for each of MINUTES.
    """
    if not MINUTES:
        return random.Random(0).sample(list(cases), min(count, len(cases)))
    if per_minute is None:
        return list(cases)
    return random.sample(list(cases), min(max(count, round(per_minute * MINUTES)), len(cases)))
