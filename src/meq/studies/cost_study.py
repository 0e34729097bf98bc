"""The study `cost`: what the iteration costs beside single-pass arms of the same size, frozen encoders included.

What is measured is the SNLI-VE architecture of the paper, with random weights and random inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from meq.data.contract import DataSet, features
from meq.data.metrics import ACCURACY
from meq.devices import chosen_device
from meq.models.base import FusionModel
from meq.models.iterated import IteratedModel
from meq.options import checked_options, nearest, whole_number
from meq.records import (
    SCHEMA,
    SEAL,
    SINCE,
    FormatError,
    read_dataclass,
    read_seal,
    remove,
    write_bytes,
    write_dataclass,
    write_seal,
)
from meq.studies.build import sized_options
from meq.studies.cost import (
    STEPS,
    Cost,
    Costs,
    Feed,
    Sweep,
    at_depth,
    measure_costs,
    other_ways,
    sweep_steps,
)
from meq.studies.paper import COST_BASIS, COST_SAID, COSTS
from meq.studies.settings import EQUILIBRIUM, FULL, QUICK, baseline, equilibrium, study_of
from meq.studies.sized_encoders import (
    EncoderSize,
    drawn,
    random_contents,
    random_encoder,
    sizes_in_words,
    sizes_named,
)
from meq.studies.study import TABLES, StudyError
from meq.studies.verify import Fault, Verification, files_below
from meq.tables import Cell, Table, as_files
from meq.training.arms import make_model
from meq.training.record import Session, session

COST = "cost.json"
BENCHMARK, LABELS = "snli-ve", ("entailment", "neutral", "contradiction")
SINGLE_PASS = ("concat", "low-rank", "cross-attention", "self-attention")
ARM_NAMES = (*SINGLE_PASS, EQUILIBRIUM)
DEPTHS = (1, 5, 10, 20)
MEGA = 1e6
SMALLEST_GIGA = 1e8
"""Fewer FLOPs than that are shown in millions."""
TIMES = "Times: median and quartiles of the timed passes; the rows take turns, and only ratios inside one table hold."
MEMORY = (
    "Peak MB: weights, those of the encoders too, and the most that a pass holds besides; on CUDA by its allocator, "
    "elsewhere the peak of live tensor bytes."
)


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Form:
    """The sizes of one form of the study; encoders are CLIP's for pictures and BERT's for texts."""

    batch_size: int
    encoder_width: int = 768
    encoder_layers: int = 12
    encoder_heads: int = 12
    picture_side: int = 224
    patch_side: int = 32
    text_tokens: int = 60
    vocabulary: int = 30522
    passes: int = 30
    warmups: int = 5
    rounds: int = field(default=1, metadata=SINCE)
    encoders: tuple[str, ...] = field(default=(), metadata=SINCE)
    """Names of encoders that have their real size, whatever the form's: keys of `sized_encoders.SIZES`."""

    @property
    def image_tokens(self) -> int:
        """One per patch, and the class token."""
        return self.sizes["image"].tokens

    @property
    def sizes(self) -> dict[str, EncoderSize]:
        """Of the encoders, by modality."""
        own = {
            "width": self.encoder_width,
            "layers": self.encoder_layers,
            "heads": self.encoder_heads,
            "picture_side": self.picture_side,
            "patch_side": self.patch_side,
            "text_tokens": self.text_tokens,
            "vocabulary": self.vocabulary,
        }
        small = {kind: EncoderSize(kind=kind, like="the form's", **own) for kind in ("image", "text")}
        return {**small, **sizes_named(self.encoders)}


FULL_FORM = Form(batch_size=FULL[BENCHMARK].train.batch_size)
QUICK_FORM = replace(
    FULL_FORM, batch_size=4, encoder_width=64, encoder_layers=2, encoder_heads=4, vocabulary=1000, passes=15, warmups=2
)


def form_of(quick: bool) -> Form:
    return QUICK_FORM if quick else FULL_FORM


def paper_encoders(quick: bool = True, *, form: Form | None = None, device: str = "cpu", seed: int = 0) -> Feed:
    """CLIP ViT-B/32 and BERT-base with random weights, and random pixels and words for them: nothing is downloaded.

    The quick form has the same tokens, two layers and narrow states. On the meta device nothing is allocated.
    """
    form = form_of(quick) if form is None else form
    with drawn(seed, device):
        raw = {name: random_contents(size, form.batch_size) for name, size in form.sizes.items()}
        models = {name: random_encoder(size) for name, size in form.sizes.items()}
    return Feed(
        encoders={name: model.to(device) for name, model in models.items()},
        raw={name: x.to(device) for name, x in raw.items()},
    )


def matched_arms(
    names: Sequence[str] = ARM_NAMES,
    *,
    quick: bool = True,
    form: Form | None = None,
    depths: Sequence[int] = DEPTHS,
    device: str = "cpu",
    seed: int = 0,
) -> dict[str, FusionModel]:
    """The arms by name; those that do not iterate are as large as the equilibrium, which comes once per depth."""
    for name in names:
        if name not in ARM_NAMES:
            raise StudyError(f"the cost study has no arm {name!r}: {nearest(name, ARM_NAMES)}")
    setting, sizes = (QUICK if quick else FULL)[BENCHMARK], (form_of(quick) if form is None else form).sizes
    study = study_of(setting, "", [*(baseline(setting, name) for name in SINGLE_PASS), equilibrium(setting)])
    modalities = {name: features(sizes[name].width) for name in setting.modalities}
    data = DataSet(name=BENCHMARK, splits={}, modalities=modalities, labels=LABELS, head="classes", metric=ACCURACY)
    arms: dict[str, FusionModel] = {}
    for arm in map(study.arm, names):
        options = sized_options(study, arm, data)
        with drawn(seed, device):
            model = make_model(arm.model, data, options).to(device).eval()
        if isinstance(model, IteratedModel):
            arms |= {f"{arm.name} K={depth}": at_depth(model, depth) for depth in depths}
        else:
            arms[arm.name] = model
    return arms


# -- the study ---------------------------------------------------------------------------------------------------------


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
    batch: int | None = None,
    passes: int | None = None,
    rounds: int = 1,
    encoders: Sequence[str] = (),
) -> CostReport:
    """Measure all arms in turns, the equilibrium at each of the `depths`; then the equilibrium over `steps`.

    The deepest equilibrium is also measured in other ways of computing it. The quick form takes less than
    a minute on one core. The full form has the paper's sizes and is meant for a GPU; on the device "meta" it is counted
    without being computed: FLOPs and memory, no times, in a minute or two. `batch` samples per pass and `passes` in
    each of the `rounds`, are the form's unless given; `encoders` ("clip", "bert") have their real sizes in any form.
    """
    place = chosen_device(device, also=("meta",))
    form = form_of(quick)
    form = replace(
        form,
        batch_size=form.batch_size if batch is None else whole_number("batch", batch),
        passes=form.passes if passes is None else whole_number("passes", passes),
        rounds=whole_number("rounds", rounds),
        encoders=tuple(encoders),
    )
    feed = paper_encoders(form=form, device=place)
    models = matched_arms(arms, quick=quick, form=form, depths=depths, device=place)
    iterated = next((model for model in models.values() if isinstance(model, IteratedModel)), None)
    deepest = next((name for name, model in reversed(models.items()) if isinstance(model, IteratedModel)), None)
    ways = {} if deepest is None else other_ways(deepest, models[deepest], feed)
    costs = measure_costs(
        {**models, **{name: made for name, (made, _) in ways.items()}},
        feed,
        passes=form.passes,
        warmups=min(form.warmups, form.passes),
        rounds=form.rounds,
        ways={name: words for name, (_, words) in ways.items()},
    )
    modules = [each for each in feed.encoders.values() if isinstance(each, nn.Module)]
    return CostReport(
        schema=SCHEMA,
        quick=quick,
        form=form,
        measured=session(0, torch.device(place)),
        encoder_parameters=sum(weight.numel() for each in modules for weight in each.parameters()),
        costs=costs,
        sweep=None
        if iterated is None
        else sweep_steps(iterated, feed, steps=steps, passes=form.passes, rounds=form.rounds),
    )


def cost_tables(report: CostReport, *, paper: bool = False) -> dict[str, Table]:
    """By name: the arms, and the sweep over K; `paper` sets the published figures beside the full form."""
    words = _conditions(report)
    tables = {"arms": arms_table(report.costs, conditions=words, published=paper and not report.quick)}
    if report.sweep is not None:
        tables["sweep"] = sweep_table(report.sweep, conditions=words)
    if not report.quick:  # the paper's sizes, and its figures in two units
        tables = {name: replace(table, notes=(*table.notes, COST_BASIS)) for name, table in tables.items()}
    return tables


def write_cost(folder: Path, report: CostReport) -> None:
    """The report and its tables, sealed; an earlier measurement in the folder is replaced."""
    (folder / TABLES).mkdir(parents=True, exist_ok=True)
    made = as_files(cost_tables(report))
    remove([folder / SEAL, *(path for path in (folder / TABLES).iterdir() if path.name not in made)])
    for name, content in made.items():
        write_bytes(folder / TABLES / name, content)
    write_dataclass(folder / COST, report)
    write_seal(folder, [COST, *(f"{TABLES}/{name}" for name in made)])


def is_cost(folder: Path) -> bool:
    return (folder / COST).is_file()


def is_sealed_cost(folder: Path) -> bool:
    return is_cost(folder) and (folder / SEAL).is_file()


def verify_cost(folder: Path) -> Verification:
    """Rehash every file, and make the tables again from the report. The folder is only read."""
    found = Verification()

    def fault(name: str, message: str) -> None:
        found.faults.append(Fault(file=name, message=message))

    try:
        seal = read_seal(folder)
    except FormatError as error:
        fault(SEAL, str(error))
        return found
    if seal is None:
        fault(
            SEAL,
            "missing: measure again with `meq study run cost`, or the paper's command; older versions had none",
        )
        return found
    for name, entry in seal.files.items():
        if not (folder / name).is_file():
            fault(name, "missing")
        elif not entry.matches(folder / name):
            fault(name, "changed since it was sealed: its SHA-256 differs")
        else:
            found.hashes += 1
    for name in files_below(folder):
        if name not in (*seal.files, SEAL):
            fault(name, "not sealed: it was added")
    if found.faults:
        found.notes.append("the tables were not rebuilt: a file is damaged")
        return found
    for name, content in as_files(cost_tables(read_cost(folder))).items():
        found.tables += 1
        place = f"{TABLES}/{name}"
        if not (folder / place).is_file() or (folder / place).read_bytes() != content:
            fault(place, "it differs from the table that the report gives")
    return found


def read_cost(folder: Path) -> CostReport:
    if not (folder / COST).is_file():
        raise StudyError(f"{folder} has no {COST}: it is not the folder of a study of costs")
    return read_dataclass(CostReport, folder / COST)


def _conditions(report: CostReport) -> str:
    form, hardware = report.form, report.measured.hardware
    where = f"On {hardware.device} ({hardware.name}), threads: {hardware.threads}."
    encoders = f"{'small' if report.quick else 'paper-sized'} encoders"
    if form.encoders:
        rest = "" if len(form.encoders) == len(form.sizes) else f", others {'small' if report.quick else 'paper-sized'}"
        encoders = f"encoders of real size ({sizes_in_words(sizes_named(form.encoders))}{rest})"
    return (
        f"Forward pass only, batch {form.batch_size}, {form.image_tokens} image and {form.text_tokens} text tokens, "
        f"{encoders} ({report.encoder_parameters:,} parameters) included; "
        f"random weights and inputs. {'Counted, not computed.' if hardware.device == 'meta' else where}"
    )


# -- tables ------------------------------------------------------------------------------------------------------------


Unit = tuple[str, float]
"""What FLOPs are shown in: its name, and how many FLOPs it is."""


def _unit(costs: Sequence[Cost]) -> Unit:
    return ("MFLOPs", 1e6) if max(cost.flops for cost in costs) < SMALLEST_GIGA else ("GFLOPs", 1e9)


def arms_table(costs: Costs, *, conditions: str, published: bool = False) -> Table:
    """One line per arm; with `published`, the paper's figures beside it."""
    unit = _unit(costs.arms)
    rows: list[dict[str, Cell]] = []
    for cost in costs.arms:
        row: dict[str, Cell] = {"arm": cost.arm, "parameters": cost.parameters, **_cells(cost, unit)}
        row |= {"ms_ratio": costs.ms_ratio.get(cost.arm), "flops_ratio": costs.flops_ratio.get(cost.arm)}
        if published:
            figures = COSTS.get(cost.arm, (None, None, None))
            row |= dict(zip(("paper_ms", "paper_gflops", "paper_mb"), figures, strict=True))
        rows.append(row)
    notes = [conditions, *_meaning(costs.arms), *_way_notes(costs.arms)]
    if costs.reference is not None:
        notes.append(f"x: as a multiple of {costs.reference}, the cheapest arm that does not iterate.")
    if published:
        notes += ["paper (published): batch 32 on one RTX 3090; not measured here.", COST_SAID]
    return _table("cost: what does a forward pass cost?", rows, notes, unit)


def cost_table(cost: Cost, *, conditions: str, title: str) -> Table:
    """One line, of a model on its own."""
    unit = _unit([cost])
    return _table(title, [_cells(cost, unit)], [conditions, *_meaning([cost])], unit)


def _way_notes(costs: Sequence[Cost]) -> list[str]:
    """What the rows are that are not the model itself."""
    return [f"{cost.arm}: {cost.way}." for cost in costs if cost.way]


def sweep_table(sweep: Sweep, *, conditions: str, title: str = "cost: what does one more step cost?") -> Table:
    """One line per number of steps; what a step adds, and the base, are said below."""
    unit = _unit(sweep.points)
    rows: list[dict[str, Cell]] = [{"steps": point.steps, **_cells(point, unit)} for point in sweep.points]
    rows += [{"steps": way.arm, **_cells(way, unit)} for way in sweep.ways]
    notes = [conditions, *_meaning([*sweep.points, *sweep.ways]), *_way_notes(sweep.ways), *step_notes(sweep)]
    return _table(title, rows, notes, unit)


def step_notes(sweep: Sweep) -> list[str]:
    """What a step adds, whether memory moves, and what came of a run to tolerance."""
    flops, ms, found = sweep.flops, sweep.ms, sweep.to_tolerance
    name, size = _unit(sweep.points)
    notes = [
        f"A step adds {flops.per_step / size:.4f} {name} per sample, constant to within "
        f"{flops.deviation / size:.4f}, on a base of {flops.base / size:.4f} at K = 0."
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
    if found is not None:
        lost = f", {found.diverged:.0%} diverged" if found.diverged else ""
        notes.append(
            f"Left to run to a tolerance of {found.tolerance:g} with a cap of {found.cap} steps: "
            f"{found.mean_steps:.1f} steps on average, {found.most_steps} at most; {found.capped:.0%} of "
            f"{found.samples} samples reached the cap{lost}."
        )
    return notes


def _meaning(costs: Sequence[Cost]) -> list[str]:
    if all(cost.ms is None for cost in costs):
        return [MEMORY]
    if all(cost.cpu_ms is None for cost in costs):  # of older versions
        return [TIMES, MEMORY]
    counted = f"timed passes: {costs[0].passes}, rounds: {costs[0].rounds}"
    return [TIMES, f"CPU: time of the processor, of all threads of the process; {counted}.", MEMORY]


def _cells(cost: Cost, unit: Unit) -> dict[str, Cell]:
    name, size = unit
    return {
        "ms": cost.ms,
        "ms_low": cost.ms_low,
        "ms_high": cost.ms_high,
        "cpu_ms": cost.cpu_ms,
        "mean_steps": cost.mean_steps,
        name.lower(): cost.flops / size,
        "peak_mb": cost.peak_bytes / MEGA,
        "working_mb": cost.working_bytes / MEGA,
    }


def _table(title: str, rows: Sequence[Mapping[str, Cell]], notes: Sequence[str], unit: Unit) -> Table:
    """Without columns that nobody has a value for, such as times on the meta device."""
    titles = {"steps": "K", "ms": "ms / sample", "ms_low": "from", "ms_high": "to", "peak_mb": "peak MB"}
    titles |= {unit[0].lower(): f"{unit[0]} / sample", "working_mb": "of it working", "ms_ratio": "x time"}
    two = ("peak_mb", "working_mb", "ms_ratio", "flops_ratio", "paper_gflops", "mean_steps")
    titles |= {"cpu_ms": "CPU ms / sample", "mean_steps": "mean steps"}
    titles |= {"flops_ratio": "x FLOPs", "paper_ms": "paper (published): ms", "paper_gflops": "GFLOPs"}
    return Table.of(
        title,
        rows,
        keys=[key for key in rows[0] if any(row[key] is not None for row in rows)],
        titles=titles | {"paper_mb": "peak MB"},
        digits={**dict.fromkeys(("ms", "ms_low", "ms_high", "cpu_ms", "paper_ms"), 3), **dict.fromkeys(two, 2)},
        notes=notes,
    )
