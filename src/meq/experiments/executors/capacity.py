"""How many runs a machine has room for: its cores, its memory, and what one run needs."""

from __future__ import annotations

import os

import psutil  # type: ignore[import-untyped]

from meq.data.contract import collate
from meq.experiments.build import Prepared, build_model, build_objective
from meq.experiments.cost.live_memory import PeakBytes
from meq.experiments.study import ArmConfig, Study, StudyError
from meq.training.seeds import sample_seeds

GB = 10**9
PROCESS = 0.6 * GB
"""Python and torch, before there is a model."""
PER_PARAMETER = 20
"""Bytes: weights, gradients, two moments of AdamW, and the copy that a checkpoint makes."""
SPARED = 0.9
"""Of the free memory: the rest is for whatever else the machine does."""


def cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def memory_of_a_run(study: Study, prepared: Prepared) -> int:
    """Bytes, for the largest arm: estimated from one forward and backward pass of one example."""
    return max(_memory_of(study, arm, prepared) for arm in study.arms)


def _memory_of(study: Study, arm: ArmConfig, prepared: Prepared) -> int:
    seed = study.seeds[0]
    data, config = prepared.seen_by(arm), study.config(arm.name, seed)
    model, objective = build_model(study, arm, data, seed), build_objective(arm, data)
    batch = collate([data.splits["train"][0]], data.widths)
    parameters = sum(each.numel() for each in model.parameters())
    seeds = sample_seeds(seed, 0, batch.ids)
    with PeakBytes([*model.parameters(), *batch.features.values()]) as memory:
        output = model.train()(batch.features, batch.masks, seeds=seeds)
        objective(model, output, batch.target, seeds=seeds).total.backward()
    for_samples = max(0, memory.peak - 4 * parameters) * config.batch_size
    return int(PROCESS + PER_PARAMETER * parameters + for_samples)


def workers_for(need: int, runs: int, wanted: int | None) -> int:
    """As many as were asked for; otherwise one per core, as long as their memory and the runs suffice."""
    if wanted is not None:
        if wanted < 1:
            raise StudyError(f"{wanted} workers can do nothing: give at least one")
        return min(wanted, runs)
    fitting = int(SPARED * free_memory() // need)
    if fitting < 1:
        raise StudyError(
            f"a run needs about {need / GB:.1f} GB and {free_memory() / GB:.1f} GB are free: stop something else, "
            "give the memory that a run really needs (--memory), or the number of workers (--workers)"
        )
    return max(1, min(cores(), fitting, runs))
