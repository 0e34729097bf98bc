"""What the engine saves by not doing work: samples that are done, padding, memory, gradients of few steps, one sample.

    python benchmarks/less_work.py --harness path/to/coupled_block.py

times each against the same work done whole, in interleaved rounds of CPU time on one thread, and writes
`benchmarks/results/speed_less_work.json` in about a quarter of an hour. Encoders are of the sizes of CLIP-B/32 and
BERT-base with random weights; the comparison harness has the hand-written loop that a batch of one is held against.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coupled_block_cases
import speed
import torch
from speed import Line, interleaved, ratios
from torch import Tensor
from torch.nn import functional as F

import meq
from meq.core.iteration import AtSteps
from meq.models.base import FusionModel
from meq.studies.cost import Feed, PeakBytes
from meq.studies.cost_study import matched_arms, paper_encoders

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDTH, IMAGE, TEXT, BATCH, STEPS = 768, 50, 32, 16, 10
SIZE = f"width {WIDTH}, {IMAGE} + {TEXT} tokens, batch {BATCH}"


def equilibrium(steps: int = STEPS, **options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"dim": WIDTH, "heads": 8, "steps": steps, "tol": 0.0}
    return meq.MutualEquilibrium({"image": WIDTH, "text": WIDTH}, 3, **{**shape, **options}).eval()


def features(batch: int = BATCH, width: int = WIDTH, tokens: tuple[int, int] = (IMAGE, TEXT)) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(batch, count, width, generator=generator)
        for name, count in zip(("image", "text"), tokens, strict=True)
    }


def without_gradients(call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            call()

    return run


def rows_leave(rounds: int) -> list[Line]:
    """2: samples that are done leave the batch."""
    model, x = equilibrium(), features()
    with torch.no_grad():
        context = model.coupling.prepare(x, {}, None)
    lines = []
    for words, steps in {
        "every sample at a step of its own": torch.arange(BATCH) * STEPS // BATCH + 1,
        "most of them early": torch.tensor([1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8, 10]),
        "all of them at the end": torch.full((BATCH,), STEPS),
    }.items():
        share = float(steps.double().mean()) / STEPS

        def solved(leaving: bool, steps: Tensor = steps) -> Callable[[], None]:
            def call() -> None:
                model.coupling.rows_leave = leaving
                meq.solve(model.coupling, context, steps=STEPS, tol=0.0, stop_when=AtSteps(steps))

            return without_gradients(call)

        found = ratios(interleaved({"leave": solved(True), "stay": solved(False)}, rounds), "leave", "stay")
        what = f"{words} ({share:.2f} of all steps): done samples leave, by their staying; {SIZE}"
        lines.append(Line(number=2, what=what, limit=1.03 if share == 1 else share + 0.1, **found))
    return lines


def read_early() -> dict[str, float]:
    """From the committed study `anytime` on `scenes`: by rule, the mean share of K after which samples are read."""
    shares: dict[str, list[float]] = {}
    for path in sorted((RESULTS / "anytime-scenes-quick" / "runs").glob("*/*/measures/stopping.json")):
        found = json.loads(path.read_text(encoding="utf-8"))["found"]
        for rule, reading in found["readings"]["test"].items():
            shares.setdefault(rule, []).append(reading["steps"] / found["own"])
    return {rule: statistics.mean(each) for rule, each in shares.items()}


def drawn_steps(share: float, depth: int, batch: int) -> Tensor:
    """A step for every sample, spread around the mean as the rule's are: at least one, at most all."""
    levels = (torch.arange(batch, dtype=torch.float64) + 0.5) / batch
    mean = share * depth
    steps = (2 * mean * levels).round().clamp(1, depth)  # even from 0 to twice the mean
    return steps.long()


def early_reading(rounds: int) -> list[Line]:
    """3: the whole forward at real size, by that of concatenation."""
    share = read_early().get("confidence")
    feed, arms = paper_encoders(quick=False), matched_arms(("concat", "meq"), quick=False, depths=(10, 6))
    feed = Feed(encoders=feed.encoders, raw={name: x[:BATCH] for name, x in feed.raw.items()})
    cases: dict[str, Callable[[], Any]] = {"concat": whole(arms["concat"], feed)}
    for depth in (10, 6):
        cases[f"all {depth}"] = whole(arms[f"meq K={depth}"], feed)
        if share is not None:
            cases[f"early {depth}"] = whole(arms[f"meq K={depth}"], feed, drawn_steps(share, depth, BATCH))
    seconds = interleaved(cases, rounds)
    lines = []
    for depth, limit in ((10, 1.9), (6, 1.55)):
        sizes = f"CLIP-B/32 and BERT-base, batch {BATCH}: the whole forward by that of `Concat`"
        lines.append(
            Line(
                number=3,
                what=f"{sizes}, all K = {depth} steps",
                limit=None,
                **ratios(seconds, f"all {depth}", "concat"),
            )
        )
        if share is not None:
            mean = float(drawn_steps(share, depth, BATCH).double().mean())
            note = f"As far as the rule of confidence reads `scenes`, {share:.0%} of K"
            what = f"{sizes}, read early, after {mean:.1f} of {depth} steps"
            lines.append(
                Line(number=3, what=what, limit=limit, note=note, **ratios(seconds, f"early {depth}", "concat"))
            )
    return [*lines, *peaks(arms, feed)]


def whole(model: FusionModel, feed: Feed, steps: Tensor | None = None) -> Callable[[], None]:
    """Encoders and model; with `steps`, every sample is read at its own."""

    def call() -> None:
        if steps is None:
            model(feed.encoded())
            return
        assert isinstance(model, meq.MutualEquilibrium)
        x = feed.encoded()
        solution = meq.solve(
            model.coupling, model.coupling.prepare(x, {}, None), solver=model.damped(), steps=model.steps, tol=0.0,
            stop_when=AtSteps(steps),
        )  # fmt: skip
        model.read(solution.state, {})

    return without_gradients(call)


def peaks(arms: dict[str, FusionModel], feed: Feed) -> list[Line]:
    """6: what the whole forward holds at most."""
    held = {}
    for name in ("concat", "meq K=10"):
        with PeakBytes([*feed.weights(), *feed.tensors(), *arms[name].parameters()]) as memory:
            whole(arms[name], feed)()
        held[name] = memory.peak
    what = f"CLIP-B/32 and BERT-base, batch {BATCH}: the most that a forward holds besides weights, by that of `Concat`"
    note = f"{held['meq K=10'] / 1e6:.0f} MB by {held['concat'] / 1e6:.0f} MB"
    return [Line(number=6, what=what, found=held["meq K=10"] / held["concat"], limit=1.04, note=note)]


def padding(rounds: int) -> list[Line]:
    """5: tokens that are padding take no part in products with weights."""
    model, x = equilibrium(), features()
    lengths = torch.linspace(6, TEXT, BATCH).round().long()
    masks = {"text": torch.arange(TEXT) < lengths[:, None]}
    share = (BATCH * IMAGE + int(masks["text"].sum())) / (BATCH * (IMAGE + TEXT))
    all_true = {"text": torch.ones_like(masks["text"])}
    cases = {"packed": without_gradients(lambda: model(x, masks)), "all": without_gradients(lambda: model(x, all_true))}
    found = ratios(interleaved(cases, rounds), "packed", "all")
    real = float(masks["text"].double().mean())
    what = f"{real:.0%} of the text tokens real, {share:.3f} of all: time by that of as many real ones; {SIZE}"
    return [Line(number=5, what=what, limit=1.02 * share, **found)]


def gradients(rounds: int) -> list[Line]:
    """7 and 8: an update with cheaper gradients."""
    lines = []
    for dim, tokens, batch in ((128, (16, 16), 32), (256, (IMAGE, TEXT), 8)):
        torch.manual_seed(0)
        model = meq.MutualEquilibrium({"image": dim, "text": dim}, 3, dim, heads=8, steps=STEPS, tol=0.0)
        x, target = features(batch, dim, tokens), torch.arange(batch) % 3

        def update(
            backward: meq.Backward, model: Any = model, x: Any = x, target: Tensor = target
        ) -> Callable[[], Any]:
            def call() -> meq.Solution:
                model.backward = backward
                model.zero_grad(set_to_none=True)
                out = model(x)
                F.cross_entropy(out.logits, target).backward()
                return out.solution

            return call

        cases = {"all": update(meq.Unrolled()), "implicit": update(meq.Implicit()), "three": update(meq.Phantom(3))}
        seconds = interleaved(cases, rounds)
        adjoint = cases["implicit"]().adjoint
        left = max(float(rows[-1].nanmean()) for rows in adjoint.residuals.values())
        size = f"width {dim}, {tokens[0]} + {tokens[1]} tokens, batch {batch}, K = {STEPS}"
        what = f"an update by `Implicit()`, by one by `Unrolled()`; {size}"
        note = f"The adjoint equation is left with a residual of {left:.1e}"
        lines.append(Line(number=7, what=what, limit=1.0, note=note, **ratios(seconds, "implicit", "all")))
        what = f"an update with gradients through the last three steps (`--fast`), by one through all; {size}"
        lines.append(Line(number=8, what=what, limit=None, **ratios(seconds, "three", "all")))
    return lines


def one_sample(rounds: int, harness: Path) -> list[Line]:
    """12: a solve of one sample by the hand-written loop."""
    sys.path.insert(0, str(harness.parent))
    import coupled_block  # the comparison harness, which is not part of the package

    config = coupled_block.Cfg(batch=1)
    block, x, y = coupled_block.make_problem(config)
    plain = coupled_block.plain_cases(block, x, y, config)["plain/fwd"].run
    ours = coupled_block_cases.cases(block, x, y, config)["meq/fwd damped"].run
    cases = {"meq": lambda: [ours() for _ in range(8)], "plain": lambda: [plain() for _ in range(8)]}
    size = f"width {config.d}, {config.nx} + {config.ny} tokens, {config.K} steps"
    what = f"a solve of one sample by the hand-written loop; {size}"
    return [Line(number=12, what=what, limit=1.10, **ratios(interleaved(cases, 5 * rounds), "meq", "plain"))]


def measure(rounds: int, harness: Path) -> list[Line]:
    parts = [rows_leave, early_reading, padding, gradients]
    return [*(line for part in parts for line in part(rounds)), *one_sample(rounds, harness)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--harness", type=Path, required=True)
    asked, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    speed.run_lines(
        "What the engine saves by not doing work.", "less_work", 9, lambda rounds: measure(rounds, asked.harness)
    )
