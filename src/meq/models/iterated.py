"""What every model that iterates has in common: a coupling, a budget, a damping step, a way of taking gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from meq.core.backward import Backward, Phantom, check_backward
from meq.core.iteration import StopRule
from meq.core.operator import Operator
from meq.core.registry import described, made_backward, made_solver
from meq.core.solution import Solution
from meq.core.solve import solve
from meq.core.solvers import Damped, Solver, check_solver
from meq.core.state import State, per_sample
from meq.models.admit import Features, TokenMasks
from meq.models.anytime import Anytime, check_anytime
from meq.models.base import FusedState, FusionModel
from meq.models.blocks import AllTokens, RealTokens
from meq.models.plan import DepthPlan, solve_planned
from meq.options import letters_apart, nearest, real_number, tolerance, whole_number

CHOICES: ContextVar[int] = ContextVar("rows that are the choices of one example", default=1)
"""What a stopping rule has to know of multiple choice. `fuse` is for others to write and does not pass it on; an
attribute of the model would be shared by its threads."""


class _Context(TypedDict):
    """What the context of every operator has."""

    features: Features
    feature_masks: TokenMasks
    injection: State
    """f(x), by state."""
    masks: dict[str, Tensor]
    """Which tokens of each state are real, as the mixers read it."""
    own_keys: dict[str, Tensor | None]
    """By state: the mask of its own tokens for attention; None where all are real."""
    keep: dict[str, dict[str, Tensor]]
    """Dropout masks by state and site; empty in eval mode."""


class Context(_Context, total=False):
    """What stays the same along the iteration, every tensor batch-first; a plain dict, so that rows can be taken."""

    cross_keys: dict[str, Tensor | None]
    """By state: the mask over all the others' tokens, one after the other."""
    someone: dict[str, Tensor | None]
    """By state: which samples have another modality to read; None where all have."""
    lengths: dict[str, int]
    """How many tokens each modality has in one joint state."""
    tokens: dict[str, RealTokens | AllTokens]
    """By state: the tokens that one step works on, where padding is left out of it. Made anew at every step, since
    samples leave the batch."""


class PreparedOperator(Operator):
    """A map whose inputs are a `Context`, made once per solve from a batch's features."""

    rows_leave = True

    @abstractmethod
    def prepare(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Context:
        """What does not change along the iteration is computed here, once."""

    @abstractmethod
    def injections(self, features: Features, masks: TokenMasks) -> State:
        """f(x), by state: the part of `prepare` that depends on the values of the features."""

    def injected_anew(self, inputs: Context) -> Context:
        """The same context with f(x) computed again, for an analysis that changes features or weights."""
        return {**inputs, "injection": self.injections(inputs["features"], inputs["feature_masks"])}

    @abstractmethod
    def state_masks(self, masks: TokenMasks) -> dict[str, Tensor]:
        """The features' masks in the shape of the states."""

    def sources(self, inputs: Context) -> State:
        """The injections f(x): what the modalities bring into the iteration."""
        return dict(inputs["injection"])

    def with_sources(self, inputs: Context, sources: State) -> Context:
        """The same context with other injections."""
        return {**inputs, "injection": {**inputs["injection"], **sources}}

    @abstractmethod
    def openness(self, state: State, inputs: Context) -> State:
        """The gates' values at a state; empty without gates."""

    @abstractmethod
    def attention(self, state: State, inputs: Context) -> dict[str, dict[str, Tensor]]:
        """[a][b]: how a's tokens read b's at a state (B H N_a N_b), S's part weighed alpha and M's 1 - alpha.

        Over all b a row sums to one, and to S's share alone where a sample has no other modality. An error for
        mixers other than attention.
        """


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What training may do to the iteration so that its equilibria are reached from anywhere and held against noise."""

    start: float = 0.0
    """The share of samples that start from random numbers, N(0, 1), instead of their injection."""
    noise: float = 0.0
    """Standard deviation of what is added to every step."""


class DisturbedOperator(Operator):
    """A map with a `Disturbance`. With seeds every sample draws from its own generator, whoever shares the batch."""

    def __init__(self, operator: Operator, disturbance: Disturbance, seeds: Tensor | None) -> None:
        super().__init__()
        self.operator, self.disturbance = operator, disturbance
        # a stream of its own: the seeds serve dropout, the next ones modality dropout
        self.generators = None if seeds is None else [torch.Generator().manual_seed(s + 2) for s in seeds.tolist()]

    def start(self, inputs: Any) -> State:
        state = self.operator.start(inputs)
        if self.disturbance.start == 0:
            return state
        first = next(iter(state.values()))
        chosen = self._draw(first.new_zeros(first.shape[0], 1), torch.rand)[:, 0] < self.disturbance.start
        return {name: torch.where(per_sample(chosen, z), self._draw(z), z) for name, z in state.items()}

    def forward(self, state: State, inputs: Any) -> State:
        image = self.operator(state, inputs)
        if self.disturbance.noise == 0:
            return image
        return {name: x + self.disturbance.noise * self._draw(x) for name, x in image.items()}

    def _draw(self, like: Tensor, kind: Callable[..., Tensor] = torch.randn) -> Tensor:
        if self.generators is None:
            return kind(like.shape, device=like.device, dtype=like.dtype)
        rows = [kind(like.shape[1:], generator=generator) for generator in self.generators]
        return torch.stack(rows).to(like)


class IteratedModel(FusionModel):
    """A fusion model whose states are read at step K of an iteration.

    How it is run can be changed at any time by setting `solver`, `backward`, `steps`, `tol` or `anytime`. What is set
    is checked there and then, and is what `save_pretrained` writes.
    """

    coupling: PreparedOperator
    solver: Solver | None
    """What replaces the damped iteration, if anything."""
    backward: Backward
    steps: int
    tol: float
    anytime: Anytime | None = None
    """When a sample is read before step K, or after it; in eval mode and without gradients alone."""
    disturbance: Disturbance | None = None
    """Of training; in eval mode nothing is disturbed."""
    plan: DepthPlan | None = None
    """Of training: how deep each sample of the next batch goes, instead of `steps`; every step is taken."""
    supervised = 1
    """How many of the last steps' logits are in an output of training: 1 is the read state alone, 0 all."""

    def run_by(self, steps: int, tol: float, solver: Solver | None, backward: Backward, damping: float | str) -> None:
        """Set how the states are found; every model calls this once, when it is built."""
        self.steps, self.tol, self.solver, self.backward = steps, tol, solver, backward
        if isinstance(damping, str) and damping != "learned":
            raise ValueError(f"damping is a number or 'learned', got {damping!r}: {nearest(damping, ['learned'])}")
        self.damping = (
            nn.Parameter(torch.tensor(0.5))
            if damping == "learned"
            else real_number("damping", damping, wanted="must be a positive number or 'learned'", low=TINIEST)
        )
        """The step, or the logit d of a learned one: sigmoid(d) starts at 0.62, as in the paper."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RUN_BY:
            value = RUN_BY[name](value)
            if isinstance(value, Anytime):
                value.check_head(None if self.head is None else self.head_kind)
        elif not name.startswith("_") and name not in OWN and not hasattr(type(self), name):  # launchers wrap `to`
            for known in RUN_BY:
                if letters_apart(name, known) <= NEAR:
                    raise AttributeError(
                        f"{type(self).__name__} has no {name!r}: did you mean {known!r}? It is run by "
                        f"{', '.join(RUN_BY)}; an attribute of your own needs a name less like these, or one that "
                        "begins with an underscore"
                    )
        super().__setattr__(name, value)

    def to_config(self) -> dict[str, Any]:
        """As in `Saveable`; solver, backward, steps and tol are those set now, whatever it was built with."""
        config = super().to_config()
        named = {
            "solver": None if self.solver is None else described(self.solver),
            "backward": described(self.backward),
        }
        made = {**config, "options": {**config["options"], "steps": self.steps, "tol": self.tol, **named}}
        return made if self.anytime is None else {**made, "anytime": self.anytime.to_config()}

    def run_by_config(self, config: Mapping[str, Any]) -> None:
        if config.get("anytime") is not None:
            self.anytime = Anytime.from_config(config["anytime"])

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        read = dict(options)
        if read.get("solver") is not None:
            read["solver"] = made_solver(read["solver"])
        if "backward" in read:
            read["backward"] = made_backward(read["backward"])
        return read

    @property
    def operator(self) -> PreparedOperator:
        return self.coupling

    @contextmanager
    def run_as(
        self,
        *,
        steps: int | None = None,
        tol: float | None = None,
        backward: Backward | None = None,
        anytime: Anytime | None = None,
    ) -> Iterator[None]:
        """Within it, the model is run with what is given here; afterwards again as it was."""
        asked = {"steps": steps, "tol": tol, "backward": backward, "anytime": anytime}
        before = {name: getattr(self, name) for name in asked}
        try:
            for name, value in asked.items():
                if value is not None:
                    setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    @contextmanager
    def read_at(self, steps: int) -> Iterator[None]:
        """Within it, every sample is read at this step, whatever `anytime` says."""
        before = self.anytime
        with self.run_as(steps=steps):
            self.anytime = None
            try:
                yield
            finally:
                self.anytime = before

    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> FusedState:
        solution = self.settle(self.coupling, features, masks, seeds)
        return FusedState(solution.state, solution.masks, solution)

    def settle(
        self, coupling: PreparedOperator, features: Features, masks: TokenMasks, seeds: Tensor | None
    ) -> Solution:
        """Solve one coupling with this model's budget, solver and backward."""
        state_masks = coupling.state_masks(masks)
        if self.training and self.plan is not None:
            return self._settle_planned(self.plan, coupling, features, masks, seeds)
        rule = self.anytime if coupling is self.coupling else None  # the branches of a tree give no answers
        rule = None if self.training or torch.is_grad_enabled() else rule
        along = self._supervised_steps()
        solution = solve(
            self._disturbed(coupling, seeds),
            coupling.prepare(features, masks, seeds),
            solver=self.solver or self.damped(),
            steps=self.steps if rule is None else rule.most or self.steps,
            tol=self.tol,
            backward=self.backward,
            masks=state_masks,
            trajectory=along or None,
            stop_when=None if rule is None else self._stop_when(rule, state_masks),
        )
        return replace(solution, operator=coupling)

    def _settle_planned(
        self,
        plan: DepthPlan,
        coupling: PreparedOperator,
        features: Features,
        masks: TokenMasks,
        seeds: Tensor | None,
    ) -> Solution:
        first = next(iter(features.values()))
        solution = solve_planned(
            plan.of_rows(len(first), first.device),
            self._disturbed(coupling, seeds),
            coupling.prepare(features, masks, seeds),
            solver=self.solver or self.damped(),
            backward=self.backward,
            masks=coupling.state_masks(masks),
            # how far a sample's generator has come depends on the longest of the batch, so the second part has others
            later=self._disturbed(coupling, None if seeds is None else seeds + 1),
        )
        return replace(solution, operator=coupling)

    def _disturbed(self, coupling: PreparedOperator, seeds: Tensor | None) -> Operator:
        """The map as training disturbs it."""
        if not self.training or self.disturbance is None:
            return coupling
        return DisturbedOperator(coupling, self.disturbance, seeds)

    def _stop_when(self, rule: Anytime, masks: Mapping[str, Tensor]) -> StopRule:
        return rule.reader(self.read_answers, self.head_kind, CHOICES.get(), masks=masks)

    @contextmanager
    def _among(self, choices: int) -> Iterator[None]:
        if self.anytime is None or torch.compiler.is_compiling():
            yield
            return
        before = CHOICES.set(choices)
        try:
            yield
        finally:
            CHOICES.reset(before)

    def _supervised_steps(self) -> range:
        """The steps before the last whose states are answered with, too."""
        if not self.training or self.supervised == 1 or not torch.is_grad_enabled():
            return range(0)
        first = 1 if self.supervised == 0 else self.steps - self.supervised + 1
        tracked = self.backward.steps if isinstance(self.backward, Phantom) else self.steps
        return range(max(1, first, self.steps - tracked + 1), self.steps)

    def _read_along(self, fused: FusedState) -> tuple[Tensor, ...]:
        kept = fused.solution and fused.solution.trajectory
        if not kept or self.head is None:
            return ()
        return tuple(self.read(state, fused.masks) for state in kept.values())

    def damped(self) -> Damped:
        """The damped iteration, its step constant or learned as sigmoid(d)."""
        return Damped(step=torch.sigmoid(self.damping) if isinstance(self.damping, Tensor) else self.damping)

    def gates(self, solution: Solution) -> dict[str, Float[Tensor, " B"]]:
        with torch.no_grad():
            opened = solution.operator.openness(solution.state, solution.inputs)
        means = {}
        for name, gate in opened.items():
            tokens, mask = gate.mean(-1), solution.masks.get(name)
            if mask is None:
                means[name] = tokens.flatten(1).mean(1) if tokens.ndim > 1 else tokens
            else:  # NaN where the modality is absent
                means[name] = torch.where(mask, tokens, torch.nan).reshape(len(tokens), -1).nanmean(1)
        return means


def _check_steps(steps: Any) -> int:
    count = whole_number("steps", steps)
    if count > MOST_STEPS:
        raise ValueError(f"steps must be at most {MOST_STEPS:,}, got {count:.3g}")
    return count


MOST_STEPS = 1_000_000
"""A downloaded config that asks for more would keep a machine busy for ever."""
TINIEST = 5e-324
"""The smallest positive number: a step of 0 would never move."""
RUN_BY: Mapping[str, Callable[[Any], Any]] = {
    "solver": lambda solver: None if solver is None else check_solver(solver),
    "backward": check_backward,
    "steps": _check_steps,
    "tol": partial(tolerance, "tol"),
    "anytime": check_anytime,
}
"""The attributes that say how a model is run, and what checks them."""
OWN = ("pool",)
"""Attributes of our own that look like one of them."""
NEAR = 2
"""So many letters away an attribute is taken for a misspelling."""
