"""The measurements of an epoch: is the equilibrium alive?"""

from __future__ import annotations

import torch
from torch import Tensor

from meq.analysis.jacobian import block_statistics, cross_self_ratio
from meq.analysis.spectrum import spectral_radius
from meq.core.solution import Solution, Stop
from meq.core.state import take_rows
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
    few = _first(solution, radius_samples)
    vitals = Vitals(
        epoch=epoch,
        jacobian_norm=_mean(_whole_norm(blocks, solution)),
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


def _whole_norm(blocks: dict[str, dict[str, Tensor]], solution: Solution) -> Tensor:
    """|J| = sqrt(sum_ab |J_ab|_F^2 / n) from the blocks: |J_ab|_F^2 = n_a s_ab^2."""
    counts = {name: _real_entries(name, solution) for name in blocks}
    total = sum(
        counts[name] * torch.stack(list(row.values())).nan_to_num(0).square().sum(0) for name, row in blocks.items()
    )
    return (total / sum(counts.values())).sqrt()  # type: ignore[union-attr]


def _real_entries(name: str, solution: Solution) -> Tensor:
    z, mask = solution.state[name], solution.masks.get(name)
    if mask is None:
        return torch.full((len(z),), float(z[0].numel()))
    return mask.flatten(1).sum(1).float() * z.shape[-1] if mask.ndim > 1 else mask.float() * z.shape[-1]


def _spread(pooled: dict[str, Tensor]) -> float:
    """The samples' distance from their mean, relative to their size."""
    x = torch.cat(list(pooled.values()), dim=-1).float()
    return float((x - x.mean(0)).norm() / x.norm().clamp(min=torch.finfo(x.dtype).tiny))


def _first(solution: Solution, count: int) -> Solution:
    rows = torch.arange(min(count, len(solution.steps)))
    return Solution(
        state=take_rows(solution.state, rows),
        residuals={name: each[:, rows] for name, each in solution.residuals.items()},
        steps=solution.steps[rows],
        stop_codes=solution.stop_codes[rows],
        inputs=take_rows(solution.inputs, rows),
        masks=take_rows(dict(solution.masks), rows),
        operator=solution.operator,
    )


def _mean(values: Tensor) -> float:
    return float(values.nanmean())
