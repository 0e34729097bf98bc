"""What a run leaves behind: how far it came, and the record of it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

import torch

from meq.version import __version__


@dataclass
class Progress:
    """How far a run has come: all of it goes into every checkpoint."""

    epoch: int = 0
    position: int = 0
    """Updates done in this epoch."""
    step: int = 0
    """Updates done in all."""
    loss_sum: float = 0.0
    seconds: float = 0.0
    curves: list[dict[str, Any]] = field(default_factory=list)
    vitals: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    stopped: bool = False


def make_record(
    status: str, progress: Progress, *, config: dict[str, Any], metric: str, **facts: Any
) -> dict[str, Any]:
    """The run in plain values: everything that made it, and everything that came out."""
    chosen = progress.best if config["select"] == "best" else None
    if config["select"] == "last" and progress.curves:
        chosen = {"epoch": progress.curves[-1]["epoch"], "value": progress.curves[-1][metric]}
    return {
        "status": status,
        **facts,
        "config": config,
        "selected": {"by": config["select"], "split": "dev", "metric": metric, **(chosen or {})},
        "curves": progress.curves,
        "vitals": progress.vitals,
        "alarms": progress.alarms,
        "steps": progress.step,
        "wall_seconds": progress.seconds,
        "versions": {"meq": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
