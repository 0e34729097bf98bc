"""Problems that the instruments are tried on, solved to the last digit, in float64."""

from __future__ import annotations

import numpy as np
import torch
from problems import CoupledAttention, Known, attention_inputs, known, three_modalities
from torch import Tensor

import meq
from meq.analysis import dense_jacobian


def settled(operator: meq.Operator, inputs: dict[str, Tensor], masks: dict[str, Tensor] | None = None) -> meq.Solution:
    return meq.solve(operator, inputs, steps=500, tol=1e-14, solver=meq.Damped(step=1.0), masks=masks)


def padded_attention() -> tuple[CoupledAttention, dict[str, Tensor], dict[str, Tensor]]:
    """The coupled pair with two padded tokens per modality, full of rubbish, and one sample that is longer."""
    bare = attention_inputs()
    padded = {name: torch.cat([x, 7 * torch.ones(3, 2, 4, dtype=x.dtype)], dim=1) for name, x in bare.items()}
    masks = {name: torch.arange(x.shape[1] + 2).expand(3, -1) < x.shape[1] for name, x in bare.items()}
    return CoupledAttention(), {**padded, **{f"{name}_mask": mask for name, mask in masks.items()}}, masks


CASES = {
    "attention": lambda: (CoupledAttention(), attention_inputs(), None),
    "padded": padded_attention,
    "three": lambda: (three_modalities().operator, three_modalities().inputs, None),
}


def dense(operator: meq.Operator, solution: meq.Solution) -> list[np.ndarray]:
    """J of every sample as one matrix."""
    return [
        torch.cat([torch.cat(list(row.values()), dim=1) for row in blocks.values()]).numpy()
        for blocks in dense_jacobian(operator, solution)
    ]


def two_vectors(matrix: list[list[float]]) -> Known:
    """A linear map over two vectors of two entries each."""
    return known(torch.tensor(matrix, dtype=torch.float64), {"x": (2,), "y": (2,)}, batch=1)
