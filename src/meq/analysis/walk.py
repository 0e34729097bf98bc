"""The walk along the iteration: a model under study, its states at every step, and what is read from them.

Everything that looks at single steps goes through here: trajectories, attribution, explanations, grounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.operator import evaluate
from meq.core.solution import Solution, Stop, relative, residual
from meq.core.solve import Trajectory, solve
from meq.core.solvers import Solver
from meq.core.state import State, large_norm, token_mask
from meq.models.heads import by_example, probabilities


@runtime_checkable
class Subject(Protocol):
    """A model that iterates and can be read at any state; those of `meq.models` are, so may be one of your own."""

    steps: int
    """K, the step its answer is read at."""
    head_kind: str
    """What its logits mean: a key of `meq.models.heads.HEADS`."""

    @property
    def operator(self) -> Any: ...

    def read(self, state: State, masks: Mapping[str, Tensor]) -> Tensor:
        """The logits of a state."""

    def damped(self) -> Solver: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def __call__(self, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> Any:
        """An output with `logits` and `solution`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Readings:
    """What was read of one batch along the iteration, on the CPU. S steps, B samples, R states as in `Case`."""

    steps: tuple[int, ...]
    logits: Float[Tensor, "S B *N C"]
    """Of N tokens each with head="tokens"."""
    residuals: dict[str, Float[Tensor, "S R"]]
    """|z(k) - T(z(k))| / |z(k)| of the undamped map; NaN where a modality is absent or the state diverged."""
    drift: dict[str, Float[Tensor, " R"]]
    """|z(last step) - z(K)| / |z(K)|, K the step the model's answer is read at; NaN likewise."""
    stopped: Int[Tensor, " R"]
    """The last step at which a diverged state was finite, which is the one that is read from then on; -1: none did."""
    answered: Bool[Tensor, "R N"] | None = None
    """With head="tokens": which of the answers belong to real tokens."""


@dataclass(frozen=True, eq=False)
class Case:
    """One batch before a model that is held still: its iteration can be walked again, to any step, and read anywhere.

    For multiple choice every choice is a row of its own: R = B A rows for B samples; otherwise R = B.
    """

    model: Subject
    solution: Solution
    answer: Float[Tensor, "B *N C"]
    """The logits that the model itself gives."""
    solver: Solver
    answered: Bool[Tensor, "B N"] | None = None
    """With head="tokens": which of the answers belong to real tokens."""
    token: Int[Tensor, " B"] | None = None
    """With head="tokens": the one of each sample whose answer alone is read; None: all of them."""

    @property
    def choices(self) -> int | None:
        return self.answer.shape[1] if self.model.head_kind == "choices" else None

    def walk(self, steps: int, *, trajectory: Trajectory, backward: Backward = Unrolled()) -> Solution:
        """Exactly `steps` steps from the start: a tolerance would stop samples at different k."""
        return solve(
            self.solution.operator,
            self.solution.inputs,
            solver=self.solver,
            steps=steps,
            tol=0.0,
            backward=backward,
            masks=self.solution.masks,
            trajectory=trajectory,
        )

    def read(self, state: State) -> Float[Tensor, "B *N C"]:
        """The logits of a state, per sample."""
        logits = self.model.read(state, self.solution.masks)
        if self.token is not None:
            return of_token(logits, self.token)
        return logits if self.choices is None else by_example(logits, self.choices)[..., 0]

    def token_residuals(self, state: State) -> Float[Tensor, "B N"]:
        """|z - T(z)| / |z| of each token that answers, by itself, in the places of the logits; NaN for padding."""
        image = evaluate(self.solution.operator, state, self.solution.inputs)
        found = []
        for name in getattr(self.model, "answering", None) or state:
            z, real = state[name], token_mask(self.solution.masks.get(name), state[name])
            rows = residual((image[name] - z).flatten(0, -2), z.flatten(0, -2), real.flatten())
            found.append(rows.reshape(len(z), -1))
        return torch.cat(found, dim=1)

    def of_token(self, token: int | Tensor | None) -> Case:
        """The case whose answer is that of one token per sample, counted as in the logits; as it is for other heads.

        Unless given, the real token that is least sure of its answer: where a look is worth most.
        """
        if self.model.head_kind != "tokens":
            if token is not None:
                raise ValueError(f"token={token} belongs to head='tokens', and the head is {self.model.head_kind!r}")
            return self
        rows, count = self.answer.shape[:2]
        real = torch.ones_like(self.answer[..., 0], dtype=torch.bool) if self.answered is None else self.answered
        if token is None:
            sure = answer(self.answer, "tokens")[1].nan_to_num(nan=0.0)
            chosen = sure.masked_fill(~real, torch.inf).argmin(1)
        else:
            chosen = torch.as_tensor(token, device=real.device).long().expand(rows)
            inside = (chosen >= 0) & (chosen < count)
            known = inside & real.gather(1, chosen.clamp(0, count - 1)[:, None])[:, 0]
            if not bool(known.all()):
                first = int((~known).nonzero()[0])
                places = real[first].nonzero().flatten().tolist()
                raise ValueError(
                    f"sample {first} has no token {int(chosen[first])} that answers: those that do are "
                    f"{', '.join(map(str, places)) or 'none'}"
                )
        return replace(self, answer=of_token(self.answer, chosen), token=chosen)

    def read_along(self, steps: Sequence[int]) -> Readings:
        """Walk to the last of `steps`, given in order and not before K, and read the states on the way."""
        wanted, logits = set(steps), {}
        at_read: list[State] = []

        def look(k: int, state: State) -> None:
            if k in wanted:
                logits[k] = self.read(state).cpu()
            if k == self.model.steps:
                at_read.append(state)

        solution = self.walk(steps[-1], trajectory=look)
        last = self.read(solution.state).cpu()  # where the walk broke off because every sample had diverged
        stopped = stopped_at(solution)
        finite = stopped < 0
        start = at_read[0] if at_read else solution.state
        residuals, drift = {}, {}
        for name, z in solution.state.items():
            mask, rows = solution.masks.get(name), solution.residuals[name]
            # the loop measured every state but the last, which takes one more operator call
            final = solution.final_residual[name].where(finite, torch.nan)
            residuals[name] = torch.stack([*(rows[k] for k in steps[:-1]), final]).cpu()
            moved = relative(large_norm(z - start[name], mask), large_norm(start[name], mask), mask)
            drift[name] = moved.where(finite, torch.nan).cpu()
        return Readings(
            steps=tuple(steps),
            logits=torch.stack([logits.get(k, last) for k in steps]),
            residuals=residuals,
            drift=drift,
            stopped=stopped.cpu(),
            answered=None if self.answered is None or self.token is not None else self.answered.cpu(),
        )


def open_case(model: Subject, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None) -> Case:
    """Run the model once, as its user would, and take from that what walking it again needs."""
    check_iterates(model)
    output = model(features, masks)
    if output.logits is None:
        raise ValueError(f"{type(model).__name__} was built without classes: it has no head to read states with")
    solver = getattr(model, "solver", None) or model.damped()
    answered = getattr(output, "answered", None)
    return Case(model, output.solution.detach(), output.logits.detach(), solver, answered)  # inputs keep their graph


def check_iterates(model: object) -> None:
    if getattr(model, "operator", None) is None:
        raise ValueError(
            f"{type(model).__name__} does not iterate, so there are no steps to look at: "
            "use a model with an operator, such as MutualEquilibrium"
        )


def of_token(logits: Float[Tensor, "B N C"], token: Int[Tensor, " B"]) -> Float[Tensor, "B C"]:
    """The logits of one token of each sample."""
    return logits.take_along_dim(token[:, None, None], dim=1)[:, 0]


def stopped_at(solution: Solution) -> Int[Tensor, " R"]:
    """The last step at which each row was finite; -1 for the rows that stayed so."""
    return solution.steps.where(solution.stop_codes == Stop.DIVERGED.code, -1)


def answer(logits: Float[Tensor, "*axes C"], head: str) -> tuple[Int[Tensor, "*axes"], Float[Tensor, "*axes"]]:
    """The largest logit's place (one number: is it positive?) and the probability the head gives it.

    -1 and NaN where the logits are not finite; a regression has no probability, so NaN.
    """
    lost = ~torch.isfinite(logits).all(-1)
    if head == "score":
        return (logits[..., 0] > 0).long().where(~lost, -1), torch.full_like(logits[..., 0], torch.nan)
    prediction = logits.argmax(-1)  # not of the probabilities: rounding makes the largest ones equal
    confidence = probabilities(logits, head).gather(-1, prediction[..., None])[..., 0]
    return prediction.where(~lost, -1), confidence.where(~lost, torch.nan)
