"""What fusing gained: the library's coupled block against the same block written with `nn.MultiheadAttention`.

    python benchmarks/block_fusion.py

runs both, with the same weights, through the same engine, in interleaved rounds on one thread, and writes
`benchmarks/results/block_fusion.json` in about five minutes. Expect little on a CPU: nearly all the time goes into
products of matrices, and both blocks do the same ones. What fusing saves is calls and copies.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import record
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import meq
from meq.models.equilibrium import Coupling

STEPS = 10
PAPER_GFLOPS_PER_STEP = 1.687


@dataclass(frozen=True, kw_only=True)
class Size:
    name: str
    dim: int
    heads: int
    image: int
    text: int
    batch: int


SIZES = (
    Size(name="paper", dim=768, heads=8, image=50, text=32, batch=4),
    Size(name="paper, one sample", dim=768, heads=8, image=50, text=32, batch=1),
    Size(name="small", dim=128, heads=8, image=16, text=16, batch=32),
    Size(name="small, one sample", dim=128, heads=8, image=16, text=16, batch=1),
)
COUNTED = Size(name="counted", dim=768, heads=8, image=50, text=60, batch=1)


class SeparateSide(nn.Module):
    """F of one modality as one would write it from torch's own parts: every reader has its own norm and projection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.own_norm, self.cross_norm, self.other_norm = (nn.LayerNorm(dim) for _ in range(3))
        self.own_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.own_feed, self.cross_feed = (
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(2)
        )
        self.balance = nn.Parameter(torch.zeros(()))
        self.settle, self.gate = nn.LayerNorm(dim), nn.Linear(2 * dim, dim)

    def forward(self, z: Tensor, other: Tensor, injection: Tensor) -> Tensor:
        n = self.own_norm(z)
        own = z + self.own_attention(n, n, n, need_weights=False)[0]
        own = own + self.own_feed(own)
        shown = self.other_norm(other)
        cross = z + self.cross_attention(self.cross_norm(z), shown, shown, need_weights=False)[0]
        cross = cross + self.cross_feed(cross)
        alpha = torch.sigmoid(self.balance)
        proposal = self.settle(alpha * own + (1 - alpha) * cross + injection)
        openness = torch.sigmoid(self.gate(torch.cat([n, proposal], dim=-1)))
        return z + openness * (proposal - z)

    @torch.no_grad()
    def copy_from(self, name: str, coupling: Coupling) -> None:
        """The weights of a side of the library, whose other side's norm and shown keys and values are read here."""
        side: Any = coupling.sides[name]
        (other,) = (each for each in coupling.sides if each != name)
        own, shown = (slots_of(coupling.sides[each]) for each in (name, other))
        for norm, source in ((self.own_norm, name), (self.cross_norm, name), (self.other_norm, other)):
            norm.load_state_dict(coupling.sides[source].norm.state_dict())
        fill(self.own_attention, [own["own_query"], own["own_key"], own["own_value"]], side.own_output)
        fill(self.cross_attention, [own["cross_query"], shown["shown_key"], shown["shown_value"]], side.cross_output)
        for feed, source in ((self.own_feed, side.own_feed), (self.cross_feed, side.cross_feed)):
            for mine, theirs in ((feed[0], source.norm), (feed[1], source.widen), (feed[3], source.narrow)):
                mine.load_state_dict(theirs.state_dict())
        self.balance.copy_(side.balance)
        self.settle.load_state_dict(side.settle.state_dict())
        self.gate.weight.copy_(torch.cat([own["gate"][0], side.gate.read_proposal.weight], dim=1))
        self.gate.bias.copy_(own["gate"][1])


def slots_of(side: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Weight and bias of every piece of a side's one projection."""
    count = len(side.slots)
    pieces = zip(side.project.weight.chunk(count), side.project.bias.chunk(count), strict=True)
    return dict(zip(side.slots, pieces, strict=True))


def fill(attention: nn.MultiheadAttention, pieces: Sequence[tuple[Tensor, Tensor]], output: nn.Linear) -> None:
    attention.in_proj_weight.copy_(torch.cat([weight for weight, _ in pieces]))
    attention.in_proj_bias.copy_(torch.cat([bias for _, bias in pieces]))
    attention.out_proj.load_state_dict(output.state_dict())


class SeparateCoupling(meq.Operator):
    """T from two separate sides; its inputs are those of the library's coupling."""

    def __init__(self, size: Size, coupling: Coupling) -> None:
        super().__init__()
        self.sides = nn.ModuleDict({name: SeparateSide(size.dim, size.heads) for name in coupling.sides})
        for name in coupling.sides:
            self.sides[name].copy_from(name, coupling)

    def start(self, inputs: dict[str, Any]) -> meq.State:
        return dict(inputs["injection"])

    def forward(self, state: meq.State, inputs: dict[str, Any]) -> meq.State:
        injection = inputs["injection"]
        return {
            "image": self.sides["image"](state["image"], state["text"], injection["image"]),
            "text": self.sides["text"](state["text"], state["image"], injection["text"]),
        }


def prepared(size: Size) -> tuple[Coupling, dict[str, Any]]:
    torch.manual_seed(0)
    model = meq.MutualEquilibrium({"image": size.dim, "text": size.dim}, dim=size.dim, heads=size.heads)
    features = {
        "image": torch.randn(size.batch, size.image, size.dim),
        "text": torch.randn(size.batch, size.text, size.dim),
    }
    with torch.no_grad():
        return model.coupling, model.coupling.prepare(features, {}, None)


def run_forward(operator: meq.Operator, inputs: dict[str, Any]) -> meq.State:
    operator.eval()  # where MultiheadAttention may take its fast path
    with torch.no_grad():
        return meq.solve(operator, inputs, steps=STEPS, tol=0).state


def run_training(operator: meq.Operator, inputs: dict[str, Any]) -> meq.State:
    operator.train()
    operator.zero_grad(set_to_none=True)
    state = meq.solve(operator, inputs, steps=STEPS, tol=0).state
    torch.stack([z.square().mean() for z in state.values()]).sum().backward()
    return state


Mode = Callable[[meq.Operator, dict[str, Any]], meq.State]
MODES: dict[str, Mode] = {"forward": run_forward, "training": run_training}


def check_equal(fused: Coupling, separate: SeparateCoupling, inputs: dict[str, Any]) -> None:
    """Same states, and the same gradient where one weight serves one reader in both."""
    for run in MODES.values():
        torch.testing.assert_close(run(fused, inputs), run(separate, inputs), rtol=1e-4, atol=1e-4)
    for name, side in fused.sides.items():
        ours: Any = side
        theirs: Any = separate.sides[name]
        torch.testing.assert_close(ours.settle.weight.grad, theirs.settle.weight.grad, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(ours.balance.grad, theirs.balance.grad, rtol=1e-3, atol=1e-6)


def measure(size: Size, rounds: int) -> list[dict[str, Any]]:
    fused, inputs = prepared(size)
    separate = SeparateCoupling(size, fused)
    check_equal(fused, separate, inputs)  # warms up, too
    operators = {"fused": fused, "separate": separate}
    cases = []
    for mode, run in MODES.items():  # one mode after the other: a process that serves a model does not train between
        samples: dict[str, list[Sample]] = {kind: [] for kind in operators}
        for index in range(rounds):
            # the order turns from round to round, so that neither block is always the first
            for kind in list(operators)[:: 1 if index % 2 else -1]:
                samples[kind].append(sample(run, operators[kind], inputs))
        cases.append(summarise(size, mode, **samples))
    return cases


@dataclass(frozen=True)
class Sample:
    cpu_seconds: float
    page_faults: int
    """Memory that the allocator gave back and asked for again: time that belongs to the heap, not to the block."""


def sample(run: Mode, operator: meq.Operator, inputs: dict[str, Any]) -> Sample:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    begin = time.process_time()
    run(operator, inputs)
    seconds = time.process_time() - begin
    return Sample(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)


def summarise(size: Size, mode: str, fused: list[Sample], separate: list[Sample]) -> dict[str, Any]:
    ratios = [slow.cpu_seconds / fast.cpu_seconds for fast, slow in zip(fused, separate, strict=True)]
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    medians = {
        kind: {
            "cpu_seconds": statistics.median(each.cpu_seconds for each in samples),
            "page_faults": statistics.median(each.page_faults for each in samples),
        }
        for kind, samples in (("fused", fused), ("separate", separate))
    }
    ratio = {"lower_quartile": lower, "median": middle, "upper_quartile": upper}
    return {"size": asdict(size), "mode": mode, **medians, "separate_over_fused": ratio}


def count_flops() -> dict[str, Any]:
    """One call of T for one sample, a multiply-add being two operations; the counter sees into math attention only."""
    coupling, inputs = prepared(COUNTED)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        coupling(coupling.start(inputs), inputs)
    by_operation = counter.get_flop_counts()["Global"]
    with_weights = sum(by_operation.get(each, 0) for each in (torch.ops.aten.addmm, torch.ops.aten.mm))
    return {
        "size": asdict(COUNTED),
        "gflops_per_step": counter.get_total_flops() / 1e9,
        "gflops_per_step_without_attention": with_weights / 1e9,
        "paper_gflops_per_step": PAPER_GFLOPS_PER_STEP,
    }


def main() -> None:
    def everything(rounds: int) -> dict[str, Any]:
        cases = [case for size in SIZES for case in measure(size, rounds)]
        return {"steps": STEPS, "cases": cases, "flops": count_flops()}

    record.run("The fused block against nn.MultiheadAttention.", "block_fusion", 21, everything)


if __name__ == "__main__":
    main()
