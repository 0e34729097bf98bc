"""The measurements of an epoch: is the equilibrium alive?"""

from __future__ import annotations

import torch
from torch import Tensor

from meq.analysis.differential import some_samples
from meq.analysis.jacobian import block_statistics, cross_self_ratio, whole_statistic
from meq.analysis.spectrum import spectral_radius
from meq.core.solution import Stop
from meq.data.contract import Batch
from meq.models.base import FusionModel
from meq.training.alarms import Vitals


def take_vitals(model: FusionModel, batch: Batch, epoch: int, *, radius_samples: int) -> Vitals | None:
    """Measure a model that iterates on some held-out samples, dropout off; None for one that does not iterate."""
    if model.operator is None:
        return None
    was_training = model.training
    model.eval()
    with torch.no_grad():
        output = model(batch.features, batch.masks)
    solution = output.solution
    assert solution is not None
    diverged = sum(stop is Stop.DIVERGED for stop in solution.stop)
    blocks = block_statistics(model.operator, solution)
    few = some_samples(solution, range(min(radius_samples, len(batch))))
    vitals = Vitals(
        epoch=epoch,
        jacobian_norm=_mean(whole_statistic(blocks, solution)),
        residual=max(_mean(rows) for rows in solution.final_residual.values()),
        gate={name: _mean(values) for name, values in model.gates(solution).items()},
        cross_self={name: _mean(values) for name, values in cross_self_ratio(blocks).items()},
        spread=_spread(output.pooled),
        radius=float(spectral_radius(model.operator, few, tol=1e-3).max())
        if radius_samples and not diverged
        else torch.nan,
        diverged=diverged,
        samples=len(batch),
    )
    model.train(was_training)
    return vitals


def _spread(pooled: dict[str, Tensor]) -> float:
    """The samples' distance from their mean, relative to their size."""
    x = torch.cat(list(pooled.values()), dim=-1).float()
    return float((x - x.mean(0)).norm() / x.norm().clamp(min=torch.finfo(x.dtype).tiny))


def _mean(values: Tensor) -> float:
    return float(values.nanmean())
