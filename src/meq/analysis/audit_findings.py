"""What an audit says: the numbers that were measured, the faults they show, and a verdict in words.

A fault is named only where its whole 95 % interval lies beyond the threshold; where the value does and the interval
does not, the question stays open. So a few samples lead to no verdict, and noise to none either.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meq.analysis.answers import FEWEST, Estimate
from meq.analysis.tables import number, text_table
from meq.showing import Tabular

LAZY, ONE_STEP, PATH, DEPTH, UNRELATED, RESIDUAL, DRIFT = (
    "lazy start",
    "one step",
    "path dependent",
    "same depth for all",
    "depth unrelated to difficulty",
    "residual says nothing",
    "drifts",
)
LITTLE = 0.02
"""Two points of score: what is gained or lost by less is not worth an iteration, and no loss to speak of."""
AGREE = 0.9
"""A share of answers: where more than one in ten depends on the start, or on when it is read, answers are no longer the
input's alone. Samples near a boundary may flip, so not all of them are asked for."""
ALIGNED = 0.9
"""A cosine between two ends of the same sample, at least: below it they lie more than 25 degrees apart."""
HALF_WAY = 0.5
"""From another sample's end the state has to come most of the way: a cosine alone would be near 1 for states that all
have much in common."""
USUAL = 0.95
"""Where as many answers settle at one and the same step, the steps do not depend on the problem."""
RELATED = 0.2
"""A rank correlation below this explains less than a twentieth of who takes long."""
INFORMS = 0.6
"""An AUROC: a residual that finds wrong answers less often than in 60 of 100 pairs is no warning."""
FEWEST_OF_A_KIND = 10
"""Right and wrong answers that are needed before the residual can be said to tell them apart."""


@dataclass(frozen=True, kw_only=True)
class Depth:
    """What is read at one step."""

    step: int
    score: float
    change: Estimate
    """The score minus that at K, paired answer by answer."""
    same: Estimate
    """The share of answers that are those at K."""
    residual: float
    """The median over samples of the largest residual over modalities."""
    lost: int
    """Samples that have stopped being finite; their last finite state is read."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Where the samples end when they start elsewhere."""

    start: str
    steps: int
    samples: int
    alignment: Mapping[str, float]
    """By modality: the median cosine between the two end states over real tokens."""
    apart: Mapping[str, float]
    """By modality: (1 - alignment) / (1 - cosine with the end of the sample whose state was given), the median: 1 where
    the state stayed with the other sample, 0 where it came home. NaN for noise, and where all ends are one."""
    agreeing: Estimate
    """The share of answers that are the same."""


@dataclass(frozen=True, kw_only=True)
class Settling:
    """From which step on the answers stay, up to five times K, and who takes long."""

    fewest: int
    median: float
    most: int
    usual: float
    """The share of answers that settle at the most frequent step."""
    difficulty: str
    """What it is compared with."""
    correlation: Estimate
    """Spearman's rank correlation of steps and difficulty; NaN where one of them is the same for all."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question of the audit. Its fault has a name, and is there, is not, or cannot be told."""

    question: str
    name: str
    fault: bool | None
    """None: not decided, for the reason that the words give."""
    value: float
    threshold: float
    words: str

    def __str__(self) -> str:
        said = "not decided" if self.fault is None else f"FOUND: {self.name}" if self.fault else "fine"
        return f"{self.question} {said}"


@dataclass(frozen=True, kw_only=True)
class Audit(Tabular):
    """Is it iterating at all, and does it keep what it finds?"""

    of: str
    """Which data; empty where nobody said."""
    samples: int
    answers: int
    """How many answers were judged: as many as samples, or the tokens that are asked."""
    tokens: bool
    """Whether answers are of tokens."""
    read: int
    """K, the step the model's answer is read at."""
    capped: int | None
    """The bound on the steps, where 50 K lies beyond it and was not walked."""
    score_name: str
    errors: int
    """Wrong answers at K."""
    gain: Estimate
    """Score at K minus score at the start."""
    later_gain: Estimate
    """Score at K minus score after one step."""
    along: tuple[Depth, ...]
    """At 0, 1, K, 2 K, 5 K and 50 K."""
    restarts: tuple[Restart, ...]
    settling: Settling
    auroc: Estimate
    """Of the residual at K, with answers per token that of the token alone, for "the answer is wrong"; NaN where all
    answers are right, or all wrong."""
    checks: tuple[Check, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """The names of the faults."""
        return tuple(check.name for check in self.checks if check.fault)

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the faults of which nothing can be said."""
        return tuple(check.name for check in self.checks if check.fault is None)

    @property
    def kept_to(self) -> int:
        """The last measured step, from K on, before the first that has lost something; the last of all if none has."""
        later = [depth for depth in self.along if depth.step >= self.read]
        lost = [place for place, depth in enumerate(later) if is_lost(depth)]
        return later[lost[0] - 1 if lost else -1].step

    @property
    def verdict(self) -> str:
        """In one sentence."""
        found, unknown = set(self.findings), set(self.open)
        said: set[str] = set()
        if LAZY in found:
            lead, said = "does not iterate: its start scores as its end does", {LAZY}
        elif ONE_STEP in found:
            lead, said = "does not iterate: its first step does all the work", {ONE_STEP}
        elif unknown & {LAZY, ONE_STEP}:
            lead = "whether it iterates cannot be told on these samples"
        elif DRIFT in found:
            lead, said = f"iterates, but does not keep past {self.kept_to} steps", {DRIFT}
        elif PATH in found:
            lead, said = "iterates, but where it ends depends on where it starts", {PATH}
        elif unknown & {DRIFT, PATH}:
            lead = "iterates; whether it keeps cannot be told on these samples"
        else:
            lead = "iterates and keeps"
        parts = [lead]
        if also := [name for name in self.findings if name not in said]:
            parts.append(f"also: {', '.join(also)}")
        if self.open:
            parts.append(f"not decided: {', '.join(self.open)}")
        return "; ".join(parts)

    def __str__(self) -> str:
        kinds = f"{self.samples} samples" + (f", {self.answers} tokens asked" if self.tokens else "")
        parts = [*([self.of] if self.of else []), f"verdict: {self.verdict}", ""]
        for check in self.checks:
            parts += [str(check), *textwrap.wrap(check.words, 110, initial_indent="  ", subsequent_indent="  ")]
        header = ["k", self.score_name, "above K", "as at K", "residual", "lost"]
        parts += ["", f"{kinds}, read at K = {self.read}", text_table(header, [self._row(each) for each in self.along])]
        rows = [
            [f"{each.start}, {each.steps} steps", str(each.samples), str(each.agreeing), _by_name(each.alignment)]
            for each in self.restarts
        ]
        parts += ["", text_table(["started from", "samples", "answers agree", "cosine of the ends"], rows), ""]
        if self.capped is not None:
            parts.append(f"50 K = {50 * self.read:,} steps were not walked: {self.capped:,} are the most.")
        parts.append("Brackets: 95 % intervals by resampling samples. Residuals and cosines are medians over samples.")
        return "\n".join(parts)

    def rows(self) -> list[dict[str, Any]]:
        """One per question."""
        names = ("question", "name", "fault", "value", "threshold", "words")
        return [{name: getattr(check, name) for name in names} for check in self.checks]

    def remarks(self) -> list[str]:
        return [f"verdict: {self.verdict}"]

    def _row(self, depth: Depth) -> list[str]:
        mark = "*" if depth.step == self.read else ""
        change, same = ("", "") if mark else (str(depth.change), number(depth.same.value))
        return [f"{depth.step}{mark}", number(depth.score), change, same, number(depth.residual), str(depth.lost)]


def is_lost(depth: Depth) -> bool:
    """The score is certainly below that at K and by more than a little, or the answers wander without gaining."""
    falls = depth.change.high < 0 and depth.change.value < -LITTLE
    return falls or (depth.same.high < AGREE and not depth.change.low > 0)


def check_start(gain: Estimate, later: Estimate, *, read: int, samples: int) -> Check:
    question = "1. Does it compute anything after its start?"
    from_start = f"the score at K = {read} is {gain} above that of the start"
    words = f"{from_start}, and {later} above that after one step"
    if samples < FEWEST:
        return Check(question=question, name=LAZY, fault=None, value=gain.value, threshold=LITTLE, words=_few(words))
    fault = _below(gain, LITTLE)
    if fault is False and read > 1:
        fault = _below(later, LITTLE)
        return Check(question=question, name=ONE_STEP, fault=fault, value=later.value, threshold=LITTLE, words=words)
    return Check(question=question, name=LAZY, fault=fault, value=gain.value, threshold=LITTLE, words=words)


def check_path(restarts: tuple[Restart, ...], *, samples: int) -> Check:
    question = "2. Is the same place reached from elsewhere?"
    longest = max((each.steps for each in restarts), default=0)
    known = [each for each in restarts if each.steps == longest and each.samples]
    words = "; ".join(
        f"from {each.start}, after {each.steps} steps, {each.agreeing} of the answers agree, and the ends have cosines "
        f"of {_by_name(each.alignment)}" + (f" (apart: {_by_name(each.apart)})" if _known(each.apart) else "")
        for each in known
    )
    if len(known) < len([each for each in restarts if each.steps == longest]):
        words += "; no batch has two samples, so none was started from another's end"
    lowest = min((each.agreeing.value for each in known), default=math.nan)
    astray = any(
        any(value < ALIGNED for value in each.alignment.values() if not math.isnan(value))
        or any(value > HALF_WAY for value in each.apart.values() if not math.isnan(value))
        for each in known
    )
    by_answers = [_below(each.agreeing, AGREE) for each in known]
    fault = True if astray or True in by_answers else None if None in by_answers or not known else False
    if samples < FEWEST:
        fault, words = None, _few(words)
    return Check(question=question, name=PATH, fault=fault, value=lowest, threshold=AGREE, words=words)


def check_depth(settling: Settling, *, samples: int) -> Check:
    question = "3. Do harder ones take more steps?"
    words = (
        f"answers settle after {settling.fewest} to {settling.most} steps, half of them by {settling.median:g}; "
        f"{100 * settling.usual:.0f} % at the same step; rank correlation with {settling.difficulty} "
        f"{settling.correlation}"
    )
    value, fault = settling.correlation.value, _below(settling.correlation, RELATED)
    name, threshold = UNRELATED, RELATED
    if settling.usual >= USUAL:
        name, value, threshold, fault = DEPTH, settling.usual, USUAL, True
        words = f"it takes the same number of steps whatever the problem: {words}"
    elif math.isnan(value):
        fault, words = None, f"{words}: all are equally hard"
    if samples < FEWEST:
        fault, words = None, _few(words)
    return Check(question=question, name=name, fault=fault, value=value, threshold=threshold, words=words)


def check_residual(auroc: Estimate, *, errors: int, answers: int, samples: int, tokens: bool = False) -> Check:
    question = "4. Does the residual tell which answers are wrong?"
    whose = "a token's own residual" if tokens else "the residual"
    words = f"AUROC of {whose} at K for a wrong answer {auroc}; {errors} of {answers} answers are wrong"
    fault = _below(auroc, INFORMS)
    if errors == 0 or errors == answers:
        share = "all" if errors else "none"
        fault, words = None, f"{share} of {answers} answers are wrong: there is nothing to tell apart"
    elif min(errors, answers - errors) < FEWEST_OF_A_KIND:
        fault, words = None, f"{words}; {FEWEST_OF_A_KIND} right and as many wrong ones are the fewest that can tell"
    if samples < FEWEST:
        fault, words = None, _few(words)
    return Check(question=question, name=RESIDUAL, fault=fault, value=auroc.value, threshold=INFORMS, words=words)


def check_keeping(along: tuple[Depth, ...], *, read: int, samples: int) -> Check:
    question = "5. Does it keep beyond K?"
    later = [depth for depth in along if depth.step > read]
    words = "; ".join(
        f"at {depth.step} steps the score is {_points(depth.change)}, and {100 * depth.same.value:.0f} % of answers "
        "are as at K"
        for depth in later
    )
    worst = min((depth.change.value for depth in later), default=math.nan)
    doubt = any(depth.change.value < -LITTLE for depth in later)
    fault = True if any(map(is_lost, later)) else None if doubt or not later else False
    if samples < FEWEST:
        fault, words = None, _few(words)
    return Check(question=question, name=DRIFT, fault=fault, value=worst, threshold=-LITTLE, words=words)


def _below(found: Estimate, threshold: float) -> bool | None:
    """Certainly below, not below, or, where the value is and the interval is not, nobody knows."""
    if math.isnan(found.value):
        return None
    return True if found.high < threshold else False if found.value >= threshold else None


def _few(words: str) -> str:
    return f"{words}; {FEWEST} samples are the fewest that can tell"


def _points(change: Estimate) -> str:
    side = "below" if change.value < 0 else "above"
    low, high = sorted((100 * abs(change.low), 100 * abs(change.high)))
    if change.low < 0 < change.high:
        return f"{100 * abs(change.value):.1f} points {side} that at K (not sure)"
    return f"{100 * abs(change.value):.1f} [{low:.1f}, {high:.1f}] points {side} that at K"


def _by_name(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def _known(values: Mapping[str, float]) -> bool:
    return any(not math.isnan(value) for value in values.values())
