"""Studies at a size of seconds: the same arms and measures, narrow models, a few examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meq.studies import Study
from meq.studies.laboratory import TRAILS

SIZES = {"train": 54, "dev": 54, "test": 54}
NARROW = {"dim": 8, "heads": 2, "steps": 2, "hidden": 16, "head_width": 8}
TINY_MEASURES: Mapping[str, Mapping[str, Any]] = {
    "steps": {"limit": 9},
    "fixed-point": {"horizon": 4, "radii": 1, "limit": 9},
    "coupling": {"samples": 8},
    "robustness": {"draws": 1, "limit": 6},
    "grounding": {"limit": 2, "horizon": 4},
    "staircase": {"limit": 9},
    "stopping": {"risk": 0.5, "most": 4},
}


def shrunk(study: Study, *, seeds: tuple[int, ...] = (0,)) -> Study:
    """The same arms and measures, at a size of seconds."""
    sizes = {**SIZES, **({"deep_test": 54} if study.data.name in TRAILS else {})}
    generated = study.data.name in ("scenes", *TRAILS)
    data = replace(study.data, options={**study.data.options, **sizes}) if generated else study.data
    arms = tuple(
        replace(
            arm,
            options={
                name: min(value, NARROW[name]) if name in NARROW else value for name, value in arm.options.items()
            },
        )
        for arm in study.arms
    )
    train = replace(study.train, epochs=1, batch_size=15, monitor_samples=2, radius_samples=0)
    measures = {name: {**options, **TINY_MEASURES[name]} for name, options in study.measures.items()}
    return replace(study, data=data, arms=arms, train=train, seeds=seeds, measures=measures)
