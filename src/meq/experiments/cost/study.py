"""The study `cost`: what the iteration costs beside single-pass arms of the same size, frozen encoders included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from meq.core.options import checked_options
from meq.experiments.cost.arms import ARM_NAMES, DEPTHS, Form, FrozenEncoders, form_of, matched_arms, paper_encoders
from meq.experiments.cost.passes import Costs, chosen_device, measure_costs
from meq.experiments.cost.sweep import STEPS, Sweep, sweep_steps
from meq.experiments.cost.tables import arms_table, sweep_table
from meq.experiments.render import FORMATS, Table
from meq.experiments.study import STUDY, TABLES, StudyError
from meq.files import write_bytes
from meq.models.iterated import Iterated
from meq.training.environment import Session, session
from meq.training.plain import FormatError, dumps, loads, typed

COST = "cost.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class CostReport:
    """What was measured, where, and at which sizes."""

    schema: int
    quick: bool
    form: Form
    measured: Session
    encoder_parameters: int
    costs: Costs
    sweep: Sweep | None
    """None where the equilibrium was not among the arms."""


@checked_options
def cost_study(
    *,
    quick: bool = True,
    arms: Sequence[str] = ARM_NAMES,
    depths: Sequence[int] = DEPTHS,
    steps: Sequence[int] = STEPS,
    device: str | None = None,
) -> CostReport:
    """Measure all arms in turns, the equilibrium at each of the `depths`; then the equilibrium over `steps`.

    The quick form takes less than a minute on one core. The full form has the paper's sizes and is meant for a GPU; on
    the device "meta" it is counted without being computed: FLOPs and memory in seconds, no times.
    """
    place = chosen_device(device)
    form, models = form_of(quick), matched_arms(arms, quick=quick, depths=depths, device=place)
    frozen = paper_encoders(quick, device=place)
    costs = measure_costs(
        models, {}, passes=form.passes, warmups=form.warmups, encoders=frozen.encoders, raw=frozen.raw
    )
    iterated = next((model for model in models.values() if isinstance(model, Iterated)), None)
    return CostReport(
        schema=SCHEMA,
        quick=quick,
        form=form,
        measured=session(0, torch.device(place)),
        encoder_parameters=_parameters(frozen),
        costs=costs,
        sweep=None
        if iterated is None
        else sweep_steps(iterated, {}, steps=steps, passes=form.passes, encoders=frozen.encoders, raw=frozen.raw),
    )


def cost_tables(report: CostReport, *, paper: bool = False) -> dict[str, Table]:
    """By name: the arms, and the sweep over K; `paper` sets the published figures beside the full form."""
    words = _conditions(report)
    tables = {"arms": arms_table(report.costs, conditions=words, published=paper and not report.quick)}
    if report.sweep is not None:
        tables["sweep"] = sweep_table(report.sweep, conditions=words, published=paper and not report.quick)
    return tables


def run_cost(
    folder: Path,
    *,
    quick: bool = True,
    arms: Sequence[str] = ARM_NAMES,
    depths: Sequence[int] = DEPTHS,
    steps: Sequence[int] = STEPS,
    device: str | None = None,
) -> CostReport:
    """`cost_study`, its report and tables written into a folder; an earlier measurement there is replaced."""
    if (folder / STUDY).exists():
        raise StudyError(f"{folder} holds another study already: choose another folder for the study of costs")
    report = cost_study(quick=quick, arms=arms, depths=depths, steps=steps, device=device)
    write_cost(folder, report)
    return report


def write_cost(folder: Path, report: CostReport) -> None:
    """Each file appears whole or not at all."""
    (folder / TABLES).mkdir(parents=True, exist_ok=True)
    for name, table in cost_tables(report).items():
        for ending, render in FORMATS.items():
            write_bytes(folder / TABLES / f"{name}.{ending}", render(table).encode())
    write_bytes(folder / COST, dumps(report).encode())


def read_cost(folder: Path) -> CostReport:
    """The report of a folder; what is missing, unknown or of another type in it is an error that names it."""
    path = folder / COST
    if not path.is_file():
        raise StudyError(f"{folder} has no {COST}: it is not the folder of a study of costs")
    value = loads(path.read_bytes(), str(path))
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if schema != SCHEMA:
        raise FormatError(f"{path}: the field 'schema' is {schema!r}, this version of meq reads {SCHEMA}")
    return typed(CostReport, value, str(path))


def _conditions(report: CostReport) -> str:
    form, hardware = report.form, report.measured.hardware
    where = f"On {hardware.device} ({hardware.name}), threads: {hardware.threads}."
    return (
        f"Forward pass only, batch {form.batch_size}, {form.image_tokens} image and {form.text_tokens} text tokens, "
        f"{'small' if report.quick else 'paper-sized'} encoders ({report.encoder_parameters:,} parameters) included; "
        f"random weights and inputs. {'Counted, not computed.' if hardware.device == 'meta' else where}"
    )


def _parameters(frozen: FrozenEncoders) -> int:
    return sum(weight.numel() for encoder in frozen.encoders.values() for weight in encoder.parameters())
