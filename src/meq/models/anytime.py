"""Anytime: a model that iterates is read, sample by sample, as soon as a rule says that its answer is there.

model.anytime = meq.Anytime("change", 0.001, most=24)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.core.iteration import StopRule
from meq.core.state import NO_MASKS, Masks, State, take_rows
from meq.models.heads import by_example, probabilities
from meq.options import checked_options, nearest, real_number, whole_number, wrong_object

RULES = {
    "residual": "the residual |z - T(z)| / |z| of every modality is at or below the threshold",
    "change": "the answer's change in one step, KL(p(k) || p(k-1)), is at or below the threshold",
    "agreement": "so many steps in a row gave the same answer",
    "confidence": "the probability of the answer is at or above the threshold",
}
AGREEING = 3
"""How many answers in a row agree, unless told."""
Answering = Callable[[State, Masks], tuple[Tensor, Tensor | None]]
"""A state's logits and, for answers per token, which tokens are real."""


@checked_options
@dataclass(frozen=True)
class Anytime:
    """When to stop reading on, for each sample by itself: `rule` is a key of `RULES`.

    Used in eval mode without gradients alone. A compiled model does not ask, and takes all its steps. A threshold comes
    from calibration (`meq calibrate RUN --stop`), or from you. Of answers per token all have to satisfy the rule. The
    choices of an example stop together, by its answer over the choices, or once all their residuals are small enough.

    Beware of confidence on problems deeper than those of training: there a model is often sure, and wrong, long before
    it could know. The other rules ask whether the answer still moves.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, steps=10).eval()
    >>> model.anytime = meq.Anytime("change", 1e-3, most=30)
    >>> with torch.no_grad():
    ...     out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> out.solution.steps.shape, bool((out.solution.steps <= 30).all())  # B: where each sample was read
    (torch.Size([2]), True)
    """

    rule: str
    threshold: float | None = None
    """What the rule compares with; agreement has none."""
    patience: int | None = None
    """Steps in a row that have to satisfy the rule, 1 unless given; of agreement, the number of equal answers."""
    _: KW_ONLY
    least: int = 1
    """No sample stops before this step."""
    most: int | None = None
    """All samples stop here, at the latest; the model's own `steps` unless given."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"there is no stopping rule {self.rule!r:.40}: {nearest(str(self.rule), RULES)}")
        agreement = self.rule == "agreement"
        if agreement and self.threshold is not None:
            raise ValueError("the rule 'agreement' has no threshold: give the number of equal answers as `patience`")
        if not agreement:
            wanted = "of the rule 'confidence' must be a probability" if self.rule == "confidence" else _NUMBER
            real_number("threshold", self.threshold, wanted=wanted, low=0.0, high=self._ceiling)
        patience = (AGREEING if agreement else 1) if self.patience is None else self.patience
        label = "patience of the rule 'agreement'" if agreement else "patience"
        object.__setattr__(self, "patience", whole_number(label, patience, least=2 if agreement else 1))
        whole_number("least", self.least)
        if self.most is not None and whole_number("most", self.most) < self.least:
            raise ValueError(f"most must not be below least, got {self.least} to {self.most}")

    @property
    def _ceiling(self) -> float:
        return 1.0 + 1e-9 if self.rule == "confidence" else torch.inf

    @property
    def hits(self) -> int:
        """How many steps in a row have to satisfy the rule: n equal answers are n - 1 steps without a change."""
        assert self.patience is not None
        return self.patience - 1 if self.rule == "agreement" else self.patience

    def met(self, score: Float[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
        """Whether the rule is satisfied at these scores; never where one is not a number."""
        threshold = self.threshold or 0.0  # agreement has none, and counts changes
        return score >= threshold if self.rule == "confidence" else score <= threshold

    def reader(self, answering: Answering, head: str, choices: int = 1, *, masks: Masks = NO_MASKS) -> StopRule:
        """The rule with a memory, for one solve. With head="choices" so many rows are the choices of one example."""
        return RuleReader(self, answering, head, choices, dict(masks))

    def check_head(self, head: str | None) -> None:
        """An error if a model with this head, None for one without, cannot be read by this rule."""
        if self.rule != "residual" and head is None:
            raise ValueError(f"the rule {self.rule!r} reads answers, and the model has none (classes=None): 'residual'")
        if head == "score" and self.rule in ("agreement", "confidence"):
            raise ValueError(f"a number has no {self.rule}: for head='score' use the rule 'change' or 'residual'")

    def to_config(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_config(cls, config: Any) -> Anytime:
        """What `to_config` gave, from a file that is not trusted."""
        known = [each.name for each in fields(cls)]
        if not isinstance(config, dict) or "rule" not in config:
            raise ValueError(f"'anytime' must be an object with a rule, got {config!r:.80}")
        for name in config:
            if name not in known:
                raise ValueError(f"'anytime' has no option {name!r:.80}: {nearest(name, known)}")
        return cls(**config)

    def __str__(self) -> str:
        rule = f"{self.patience} answers in a row agree" if self.rule == "agreement" else self._compared()
        return f"{rule}, from step {self.least} on, at the latest at step {self.most or 'K'}"

    def _compared(self) -> str:
        sign = ">=" if self.rule == "confidence" else "<="
        often = f" for {self.patience} steps" if self.patience != 1 else ""
        return f"{self.rule} {sign} {self.threshold:.4g}{often}"


_NUMBER = "must be 0 or a positive number; `meq calibrate RUN --stop` finds one"


def check_anytime(value: Any) -> Anytime | None:
    """The value, if it is a rule for stopping, or None."""
    if value is None or isinstance(value, Anytime):
        return value
    raise TypeError(wrong_object("anytime", value, {}, 'meq.Anytime("change", 0.001)'))


class RuleReader:
    """A rule along one solve: what each example answered before, and for how many steps it satisfied the rule."""

    def __init__(self, how: Anytime, answering: Answering, head: str, choices: int, masks: Masks) -> None:
        self.how, self.answering, self.head, self.choices, self.masks = how, answering, head, choices, masks
        self.by_residual = how.rule == "residual"
        self.before: Tensor | None = None
        self.in_a_row: Tensor | None = None

    def __call__(self, k: int, seen: State, active: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
        if self.by_residual:
            score = largest_residual(seen, self.choices)
        else:
            logits, real = self.answering(seen, self.masks)
            logits = answers_among(logits, self.head, self.choices)
            score = SCORES[self.how.rule](logits, self.before, self.head, real)
            self.before = logits
        hit = self.how.met(score)
        row = torch.zeros_like(hit, dtype=torch.long) if self.in_a_row is None else self.in_a_row
        self.in_a_row = torch.where(hit, row + 1, 0)
        found = (self.in_a_row >= self.how.hits) & (k >= self.how.least)
        return found.repeat_interleave(self.choices)

    @property
    def rows_leave(self) -> bool:
        """The choices of one example are judged together, and may settle at different steps."""
        return self.choices == 1

    def rows(self, rows: Int[Tensor, " R"]) -> RuleReader:
        """The same rule for some of the samples, with what it remembers of them."""
        part = RuleReader(self.how, self.answering, self.head, self.choices, take_rows(self.masks, rows))
        part.before, part.in_a_row = take_rows((self.before, self.in_a_row), rows)
        return part


# -- what the rules look at, per sample --------------------------------------------------------------------------------


def largest_residual(residuals: State, choices: int = 1) -> Float[Tensor, " B"]:
    """Over the modalities that a sample has, and over its choices; NaN if one of these has none."""
    every = torch.stack(list(residuals.values()))
    largest = every.where(~every.isnan(), 0).amax(0).where(~every.isnan().all(0), torch.nan)
    return by_example(largest, choices).amax(1)


def answers_among(logits: Tensor, head: str, choices: int) -> Tensor:
    """The logits of a state as an answer of each example: with head="choices" the rows of its choices side by side."""
    return by_example(logits, choices)[..., 0] if head == "choices" else logits


def change(
    logits: Float[Tensor, "*axes"], before: Tensor | None, head: str, real: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, " B"]:
    """KL(p(k) || p(k-1)), of several labels their sum; of a number |s(k) - s(k-1)|; inf without an answer before.

    The largest over a sample's tokens.
    """
    if before is None:
        return torch.full_like(_wide(logits[:, 0] if logits.ndim == 2 else logits[:, 0, 0]), torch.inf)
    now, then = _wide(logits), _wide(before)
    if head == "score":
        return (now - then).abs().amax(-1)
    if head == "labels":
        p = now.sigmoid()
        yes, no = F.logsigmoid(now) - F.logsigmoid(then), F.logsigmoid(-now) - F.logsigmoid(-then)
        return (p * yes + (1 - p) * no).sum(-1).clamp(min=0)
    ratio = now.log_softmax(-1) - then.log_softmax(-1)
    kl = (now.softmax(-1) * ratio).sum(-1).clamp(min=0)
    return kl if real is None else kl.where(real, 0).amax(-1)


def confidence(
    logits: Float[Tensor, "*axes"], before: Tensor | None, head: str, real: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, " B"]:
    """The probability of the answer, of several labels that of the most probable one; the smallest over tokens."""
    chance = probabilities(_wide(logits), head).amax(-1)
    return chance if real is None else chance.where(real, 1).amin(-1)


def agreement(
    logits: Float[Tensor, "*axes"], before: Tensor | None, head: str, real: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, " B"]:
    """0 where the answer is that of the step before, 1 where it is another one, for any of the tokens."""
    if before is None:
        return torch.ones_like(_wide(logits[:, 0] if logits.ndim == 2 else logits[:, 0, 0]))
    same = (logits.argmax(-1) == before.argmax(-1)) & logits.isfinite().all(-1)
    if head == "labels":  # the best of them for some metrics, all that are more likely than not for others
        same = same & ((logits > 0) == (before > 0)).all(-1)
    if real is not None:
        same = (same | ~real).all(-1)
    return 1 - _wide(same)


def _wide(x: Tensor) -> Tensor:
    """At least single precision: a change of the answer is a difference of nearly equal numbers."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


SCORES = {"change": change, "agreement": agreement, "confidence": confidence}
