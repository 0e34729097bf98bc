"""The measurements of an epoch: is the equilibrium alive?"""

from __future__ import annotations

import torch
from torch import Tensor

from meq.analysis.differential import some_samples
from meq.analysis.jacobian import block_statistics, cross_self_ratio, whole_statistic
from meq.analysis.spectrum import leading_eigenvalue
from meq.analysis.subject import held_still
from meq.core.solution import Stop
from meq.data.contract import Batch
from meq.models.base import FusionModel
from meq.training.alarms import Vitals


def take_vitals(model: FusionModel, batch: Batch, epoch: int, *, radius_samples: int) -> Vitals | None:
    """Measure a model that iterates on some held-out samples, dropout off; None for one that does not iterate."""
    if model.operator is None:
        return None
    with held_still(model):
        return _measured(model, batch, epoch, radius_samples)


def _measured(model: FusionModel, batch: Batch, epoch: int, radius_samples: int) -> Vitals:
    with torch.no_grad():
        output = model(batch.features, batch.masks)
    solution = output.solution
    assert solution is not None
    finite = [row for row, stop in enumerate(solution.stop) if stop is not Stop.DIVERGED]
    diverged = len(solution.steps) - len(finite)  # of multiple choice every choice is a row
    operator, measured = model.operator, some_samples(solution, finite) if finite else solution
    blocks = block_statistics(operator, measured)
    few = some_samples(measured, range(min(radius_samples, len(measured.steps))))
    return Vitals(
        epoch=epoch,
        jacobian_norm=_mean(whole_statistic(blocks, measured)),
        residual=max(_mean(rows) for rows in measured.final_residual.values()),
        gate={name: _mean(values) for name, values in model.gates(measured).items()},
        cross_self={name: _mean(values) for name, values in cross_self_ratio(blocks).items()},
        spread=_spread({name: x[finite] for name, x in output.pooled.items()}),
        radius=float(leading_eigenvalue(operator, few, tol=1e-3, norms=False).radius.max())
        if radius_samples and not diverged
        else torch.nan,
        diverged=diverged,
        samples=len(solution.steps),
    )


def _spread(pooled: dict[str, Tensor]) -> float:
    """The samples' distance from their mean, relative to their size."""
    x = torch.cat(list(pooled.values()), dim=-1).float()
    return float((x - x.mean(0)).norm() / x.norm().clamp(min=torch.finfo(x.dtype).tiny))


def _mean(values: Tensor) -> float:
    return float(values.nanmean())
