"""benchmarks/results/*.json -> docs/benchmarks.md. Pure: the same records give the same bytes.

A section is a function from one record to Markdown, listed in SECTIONS under the name of its record; a section whose
record does not exist yet is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One of our cases, what it has to reach, and the cases of TorchDEQ that do the same work."""

    case: str
    label: str
    rivals: tuple[str, ...] = ()
    lighter: tuple[str, ...] = ()
    """Cases of TorchDEQ that do less work: they are shown, not judged against."""
    ratio: float | None = None
    megabytes: float | None = None

    @property
    def target(self) -> str:
        parts = [] if self.ratio is None else [f"≤ {self.ratio:.2f}"]
        parts += [] if self.megabytes is None else [f"≤ {self.megabytes:g} MB"]
        parts += ["ahead of TorchDEQ"] if self.rivals else []
        return ", ".join(parts)

    def misses(self, cases: Record) -> list[str]:
        """What was not reached, in words."""
        ratio, megabytes = cases[self.case]["ratio_median"], cases[self.case]["peak_live_MB"]
        found = []
        if self.ratio is not None and ratio > self.ratio:
            found.append(f"ratio {ratio:.3f} is above {self.ratio:.2f}")
        if self.megabytes is not None and megabytes > self.megabytes:
            found.append(f"{megabytes:.1f} MB is above {self.megabytes:g} MB")
        for rival in self.rivals:
            if ratio >= cases[rival]["ratio_median"]:
                found.append(f"slower than {rival}")
            if megabytes >= cases[rival]["peak_live_MB"]:
                found.append(f"more memory than {rival}")
        return found


FORWARD = [
    Row(
        case="meq/fwd damped",
        label="`Damped`",
        rivals=("torchdeq/fwd fixed_point_iter",),
        lighter=("torchdeq/fwd simple_fixed_point_iter",),
        ratio=1.05,
    ),
    Row(case="meq/fwd anderson", label="`Anderson`", rivals=("torchdeq/fwd anderson",), ratio=1.20),
    Row(case="meq/fwd anderson 5", label="`Anderson(history=5)`", rivals=("torchdeq/fwd anderson",)),
    Row(case="meq/fwd broyden", label="`Broyden`", rivals=("torchdeq/fwd broyden",), ratio=1.50),
]
TRAINING = [
    Row(case="meq/unrolled", label="`Unrolled`", rivals=("torchdeq/unrolled as pg-K",), ratio=1.05, megabytes=75),
    Row(case="meq/checkpointed", label="`Checkpointed`", ratio=1.50, megabytes=16),
    Row(
        case="meq/implicit",
        label="`Implicit`",
        rivals=("torchdeq/ift fixed_point_iter", "torchdeq/hook_ift fixed_point_iter"),
        ratio=1.05,
        megabytes=12,
    ),
    Row(case="meq/implicit anderson", label="`Implicit` by `Anderson(history=5)`", rivals=("torchdeq/ift anderson",)),
    Row(case="meq/implicit broyden", label="`Implicit` by `Broyden`", rivals=("torchdeq/ift broyden",)),
    Row(
        case="meq/phantom 1",
        label="`Phantom(1)`",
        rivals=("torchdeq/pg1 fixed_point_iter",),
        lighter=("torchdeq/pg1 simple_fpi",),
    ),
]


def coupled_block(record: Record) -> str:
    """The engine beside hand-written loops and TorchDEQ."""
    cfg, about = record["cfg"], record["about"]
    missed = [f"{row.label}: {miss}" for row in FORWARD + TRAINING for miss in row.misses(record["cases"])]
    verdict = "Every target is met." if not missed else f"**Not met**: {'; '.join(missed)}."
    return f"""## The engine: one coupled block

A coupled pair of attention blocks, width {cfg["d"]}, {cfg["nx"]} + {cfg["ny"]} tokens, batch {cfg["batch"]},
{cfg["K"]} steps ({cfg["KB"]} in the adjoint), float32, one thread. Each case is timed against the same work written
as a plain Python loop, in turns within every round. The *ratio* is the median, over {record["rounds"]} rounds, of CPU
time divided by that of the loop, with its quartiles; *peak* is the peak of live tensor memory. Every case of `meq`
keeps residuals per step, sample and modality, which the plain loop does not. TorchDEQ's cases that do the same work
stand below each of ours; those marked † keep no residuals at all and are shown, not judged against. TorchDEQ's
Anderson keeps five differences, more than ours does by default: `history=5` compares like with like.

Measured with meq {about["meq"]}, torch {about["torch"]}, TorchDEQ {about["torchdeq"]}, Python {about["python"]}, on
{about["cpu"]}. {verdict}

### Forward

{table(FORWARD, record["cases"])}

### Forward and backward

{table(TRAINING, record["cases"])}
"""


def table(rows: list[Row], cases: Record) -> str:
    """Each of our cases, then TorchDEQ's, then the loop they are all divided by."""
    lines = ["| case | ratio (quartiles) | peak MB | target | met? |", "|---|---|---|---|---|"]
    for row in rows:
        misses = row.misses(cases)
        met = "" if not row.target else "yes" if not misses else f"**missed**: {'; '.join(misses)}"
        lines.append(line(f"meq {row.label}", cases[row.case], row.target, met))
        lines += [line(f"TorchDEQ, {name(rival)}", cases[rival]) for rival in row.rivals]
        lines += [line(f"TorchDEQ, {name(rival)} †", cases[rival]) for rival in row.lighter]
    for base in dict.fromkeys(cases[row.case]["base"] for row in rows):
        lines.append(line(f"hand-written, {name(base)}", cases[base]))
    return "\n".join(lines)


def line(label: str, measured: Record, target: str = "", met: str = "") -> str:
    low, high = measured["ratio_q25"], measured["ratio_q75"]
    ratio = f"{measured['ratio_median']:.3f} ({low:.3f} to {high:.3f})"
    return f"| {label} | {ratio} | {measured['peak_live_MB']:.1f} | {target} | {met} |"


def name(case: str) -> str:
    """ "torchdeq/fwd anderson" -> "fwd anderson" """
    return case.partition("/")[2]


def block_fusion(record: Record) -> str:
    """The models' fused block beside the same block from `nn.MultiheadAttention`."""
    about = record["versions"]
    lines = [
        "| width | tokens | batch | mode | fused, CPU ms | separate, CPU ms | separate / fused (quartiles) | fusing |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in record["cases"]:
        size, ratio = case["size"], case["separate_over_fused"]
        low, high = ratio["lower_quartile"], ratio["upper_quartile"]
        gain = "gains" if low > 1 else "**loses**" if high < 1 else "no difference"
        fused, separate = (1000 * case[kind]["cpu_seconds"] for kind in ("fused", "separate"))
        lines.append(
            f"| {size['dim']} | {size['image']} + {size['text']} | {size['batch']} | {case['mode']} "
            f"| {fused:.1f} | {separate:.1f} | {ratio['median']:.3f} ({low:.3f} to {high:.3f}) | {gain} |"
        )
    rows = "\n".join(lines)
    return f"""## The block: what fusing gained

`MutualEquilibrium` norms each state once per step and makes all that is read from it in one matrix product. The
*separate* block is the same map with the same weights, written with `nn.MultiheadAttention`, a norm for every reader
and a gate on a concatenation; that both give the same states is checked before timing. Both run {record["steps"]}
steps through the same engine, *training* with the backward pass, in turns within each of {record["rounds"]} rounds, on
{record["threads"]} thread. Times are medians of CPU time. The ratio is the median over rounds with its quartiles;
where these lie on both sides of 1, no difference is claimed. Both blocks do the same products with weights, which take
nearly all the time at large sizes; what fusing saves is calls and copies, which count at small ones.

Measured with meq {about["meq"]}, torch {about["torch"]}, Python {about["python"]}.

{rows}

{flops_of_a_step(record["flops"])}
"""


def flops_of_a_step(flops: Record) -> str:
    size, paper = flops["size"], flops["paper_gflops_per_step"]
    whole, weighted = flops["gflops_per_step"], flops["gflops_per_step_without_attention"]
    reading = (
        "which is the number of multiply-adds in these"
        if abs(weighted / paper - 2) < 0.002
        else f"{paper / weighted:.2f} of these"
    )
    return f"""At {size["image"]} + {size["text"]} tokens and width {size["dim"]}, one step of one sample takes
{whole:.3f} GFLOPs, a multiply-add counted as two operations; {weighted:.3f} of them are products with weights, the rest
is attention itself. The paper states {paper} GFLOPs per step, {reading}."""


OBJECTIVE_ARMS = {
    "residual": "`ResidualCorrection`",
    "jacobian": "`JacobianRange`, one probe",
    "both": "both",
    "both, five probes": "both, five probes",
    "cross floor": "`CrossFloor`",
    "all three": "all three, one probe",
}
OBJECTIVE_TARGET = ("both", 1.35)


def objective_cost(record: Record) -> str:
    """Each penalty's share of a training step."""
    about = record["versions"]
    lines = [
        "| width | tokens | batch | with | CPU ms | over the task alone (quartiles) |",
        "|---|---|---|---|---|---|",
    ]
    for case in record["cases"]:
        size, arms = case["size"], case["arms"]
        place = f"| {size['dim']} | {size['image']} + {size['text']} | {size['batch']} "
        lines.append(f"{place}| the task alone | {1000 * arms['task']['cpu_seconds']:.0f} | 1 |")
        for arm, label in OBJECTIVE_ARMS.items():
            ratio, low, high = (arms[arm][f"ratio_{part}"] for part in ("median", "lower_quartile", "upper_quartile"))
            milliseconds = 1000 * arms[arm]["cpu_seconds"]
            lines.append(f"{place}| {label} | {milliseconds:.0f} | {ratio:.3f} ({low:.3f} to {high:.3f}) |")
    arm, limit = OBJECTIVE_TARGET
    worst = max(case["arms"][arm]["ratio_median"] for case in record["cases"])
    verdict = f"is met: {worst:.3f} at most" if worst <= limit else f"is **not met**: up to {worst:.3f}"
    rows = "\n".join(lines)
    return f"""## The objective: what the penalties cost

A training step of `MutualEquilibrium` with {record["steps"]} steps, unrolled: forward, objective and backward, without
the optimiser. All penalties share one evaluation of T at the read state; every probe of the Jacobian adds a product
that is differentiated again. The ratio is the median, over {record["rounds"]} interleaved rounds on {record["threads"]}
thread, of CPU time divided by that of the task alone in the same round, with its quartiles. The target, both penalties
with one probe within {limit} of the task alone, {verdict}.

Measured with meq {about["meq"]}, torch {about["torch"]}, Python {about["python"]}.

{rows}
"""


def depth_cost(record: Record) -> str:
    """Gradients through the last steps alone."""
    about, size, steps = record["versions"], record["size"], record["steps"]
    lines = [
        "| steps with gradients | CPU ms | over all of them (quartiles) | peak MB | over all of them |",
        "|---|---|---|---|---|",
    ]
    whole = record["cases"][str(steps)]
    for tracked, case in record["cases"].items():
        ratio, low, high = (case[f"ratio_{part}"] for part in ("median", "lower_quartile", "upper_quartile"))
        peak = case["peak_bytes"]
        lines.append(
            f"| {'all' if int(tracked) == steps else f'the last {tracked}'} | {1000 * case['cpu_seconds']:.0f} "
            f"| {ratio:.2f} ({low:.2f} to {high:.2f}) | {peak / 1e6:.1f} | {peak / whole['peak_bytes']:.2f} |"
        )
    rows = "\n".join(lines)
    return f"""## A deep update: gradients through the last steps alone

An update of `MutualEquilibrium` at {steps} steps without the optimiser, width {size["dim"]}, {size["tokens"]} +
{size["tokens"]} tokens, batch {size["batch"]}: `Unrolled` against `Phantom(n)`, which late starts and Poisson depths
(`TrainConfig.depth`) are made of. Ratios are medians over {record["rounds"]} interleaved rounds on {record["threads"]}
thread; *peak* is the peak of live tensor memory.

Measured with meq {about["meq"]}, torch {about["torch"]}, Python {about["python"]}.

{rows}
"""


STORE_TARGETS = {"times faster": 50.0, "share of a step": 0.05}


def feature_store(record: Record) -> str:
    """Reading features beside computing them again."""
    about, store, tokens = record["versions"], record["store"], record["tokens"]
    reading, encoding, waiting = record["reading"], record["encoding"], record["waiting"]
    again = encoding["cpu_per_second"]
    lines = ["| examples per CPU second | rate | over encoding again |", "|---|---|---|"]
    lines += [
        f"| {case} | {x['cpu_per_second']:,.0f} | {x['cpu_per_second'] / again:,.0f} |" for case, x in reading.items()
    ]
    lines.append(f"| the picture encoded again | {again:.1f} | 1 |")
    times, share = reading["first, in batches"]["cpu_per_second"] / again, waiting["equilibrium"]["share_median"]
    at_least, below = STORE_TARGETS["times faster"], STORE_TARGETS["share of a step"]
    faster = f"is met: {times:,.0f} times" if times >= at_least else f"is **not met**: {times:,.1f} times"
    short = f"is met: {100 * share:.2f} %" if share < below else f"is **not met**: {100 * share:.1f} %"
    rows = "\n".join(lines)
    return f"""## The feature store: reading instead of encoding

A store of {store["items"]:,} random items, half of them pictures with {tokens["image"]} tokens and half texts with up
to {tokens["text"]}, {tokens["width"]} wide, in float16: {store["megabytes"]:,.0f} MB in {store["shards"]} shards. An
example is a picture and a text. A *first* epoch reads a store that was just opened, and checks every item against its
checksum; a *later* one reads the same items again. *In batches* includes collation into batches of {waiting["batch"]}.
Encoding again is that of the picture alone, from a JPEG file to tokens, by a randomly initialised model of CLIP-B/32's
size ({encoding["through"]}), over {encoding["pictures"]} pictures. Rates are medians over {record["rounds"]} rounds, on
{record["threads"]} thread, in CPU time: the store is in the system's page cache, and waiting for a disk is not counted.

The target, a first epoch in batches at least {at_least:g} times faster than encoding the pictures again, {faster}.

{rows}

{waits(waiting)} The target, less than {100 * below:g} % for the equilibrium, {short}.

Measured with meq {about["meq"]}, torch {about["torch"]}, Python {about["python"]}.
"""


def waits(waiting: Record) -> str:
    """What a training step spends on its batch."""
    parts = []
    for model in ("equilibrium", "concat"):
        measured = waiting[model]
        share, low, high = (100 * measured[f"share_{part}"] for part in ("median", "lower_quartile", "upper_quartile"))
        parts.append(f"{share:.2f} % ({low:.2f} to {high:.2f}) of {1000 * measured['step_cpu_seconds']:,.0f} ms")
    return f"""Reading and collating a batch of {waiting["batch"]} takes {parts[0]}, a step of `MutualEquilibrium` at
width {waiting["dim"]} with {waiting["depth"]} steps and both penalties, and {parts[1]}, a step
of `Concat`, the cheapest model there is; medians and quartiles over {waiting["steps"]} steps, in CPU time."""


def store_memory(record: Record) -> str:
    """What measures hold of a set that lies in a store."""
    about, cases = record["versions"], record["cases"]
    lines = [
        "| measure | examples | MB when it begins | it adds at most, MB | the logits of every step, MB |",
        "|---|---|---|---|---|",
    ]
    for name, sizes in cases.items():
        for count, case in sizes.items():
            added = (case["peak_kb"] - case["before_kb"]) / 1000
            logits = int(count) * record["all_logits_bytes"] / 1e6 if name == "steps" else None
            lines.append(
                f"| `{name}` | {int(count):,} | {case['before_kb'] / 1000:.0f} | {added:.0f} "
                f"| {'' if logits is None else f'{logits:,.0f}'} |"
            )
    rows = "\n".join(lines)
    few, many = (cases["steps"][str(count)] for count in sorted(map(int, cases["steps"])))
    more = max(map(int, cases["steps"])) - min(map(int, cases["steps"]))
    each = (many["before_kb"] - few["before_kb"]) * 1000 / more
    return f"""## A large set: what measures hold of it

Two measures of an untrained model on random features in a store, with soft labels over {record["answers"]:,} answers
as VQA v2 has; every line is a process of its own, the largest memory the system saw it hold. A measure reads the store
batch by batch and keeps sums, so that what it adds hardly grows with the set; keeping the logits of every step, as a
score that is no mean over samples needs them, would. What grows is the index of the store, the keys and places of its
contents: about {each / 1000:.1f} kB per example.

Measured with meq {about["meq"]}, torch {about["torch"]}, Python {about["python"]}, on {record["threads"]} thread.

{rows}
"""


def offline_encoders(record: Record) -> str:
    """Networks that pip installs, by a linear probe."""
    about, encoders = record["versions"], record["encoders"]
    asked = list(next(iter(encoders.values()))["accuracy"])
    lines = [f"| encoder | {' | '.join(asked)} | CPU ms a picture |", "|---" * (len(asked) + 2) + "|"]
    for name, x in encoders.items():
        cells = [f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}" for values in x["accuracy"].values()]
        lines.append(f"| {name} | {' | '.join(cells)} | {1000 * x['cpu_seconds_per_picture']:.0f} |")
    called = [name for name, x in record["efficientnet minus mobilenet"].items() if x["called"]]
    rows = "\n".join(lines)
    return f"""## Picture encoders that pip installs

Shape, colour and both of easy-VQA's pictures, in percent, by a linear classifier on the mean or the maximum of the
tokens; {about["train"]} pictures to learn from, {about["test"]} others to be tested on, {about["draws"]} draws (mean
and standard deviation), the same pictures for every encoder. Differences between the two networks that are called:
{"; ".join(called) or "none"}. `cnn` is EfficientNet-Lite0 whatever this table says: the package of MobileNetV2's
weights requires torch 1.6 and cannot be installed beside a current one.

{rows}

Measured with meq {about["meq"]}, torch {about["torch"]}, on one thread.
"""


def scaling(record: Record) -> str:
    base = ", ".join(f"{name} {value}" for name, value in record["base"].items())
    sizes = record["throughput"]
    tokens = " + ".join(str(count) for count in sizes["tokens"].values())
    arms = sizes["arms"]
    cheaper = [f"{arms[name]['found']:.1f} times with {words}" for name, words in CHEAPER.items()]
    return "\n".join(
        [
            SCALING.format(base=base, rounds=record["rounds"], threads=record["threads"], **record["versions"]),
            *(_growth_line(axis, found) for axis, found in record["axes"].items()),
            "",
            THROUGHPUT.format(ours=arms["meq"]["found"], cheaper=" and ".join(cheaper), **{**sizes, "tokens": tokens}),
            *(
                f"| {name} | {found['parameters']:,} | {found['samples_per_cpu_second']:.0f} "
                f"| {found['found']:.2f} ({found['lower']:.2f} to {found['upper']:.2f}) |"
                for name, found in arms.items()
            ),
            "",
        ]
    )


CHEAPER = {"meq, last three steps": "gradients through the last three steps", "meq, implicit": "implicit ones"}
SCALING = """## Scaling: how the cost of a forward pass grows

A forward pass of `MutualEquilibrium` without gradients, in which one size at a time changes; the others are {base}
(tokens are those of each modality). The exponent p is that of cost ~ size^p: over the whole range, by least squares in
logarithms, and between the last two sizes. Medians over {rounds} interleaved rounds of CPU time, threads: {threads}.

Measured with meq {meq}, torch {torch}, Python {python}.

| size | from, CPU ms | to, CPU ms | exponent of time | between the last two | exponent of FLOPs |
|---|---|---|---|---|---|"""
THROUGHPUT = """### What training gets done

An update (forward, objective, backward, optimiser) of arms of about the equilibrium's size, width {width}, {tokens}
tokens, batch {batch}; the equilibrium with K = {steps} and both penalties of the paper. Its update takes {ours:.1f}
times that of cross-attention; {cheaper}.

| arm | parameters | samples per CPU second | an update by that of cross-attention (quartiles) |
|---|---|---|---|"""


def _growth_line(axis: str, found: Record) -> str:
    first, last = (f"{found['values'][place]}: {1000 * found['cpu_seconds'][place]:.1f}" for place in (0, -1))
    time, work = found["time"], found["work"]
    return f"| {axis} | {first} | {last} | {time['exponent']:.2f} | {time['last']:.2f} | {work['exponent']:.2f} |"


def speed(results: Path) -> str:
    """One table of all lines that have a target, from every `speed_*.json`; "" where there is none."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("speed_*.json"))]
    lines = sorted((line for record in records for line in record["lines"]), key=lambda line: line["number"])
    if not lines:
        return ""
    missed = [line for line in lines if _met(line) is False]
    judged = [line for line in lines if line["limit"] is not None]
    told = f"{len(judged) - len(missed)} of {len(judged)} targets are met."
    head = SPEED.format(told=told, **records[0]["versions"])
    return "\n".join([head, *map(_speed_line, lines), ""])


SPEED = """## Speed: only what is needed

What the equilibrium does not have to do: steps after the answer, tokens that are padding, bits beyond what the answer
takes. *Found* is a ratio of CPU times, where no unit stands beside it: the median over interleaved rounds, with its
quartiles. {told}

Measured with meq {meq}, torch {torch}, Python {python}.

| # | what | found (quartiles) | target | met? |
|---|---|---|---|---|"""


def _speed_line(line: Record) -> str:
    unit = f" {line['unit']}" if line["unit"] else ""
    spread = "" if line["lower"] is None else f" ({line['lower']:.3g} to {line['upper']:.3g})"
    note = f". {line['note']}" if line["note"] else ""
    target = "" if line["limit"] is None else f"≤ {line['limit']:.4g}{unit}"
    met = {None: "", True: "yes", False: "**missed**"}[_met(line)]
    return f"| {line['number']} | {line['what']}{note} | {line['found']:.3g}{unit}{spread} | {target} | {met} |"


def _met(line: Record) -> bool | None:
    return None if line["limit"] is None else bool(line["found"] <= line["limit"])


SECTIONS: list[tuple[str, Callable[[Record], str]]] = [
    ("coupled_block", coupled_block),
    ("block_fusion", block_fusion),
    ("objective_cost", objective_cost),
    ("depth_cost", depth_cost),
    ("scaling", scaling),
    ("feature_store", feature_store),
    ("store_memory", store_memory),
    ("offline_encoders", offline_encoders),
]

INTRODUCTION = """# Benchmarks

Generated by `benchmarks/render.py` from the records in `benchmarks/results/`; do not edit. `make bench` measures again,
in an environment of its own, and rewrites this page.
"""


def render(results: Path = RESULTS) -> str:
    """The whole page."""
    records = [(results / f"{record}.json", section) for record, section in SECTIONS]
    parts = [section(json.loads(path.read_text(encoding="utf-8"))) for path, section in records if path.exists()]
    lines = speed(results)
    return "\n".join([INTRODUCTION, *([lines] if lines else []), *parts])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
