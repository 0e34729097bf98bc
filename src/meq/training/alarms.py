"""Collapse and divergence, noticed while training: measurements of every epoch, and the alarms that they raise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meq.analysis.jacobian import block_statistics, cross_self_ratio, whole_statistic
from meq.analysis.products import some_samples
from meq.analysis.radii import radii
from meq.analysis.verdict import identity_in_words, is_one_state
from meq.core.operator import held_still
from meq.core.solution import Stop
from meq.data.contract import Batch
from meq.models.base import FusionModel, Output

GROWTH = 10.0
FAR_FROM_SETTLED = 0.2
"""The paper reads healthy models at residuals of up to 0.1: growth below this is no divergence."""
PROBES = 1
"""Random signs per sample and modality that the Jacobian's blocks are measured with; the mean is over samples, too."""


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """What is looked at once per epoch, on a few held-out samples with dropout off."""

    epoch: int
    jacobian_norm: float
    """The root mean square singular value of the undamped map: 1 for the identity. Not the spectral radius."""
    residual: float
    """The largest over modalities of the mean final residual."""
    gate: dict[str, float]
    cross_self: dict[str, float]
    spread: float
    """How much the pooled states differ between samples, relative to their size; 0 if all inputs give one state."""
    radius: float
    diverged: int
    """Samples whose iteration stopped being finite."""
    samples: int


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One warning, with what led to it."""

    kind: str
    epoch: int
    message: str
    evidence: dict[str, Any]


def take_vitals(
    model: FusionModel, batch: Batch, epoch: int, *, radius_samples: int, probes: int = PROBES
) -> Vitals | None:
    """Measure a model that iterates on some held-out samples, dropout off; None for one that does not iterate."""
    if model.operator is None:
        return None
    with held_still(model), torch.no_grad():
        output = model(batch.features, batch.masks)
    return vitals_of(model, output, epoch, radius_samples=radius_samples, probes=probes)


def vitals_of(
    model: FusionModel,
    output: Output,
    epoch: int,
    *,
    radius_samples: int,
    probes: int = PROBES,
    rows: int | None = None,
) -> Vitals:
    """`take_vitals` of what a model that iterates has said already, dropout off: its first `rows`, all unless given."""
    with held_still(model):
        return _measured(model, output, epoch, radius_samples, probes, rows)


def _measured(
    model: FusionModel, output: Output, epoch: int, radius_samples: int, probes: int, rows: int | None
) -> Vitals:
    solution = output.solution
    assert solution is not None
    seen = solution.stop[:rows]
    finite = [row for row, stop in enumerate(seen) if stop is not Stop.DIVERGED]
    diverged = len(seen) - len(finite)  # of multiple choice every choice is a row
    operator, measured = model.operator, some_samples(solution, finite or range(len(seen)))
    blocks = block_statistics(operator, measured, probes=probes, fused=True)
    few = some_samples(measured, range(min(radius_samples, len(measured.steps))))
    return Vitals(
        epoch=epoch,
        jacobian_norm=_mean(whole_statistic(blocks, measured)),
        residual=max(_mean(each) for each in measured.final_residual.values()),
        gate={name: _mean(values) for name, values in model.gates(measured).items()},
        cross_self={name: _mean(values) for name, values in cross_self_ratio(blocks).items()},
        spread=_spread({name: x[finite] for name, x in output.pooled.items()}),
        radius=float(radii(operator, few).max()) if radius_samples and not diverged else torch.nan,
        diverged=diverged,
        samples=len(seen),
    )


def _spread(pooled: dict[str, Tensor]) -> float:
    """The samples' distance from their mean, relative to their size."""
    x = torch.cat(list(pooled.values()), dim=-1).float()
    return float((x - x.mean(0)).norm() / x.norm().clamp(min=torch.finfo(x.dtype).tiny))


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def raised(history: Sequence[Vitals]) -> list[Alarm]:
    """The alarms of the newest vitals, given those before."""
    return [alarm for check in (_identity, _fixed_point, _divergence) if (alarm := check(history)) is not None]


def _identity(history: Sequence[Vitals]) -> Alarm | None:
    """Gates closing, |J| at 1 and vanishing off-diagonal blocks: the update has become F(z) = z."""
    now = history[-1]
    found = identity_in_words(gates=now.gate.values(), cross_self=now.cross_self.values(), statistic=now.jacobian_norm)
    if found is None:
        return None
    floor = "or give the gate a floor, knowing that a floor alone does not restore the coupling"
    return Alarm(
        kind="identity collapse",
        epoch=now.epoch,
        message=(
            f"{found}: no information flows between the modalities. The residual penalty rewards this: set its weight "
            f"(lambda_f) to 0" + (f", {floor}" if now.gate else "")
        ),
        evidence={"gate": now.gate, "jacobian_norm": now.jacobian_norm, "cross_self": now.cross_self},
    )


def _fixed_point(history: Sequence[Vitals]) -> Alarm | None:
    """Every input ends in the same state."""
    now = history[-1]
    if now.samples < 2 or not is_one_state(now.spread):
        return None
    return Alarm(
        kind="fixed-point collapse",
        epoch=now.epoch,
        message=(
            f"the states hardly depend on the input: between samples they differ by {now.spread:.1e} of their size. "
            "Make sure that the injections carry the features, and keep the lower bound of the Jacobian range "
            "penalty: too small a Jacobian leaves no momentum to tell inputs apart"
        ),
        evidence={"spread": now.spread, "jacobian_norm": now.jacobian_norm},
    )


def _divergence(history: Sequence[Vitals]) -> Alarm | None:
    """Samples that stopped being finite, or a residual that grows from epoch to epoch."""
    now = history[-1]
    earlier = [vitals.residual for vitals in history[:-1] if math.isfinite(vitals.residual)]
    best = min(earlier, default=math.nan)
    growing = len(history) > 1 and now.residual > max(GROWTH * best, FAR_FROM_SETTLED, history[-2].residual)
    if now.diverged == 0 and not growing:
        return None
    what = (
        f"the iteration of {now.diverged} of {now.samples} samples stopped being finite"
        if now.diverged
        else f"the residual has grown to {now.residual:.1e}, from {best:.1e} at its best"
    )
    return Alarm(
        kind="divergence",
        epoch=now.epoch,
        message=(
            f"{what}; the spectral radius is {now.radius:.2f}. Damp more (a smaller step), turn the residual penalty "
            "or the Jacobian range penalty on, or lower the learning rate"
        ),
        evidence={"residual": now.residual, "best": best, "radius": now.radius, "diverged": now.diverged},
    )
