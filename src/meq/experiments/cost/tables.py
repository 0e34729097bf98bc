"""Costs as tables: arm by arm, and over the number of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meq.experiments.cost.passes import Cost, Costs
from meq.experiments.cost.sweep import Sweep, ToTolerance
from meq.experiments.render import Cell, Column, Table

MEGA = 1e6
SMALLEST_GIGA = 1e8
"""Fewer FLOPs than that are shown in millions."""
TIMES = "Times: median and quartiles of the timed passes; the rows take turns, and only ratios inside one table hold."
MEMORY = (
    "Peak MB: weights, those of the encoders too, and the most that a pass holds besides; on CUDA by its allocator, "
    "elsewhere the peak of live tensor bytes."
)
PAPER: Mapping[str, tuple[float, float, int]] = {
    "concat": (1.465, 19.27, 1015),
    "low-rank": (1.483, 19.27, 1003),
    "cross-attention": (1.621, 21.20, 1004),
    "self-attention": (1.745, 21.96, 1006),
    "meq K=1": (1.627, 20.89, 1003),
    "meq K=5": (2.304, 27.64, 1003),
    "meq K=10": (3.127, 36.08, 1003),
    "meq K=20": (4.778, 52.95, 1003),
}
"""The paper's ms, GFLOPs and MB: batch 32 on one RTX 3090. None of them was measured here."""
PAPER_STEP, PAPER_BASE = 1.687, 19.204
"""The paper's GFLOPs per step, and its base extrapolated to K = 0."""
BESIDE_THE_PAPER = (
    f"The paper states {PAPER_STEP} GFLOPs per step on a base of {PAPER_BASE}. FLOPs here are two per multiply-add "
    "throughout, and the encoders alone agree with its base. Of our block a step is twice the paper's figure, which is "
    "what its linear layers come to in multiply-adds: the paper either counts the block by them, or has a block that "
    "computes half as much with as many parameters."
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What FLOPs are shown in."""

    name: str
    size: float

    @classmethod
    def of(cls, costs: Sequence[Cost]) -> Unit:
        small = max(cost.flops for cost in costs) < SMALLEST_GIGA
        return cls(name="MFLOPs", size=1e6) if small else cls(name="GFLOPs", size=1e9)


def arms_table(costs: Costs, *, conditions: str, published: bool = False) -> Table:
    """One line per arm; with `published`, the paper's figures beside it."""
    unit = Unit.of(costs.arms)
    columns: list[Column] = [
        Column(key="arm", title="arm"),
        Column(key="parameters", title="parameters"),
        *_cost_columns(unit),
        Column(key="ms_ratio", title="x time", digits=2),
        Column(key="flops_ratio", title="x FLOPs", digits=2),
    ]
    rows: list[tuple[Cell, ...]] = [
        (cost.arm, cost.parameters, *_cost_cells(cost, unit), *_ratios(costs, cost.arm)) for cost in costs.arms
    ]
    notes = [conditions, *_meaning(costs.arms)]
    if costs.reference is not None:
        notes.append(f"x: as a multiple of {costs.reference}, the cheapest arm that does not iterate.")
    if published:
        columns += _paper_columns()
        rows = [(*row, *PAPER.get(str(row[0]), (None, None, None))) for row in rows]
        notes.append("paper (published): batch 32 on one RTX 3090; not measured here.")
    return _without_empty("cost: what does a forward pass cost?", columns, rows, notes)


def cost_table(cost: Cost, *, conditions: str, title: str) -> Table:
    """One line, of a model on its own."""
    unit = Unit.of([cost])
    return _without_empty(title, _cost_columns(unit), [_cost_cells(cost, unit)], [conditions, *_meaning([cost])])


def sweep_table(
    sweep: Sweep, *, conditions: str, published: bool = False, title: str = "cost: what does one more step cost?"
) -> Table:
    """One line per number of steps; what a step adds, and the base, are said below."""
    unit = Unit.of(sweep.points)
    rows: list[tuple[Cell, ...]] = [(point.steps, *_cost_cells(point, unit)) for point in sweep.points]
    notes = [conditions, *_meaning(sweep.points), *step_notes(sweep), *([BESIDE_THE_PAPER] if published else [])]
    return _without_empty(title, [Column(key="steps", title="K"), *_cost_columns(unit)], rows, notes)


def step_notes(sweep: Sweep) -> list[str]:
    """What a step adds, whether memory moves, and what came of a run to tolerance."""
    flops, ms, unit = sweep.flops, sweep.ms, Unit.of(sweep.points)
    notes = [
        f"A step adds {flops.per_step / unit.size:.4f} {unit.name} per sample, constant to within "
        f"{flops.deviation / unit.size:.4f}, on a base of {flops.base / unit.size:.4f} at K = 0."
    ]
    if ms is not None:
        notes.append(
            f"A step adds {ms.per_step:.3f} ms per sample on a base of {ms.base:.3f}; increments between "
            f"neighbouring K lie within {ms.deviation:.3f} of it."
        )
    notes.append(
        f"From K = 2 on, working memory grows by {sweep.memory_growth:.1%}. (A single step starts from the injection "
        "itself, and so holds one state less.)"
    )
    return notes if sweep.to_tolerance is None else [*notes, tolerance_note(sweep.to_tolerance)]


def tolerance_note(found: ToTolerance) -> str:
    lost = f", {found.diverged:.0%} diverged" if found.diverged else ""
    return (
        f"Left to run to a tolerance of {found.tolerance:g} with a cap of {found.cap} steps: {found.mean_steps:.1f} "
        f"steps on average, {found.most_steps} at most; {found.capped:.0%} of {found.samples} samples reached the "
        f"cap{lost}."
    )


def _meaning(costs: Sequence[Cost]) -> list[str]:
    return [MEMORY] if all(cost.ms is None for cost in costs) else [TIMES, MEMORY]


def _without_empty(
    title: str, columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]], notes: Sequence[str]
) -> Table:
    """The table without columns that nobody has a value for, such as times on the meta device."""
    kept = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)]
    return Table(
        title=title,
        columns=tuple(columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in rows),
        notes=tuple(notes),
    )


def _ratios(costs: Costs, arm: str) -> tuple[Cell, Cell]:
    return costs.ms_ratio.get(arm), costs.flops_ratio.get(arm)


def _cost_columns(unit: Unit) -> tuple[Column, ...]:
    return (
        Column(key="ms", title="ms / sample", digits=3),
        Column(key="ms_low", title="from", digits=3),
        Column(key="ms_high", title="to", digits=3),
        Column(key=unit.name.lower(), title=f"{unit.name} / sample"),
        Column(key="peak_mb", title="peak MB", digits=2),
        Column(key="working_mb", title="of it working", digits=2),
    )


def _cost_cells(cost: Cost, unit: Unit) -> tuple[Cell, ...]:
    memory = (cost.peak_bytes / MEGA, cost.working_bytes / MEGA)
    return cost.ms, cost.ms_low, cost.ms_high, cost.flops / unit.size, *memory


def _paper_columns() -> tuple[Column, ...]:
    return (
        Column(key="paper_ms", title="paper (published): ms", digits=3),
        Column(key="paper_gflops", title="GFLOPs", digits=2),
        Column(key="paper_mb", title="peak MB"),
    )
