"""docs/results.md and the results in README.md, made from the records in this folder: python results/page.py

Every sentence with a number in it is made here, from records; what came out against the equilibrium is made by the same
functions as what came out for it.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meq.studies import Study, compare, make_tables, read_study, records_of
from meq.studies.compare import ArmLine, Interval, answers_of, compare_groups, intervals, paired_difference
from meq.studies.measures import measured_of
from meq.studies.measures.contract import Values
from meq.studies.measures.fixed_point import FixedPoint
from meq.studies.measures.staircase import TOKENS, WHOLE, Staircase, StaircaseResult
from meq.studies.measures.steps import Steps
from meq.studies.measures.stopping import FULL, Stopping
from meq.studies.one_run import BORROWED
from meq.studies.whole_paper import paper_tables, read_paper
from meq.tables import Cell, Table, as_markdown
from meq.training.depth import parse_depth

RESULTS = Path(__file__).resolve().parent
DOCS = RESULTS.parent / "docs" / "results.md"
README = RESULTS.parent / "README.md"
BEGIN, END = "<!-- results: made by results/page.py -->", "<!-- end of results -->"
SPLIT, METRIC = "test", "accuracy"
TABLE, INTERVALS = "test-accuracy", "test-accuracy-bootstrap"
CHANCE = 1 / 3
INTRODUCTION = """# Results

Studies of the embedded sets `duels`, `relay` and `scenes`, and one of photographs, a subset of SNLI-VE read by encoders
whose weights come with pip: small models, three seeds, hours on two cores. They say what these models do on these sets,
and nothing about other benchmarks. Every table is made from the records in `results/`, which `meq study verify` checks
and the tests verify; weights are not kept, their hashes are.

A difference is *called* when its absolute value exceeds twice the sample standard deviation of the paired per-seed
differences. Beside it stands a paired bootstrap over examples: the middle 95 % of the difference over draws of the test
examples, which says how far it depends on them, as the first rule says how far it depends on the seeds. Scores are of
the test split, with weights chosen on dev. This page is made by `results/page.py`.
"""


@dataclass(frozen=True)
class Published:
    """A study of this folder."""

    folder: Path
    study: Study

    @classmethod
    @functools.cache
    def named(cls, name: str) -> Published:
        return cls(RESULTS / name, read_study(RESULTS / name))

    @functools.cached_property
    def records(self) -> Any:
        return records_of(self.folder, self.study)

    @functools.cached_property
    def measured(self) -> dict[str, Values]:
        return measured_of(self.folder, self.study)

    def lines(self) -> dict[str, ArmLine]:
        """By arm, and by group."""
        asked = {"split": SPLIT, "metric": METRIC}
        found = [*compare(self.study, self.records, **asked), *compare_groups(self.study, self.records, **asked)]
        return {line.arm.split(" (")[0]: line for line in found}

    def interval(self, arm: str) -> Interval:
        """Of the difference to the reference, over examples."""
        asked: dict[str, Any] = {"split": SPLIT, "metrics": [METRIC]}
        found = intervals(self.study, self.records, answers_of(self.folder), **asked)[METRIC]
        return next(each for each in found if each.arm == arm)

    def tables(self, *names: str) -> Iterator[str]:
        return (as_markdown(self._made[name]) for name in names)

    @functools.cached_property
    def _made(self) -> dict[str, Table]:
        return make_tables(self.study, self.records, self.measured, answers=answers_of(self.folder))


def percent(value: float | None) -> str:
    return "no score" if value is None else f"{100 * value:.1f} %"


def points(value: float) -> str:
    return f"{100 * abs(value):.1f} points"


def against(found: Published, line: ArmLine, words: str) -> str:
    """How the equilibrium compares with an arm, whichever way it came out: over seeds, and over examples."""
    assert line.difference is not None
    assert line.difference_spread is not None
    side = "ahead of" if line.difference < 0 else "behind"
    spread = f"twice the paired spread is {points(2 * line.difference_spread)}"
    interval = found.interval(line.arm.partition("(")[2].rstrip(")") or line.arm)
    assert interval.low is not None
    assert interval.high is not None
    ends = (interval.low, interval.high) if line.difference >= 0 else (-interval.high, -interval.low)
    over = f"over examples {100 * ends[0] + 0:.1f} to {100 * ends[1] + 0:.1f} points"
    return f"{points(line.difference)} {side} {words} ({line.verdict}: {spread}; {over})"


# -- what each study says ----------------------------------------------------------------------------------------------


def say_main(found: Published) -> list[str]:
    lines = found.lines()
    best = lines["best attention"]
    name = best.arm.partition("(")[2].rstrip(")")
    compute = lines["self-attention-compute-matched"]
    return [
        f"The equilibrium answers {percent(lines['meq'].mean)} of the test statements. At as many parameters it is "
        f"{against(found, lines['concat'], 'concatenation')}, and "
        f"{against(found, best, f'the better attention arm, {name}')}.",
        f"Given as many FLOPs as the iteration takes, and so {compute.parameters / lines['meq'].parameters:.1f} times "  # type: ignore[operator]
        f"the parameters, self-attention reaches {percent(compute.mean)}: the equilibrium is "
        f"{against(found, compute, 'that arm')}.",
    ]


def say_ablation(found: Published) -> list[str]:
    lines = found.lines()
    words = {
        "no-gate": "without the gate",
        "no-cross": "without the cross-modal path",
        "no-self": "without the path of its own",
        "one-step": "with a single step",
    }
    return [
        f"The whole model answers {percent(lines['meq'].mean)}. "
        + " ".join(f"It is {against(found, lines[arm], f'the model {text}')}." for arm, text in words.items())
    ]


def say_modality(found: Published) -> list[str]:
    lines = found.lines()
    alone = {name: line for name, line in lines.items() if name.endswith("-only")}
    worst = max(alone.values(), key=lambda line: abs((line.mean or 0) - CHANCE))
    return [
        f"Chance is {percent(CHANCE)}. With one modality zeroed and everything else unchanged, "
        + ", ".join(f"`{name}` answers {percent(line.mean)}" for name, line in alone.items())
        + f": at most {points((worst.mean or 0) - CHANCE)} from chance, so the set needs both."
    ]


def say_steps(found: Published) -> list[str]:
    values = list(found.measured["steps"].values())
    read = values[0]["read"]

    def at(k: int) -> float:
        return statistics.fmean(each["score"]["all"][each["steps"].index(k)] for each in values)

    curve = ", ".join(f"{100 * at(k):.1f}" for k in range(read + 1))
    return [
        f"Read at k = 0 to {read}, the same trained models answer {curve} % of all statements; read at twice the "
        f"depth, k = {2 * read}, they answer {percent(at(2 * read))}."
    ]


def say_fixed_point(found: Published) -> list[str]:
    values = list(found.measured["fixed-point"].values())
    radii = [statistics.fmean(each["radius"]) for each in values]
    read, far = (statistics.fmean(each["score"][at] for each in values) for at in (0, 1))
    residuals = [
        statistics.fmean(max(pair[at] for pair in each["residual"].values()) for each in values) for at in (0, 1)
    ]
    horizon = values[0]["horizon"]
    words = (
        "contractive in none" if min(radii) >= 1 else "contractive in all" if max(radii) < 1 else "contractive in some"
    )
    return [
        f"The undamped map at the read state has a spectral radius of {min(radii):.3f} to {max(radii):.3f} (mean of a "
        f"seed's samples): it is {words} of the seeds. From the read depth to k = {horizon} the residual goes from "
        f"{residuals[0]:.1e} to {residuals[1]:.1e}, and the score from {percent(read)} to {percent(far)}."
    ]


def say_hops(found: Published) -> list[str]:
    values = Steps().typed(found.measured["steps"])
    kinds = [kind for kind in next(iter(values.values())).answer if kind != "all"]

    def mean(arm: str, pick: Callable[[Any], Any]) -> float:
        return statistics.fmean(pick(each) for (name, _), each in values.items() if name == arm)

    def scores(arm: str) -> str:
        return ", ".join(f"{kind} {percent(mean(arm, lambda each, kind=kind: each.answer[kind]))}" for kind in kinds)

    there = ", ".join(f"{kind} {mean('meq', lambda each, kind=kind: each.there_at(kind)):.1f}" for kind in kinds)
    return [
        f"The equilibrium answers: {scores('meq')}. The same model with one step: {scores('one-step')}. "
        f"Self-attention of the same size: {scores('self-attention')}.",
        f"The step from which on the equilibrium's score stays near that at K, mean over seeds: {there}.",
    ]


# -- trails: who follows them deeper than in training ------------------------------------------------------------------


MINE, TRIAL = "meq", "duels-2-rates"
FAR = 300
SINGLE = {
    "concat": "concatenation",
    "self-attention": "self-attention",
    "cross-attention": "cross-attention",
    "self-attention-thin": "a deep and thin self-attention",
    "self-attention-thin-long": "the same trained three times as long",
    "cross-attention-deep": "a deep cross-attention of its FLOPs",
}
TIED = {
    "single-state": "one joint state",
    "single-state-wide": "one joint state, wide",
    "iterated-cross": "iterated cross-attention",
    "gated": "the equilibrium with the paper's gate",
}


@dataclass(frozen=True, kw_only=True)
class TrailArm:
    """What the seeds of one arm say."""

    name: str
    parameters: int
    seeds: dict[int, StaircaseResult]

    def mean(self, split: str, group: str) -> float:
        return statistics.fmean(each.answer[split][group] for each in self.seeds.values())

    def at(self, split: str, group: str, k: int) -> float:
        """Of an arm that iterates, read at another step."""
        found = [each.score[split][group][(each.steps or ()).index(k)] for each in self.seeds.values()]
        return statistics.fmean(found)

    def deepest(self, split: str) -> int:
        """The greatest depth of an answer."""
        return max(int(name) for each in self.seeds.values() for name in each.answer[split] if name.isdigit())

    def against(self, other: TrailArm, split: str) -> tuple[float, str]:
        """Mean difference of tokens to another arm, paired by seed, and whether it is called."""
        mine, theirs = ({seed: each.answer[split][TOKENS] for seed, each in arm.seeds.items()} for arm in (self, other))
        difference, _, verdict = paired_difference(list(mine), mine, theirs)
        assert difference is not None
        return difference, verdict


def trail_arms(found: Published) -> dict[str, TrailArm]:
    results = Staircase().typed(found.measured["staircase"])
    arms = {}
    for line in compare(found.study, found.records, split="dev", metric="token accuracy"):
        seeds = {seed: each for (arm, seed), each in results.items() if arm == line.arm}
        arms[line.arm] = TrailArm(name=line.arm, parameters=line.parameters or 0, seeds=seeds)
    return arms


def trail_table(found: Published) -> Table:
    arms = trail_arms(found)
    rows: list[dict[str, Cell]] = []
    for name, arm in arms.items():
        row: dict[str, Cell] = {"arm": name, "parameters": arm.parameters}
        for split in ("test", "deep"):
            tokens = [each.answer[split][TOKENS] for each in arm.seeds.values()]
            row[f"{split} {TOKENS}"], row[f"{split} spread"] = statistics.fmean(tokens), statistics.stdev(tokens)
            row[f"{split} {WHOLE}"] = arm.mean(split, WHOLE)
            difference, verdict = arm.against(arms[MINE], split)
            row[f"{split} verdict"] = "reference" if name == MINE else f"{100 * difference:+.1f}, {verdict}"
        rows.append(row)
    read = next(iter(arms[MINE].seeds.values())).read or {}
    return Table.of(
        f"{found.study.name}: right answers on trails as deep as in training (test) and deeper (deep)",
        rows,
        titles={f"{split} verdict": f"{split}: tokens less meq, in points" for split in ("test", "deep")},
        notes=(
            f"Arms that iterate are read at step {read['test']} on test and {read['deep']} on deep, fixed before "
            "training. Tokens: share of right answers, mean over seeds; spread: its sample standard deviation. Whole: "
            "examples all of whose answers are right. Called: the difference exceeds twice the sample standard "
            "deviation of the paired differences. One token in three says its colour itself; with a guess for all "
            f"others that makes {percent(1 / 3 + 2 / 3 * CHANCE)} of the tokens.",
        ),
    )


def say_rates(trial: Published) -> str:
    """What the trial of learning rates on one seed says: the same number of rates for every arm."""
    scores = {arm.name: trial.records[arm.name, trial.study.seeds[0]].metrics["dev"]["token accuracy"]
              for arm in trial.study.arms}  # fmt: skip
    families = {name: members for name, members in trial.study.groups.items() if name in (MINE, *SINGLE, *TIED)}
    best = {name: max(members, key=scores.__getitem__) for name, members in families.items()}
    others = [
        f"{name} ({percent(scores[arm])} at the second, {percent(scores[families[name][0]])} at the first)"
        for name, arm in best.items()
        if arm != families[name][0]
    ]
    rates = [arm.train["learning_rate"] for arm in trial.study.arms[: len(next(iter(families.values())))]]
    tried = " and ".join(f"{rate:.2g}" for rate in rates)
    verdict = f"the first is better on dev for all but {', '.join(others)}" if others else "the first is better for all"
    return (
        f"Every arm was tried at the learning rates {tried} on the seed {trial.study.seeds[0]} (`{trial.study.name}`): "
        f"{verdict}. The first is the one that all arms have here. Width, number of updates, scaled inputs and late "
        "starts were found on the equilibrium; the others have the same updates and inputs, and those that iterate the "
        "same late starts."
    )


def say_trail(found: Published) -> list[str]:
    arms = trail_arms(found)
    mine = arms[MINE]
    read = next(iter(mine.seeds.values())).read or {}

    def answers(arm: TrailArm) -> str:
        return f"{percent(arm.mean('test', TOKENS))} and {percent(arm.mean('deep', TOKENS))}"

    def listed(words: dict[str, str]) -> str:
        told = []
        for name, text in words.items():
            verdicts = {arms[name].against(mine, split)[1] for split in ("test", "deep")}
            called = "both called" if verdicts == {"called"} else "neither called" if "called" not in verdicts else ""
            each = "; ".join(f"{split} {arms[name].against(mine, split)[1]}" for split in ("test", "deep"))
            size = arms[name].parameters / mine.parameters
            larger = f", {size:.1f} times the parameters" if size > 1.1 else ""
            told.append(f"{text} {answers(arms[name])} ({called or each}{larger})")
        return ", ".join(told)

    shallow, deep = (mine.deepest(split) for split in ("test", "deep"))
    return [
        f"Trained on trails of up to {shallow} exchanges, the equilibrium ({mine.parameters:,} parameters) gives "
        f"{percent(mine.mean('test', TOKENS))} of the answers on such trails, read at k = {read['test']}, and "
        f"{percent(mine.mean('deep', TOKENS))} of those on trails of {shallow + 1} to {deep}, read at k = "
        f"{read['deep']}; whole examples {percent(mine.mean('test', WHOLE))} and "
        f"{percent(mine.mean('deep', WHOLE))}. Read at k = {FAR} it still gives "
        f"{percent(mine.at('test', TOKENS, FAR))} and {percent(mine.at('deep', TOKENS, FAR))}.",
        f"A single pass at as many parameters, test and deep: {listed(SINGLE)}.",
        f"Iterated by the same recipe, with one set of weights for all steps: {listed(TIED)}.",
    ]


def say_duels(found: Published) -> list[str]:
    return [*say_trail(found), say_rates(Published.named(TRIAL))]


def say_staircase(found: Published) -> list[str]:
    """When answers of each depth are there."""
    arm = trail_arms(found)[MINE]
    depths = [name for name in next(iter(arm.seeds.values())).answer["deep"] if name.isdigit() and int(name) > 0]
    there = {
        depth: statistics.fmean(
            each.arrived["deep"][depth] for each in arm.seeds.values() if depth in each.arrived["deep"]
        )
        for depth in depths
    }
    told = ", ".join(f"{depth}: {k:.1f}" for depth, k in there.items())
    return [f"The step from which on answers of a depth are right, by depth, mean over the answers on deep: {told}."]


def say_anytime(found: Published) -> list[str]:
    results = list(Stopping().typed(found.measured["stopping"]).values())
    said = []
    for split in results[0].readings:
        full = statistics.fmean(each.readings[split][FULL].score for each in results)
        rules = dict.fromkeys(rule for each in results for rule in each.settings)
        told = []
        for rule in rules:
            some = [each.readings[split][rule] for each in results if rule in each.readings[split]]
            score, steps = (statistics.fmean(getattr(one, key) for one in some) for key in ("score", "steps"))
            told.append(f"{rule} {percent(score)} after {steps:.1f} steps")
        said.append(
            f"On {split}, step {results[0].full} gives {percent(full)} of the answers; stopped by {', '.join(told)}."
        )
    kept = [each.holds[rule] for each in results for rule in each.holds]
    said.append(
        f"Each rule was calibrated on one half of dev to lose at most {100 * results[0].risk:g} point of accuracy; on "
        f"the other half {sum(kept)} of {len(kept)} kept that promise. Splits deeper than dev are outside of it."
    )
    return said


# -- which training keeps ----------------------------------------------------------------------------------------------


WITHIN = 0.01
"""An arm keeps if its score far beyond K is no further below that at K."""


@dataclass(frozen=True, kw_only=True)
class RecipeArm:
    """What the seeds of one way of training say: at the read depth, and far beyond it."""

    read: dict[int, float]
    far: dict[int, float]
    radius: float
    residual: float
    cost: float
    """Operator calls of an update, those with gradients counted three times, over those of a fixed depth."""

    @property
    def keeps(self) -> bool:
        return statistics.fmean(self.far.values()) >= statistics.fmean(self.read.values()) - WITHIN


def recipe_arms(found: Published) -> dict[str, RecipeArm]:
    results = FixedPoint().typed(found.measured["fixed-point"])
    arms = {}
    for arm in (each.name for each in found.study.arms):
        mine = {seed: each for (name, seed), each in results.items() if name == arm}
        arms[arm] = RecipeArm(
            read={seed: each.score[0] for seed, each in mine.items()},
            far={seed: each.score[1] for seed, each in mine.items()},
            radius=statistics.fmean(statistics.fmean(each.radius) for each in mine.values()),
            residual=statistics.fmean(max(pair[1] for pair in each.residual.values()) for each in mine.values()),
            cost=update_cost(str(found.study.arm(arm).train.get("depth", "fixed")), next(iter(mine.values())).read),
        )
    return arms


def update_cost(depth: str, read: int) -> float:
    """Of a mean update that is drawn so; a step with gradients takes about three times one without."""
    numbers, drawing = random.Random(0), parse_depth(depth)
    calls = []
    for each in (drawing.draw(numbers) for _ in range(10_000)):
        steps = read if each is None or each.steps is None else each.steps
        calls.append(steps + 2 * (steps if each is None or each.tracked is None else min(steps, each.tracked)))
    return statistics.fmean(calls) / (3 * read)


def recipe_table(found: Published) -> Table:
    arms = recipe_arms(found)
    first = next(iter(FixedPoint().typed(found.measured["fixed-point"]).values()))
    trails = trail_arms(found) if "staircase" in found.study.measures else {}
    fixed, record = arms[found.study.reference], next(iter(found.records.values()))
    rows: list[dict[str, Cell]] = []
    for name, arm in arms.items():
        difference, _, verdict = paired_difference(list(arm.read), arm.read, fixed.read)
        assert difference is not None
        row: dict[str, Cell] = {"arm": name}
        for part, scores in (("read", arm.read), ("far", arm.far)):
            row[part], row[f"{part} spread"] = statistics.fmean(scores.values()), statistics.stdev(scores.values())
        row["verdict"] = "reference" if arm is fixed else f"{100 * difference:+.1f}, {verdict}"
        if trails:
            row["deep"], row["deep far"] = trails[name].mean("deep", TOKENS), trails[name].at("deep", TOKENS, FAR)
        rows.append({**row, "radius": arm.radius, "residual": arm.residual, "cost": arm.cost})
    return Table.of(
        f"{found.study.name}: {first.metric} on {first.split} at the read depth, and far beyond it",
        rows,
        titles={
            "read": f"at K = {first.read}",
            "read spread": "spread",
            "verdict": "less fixed, in points",
            "far": f"at k = {first.horizon}",
            "far spread": "spread ",
            "deep": "deep",
            "deep far": f"deep at k = {FAR}",
            "residual": f"residual at k = {first.horizon}",
        },
        digits={"radius": 3, "residual": 5, "cost": 2},
        notes=(
            f"Trained on {record.data.splits['train']:,} examples by {record.steps:,} updates. {first.samples} samples "
            f"of {first.split}; means over {len(fixed.read)} seeds, with sample standard "
            "deviations. Radius: of the undamped map at z(K). Residual: median over samples, the larger modality. "
            "Cost: operator calls of a mean update, those with gradients counted three times, over those of a fixed "
            "depth; computed." + (" Deep: trails deeper than in training, read deeper." if trails else ""),
        ),
    )


def say_depth(found: Published) -> list[str]:
    arms = recipe_arms(found)
    fixed = arms[found.study.reference]

    def told(names: list[str]) -> str:
        pairs = (
            f"`{name}` ({percent(statistics.fmean(arms[name].read.values()))} and "
            f"{percent(statistics.fmean(arms[name].far.values()))})"
            for name in names
        )
        return ", ".join(pairs) or "none"

    keeping = [name for name, arm in arms.items() if arm.keeps]
    worse = {name: paired_difference(list(arms[name].read), arms[name].read, fixed.read) for name in keeping}
    level = [name for name in keeping if (worse[name][0] or 0) >= 0 or worse[name][2] != "called"]
    behind = [name for name in keeping if name not in level]
    said = [
        f"At k = {FAR} within one point of the score at K, both given: {told(keeping)}. Not: "
        f"{told([name for name in arms if name not in keeping])}.",
        f"Of those that keep, not called behind `{found.study.reference}` at K: "
        f"{', '.join(f'`{name}`' for name in level) or 'none'}; called behind: "
        f"{', '.join(f'`{name}` by {points(worse[name][0] or 0)}' for name in behind) or 'none'}.",
    ]
    return said


def say_keeping(found: Published) -> str:
    """The recipe that keeps and answers best at K, beside a fixed depth."""
    arms = recipe_arms(found)
    fixed, keeping = arms[found.study.reference], {name: arm for name, arm in arms.items() if arm.keeps}
    if not keeping:
        return "No way of training that was tried keeps the score at K to within a point."
    name, best = max(keeping.items(), key=lambda each: statistics.fmean(each[1].read.values()))
    difference, _, verdict = paired_difference(list(best.read), best.read, fixed.read)
    assert difference is not None

    def pair(arm: RecipeArm) -> str:
        read, far = (percent(statistics.fmean(each.values())) for each in (arm.read, arm.far))
        return f"{read} at K and {far} at k = {FAR}"

    chosen = found.study.arm(name)
    late = "late starts" if "settle" in chosen.train.get("depth", "") else "a fixed depth"
    gate = "with the gate" if chosen.options.get("gate", True) else "without the gate"
    samples = next(iter(FixedPoint().typed(found.measured["fixed-point"]).values())).samples
    return (
        f"Read far deeper than trained, a model of a fixed depth loses what it knew: {pair(fixed)}. With {late} and "
        f"{gate} (`{name}`) it keeps: {pair(best)}; at K that is {points(difference)} "
        f"{'ahead of' if difference >= 0 else 'behind'} the former ({verdict}). {len(best.read)} seeds, {samples} test "
        "statements."
    )


def recipe_tables(found: Published) -> Iterator[str]:
    yield as_markdown(recipe_table(found))


ALL_STEPS, WAYS = "all-steps", ("last-three", "implicit", "last-one")


def say_gradients(found: Published) -> list[str]:
    """Which of the cheaper gradients is called behind those through all steps."""
    record = next(iter(found.records.values()))
    split = _scored_split(found)
    lines = {line.arm: line for line in compare(found.study, found.records, split=split, metric=record.metric)}
    said = []
    for name in WAYS:
        difference = lines[name].difference
        assert difference is not None
        where = "ahead" if difference >= 0 else "behind"
        said.append(f"`{name}` {points(difference)} {where} ({lines[name].verdict})")
    whole = lines[ALL_STEPS]
    return [
        f"With gradients through all steps {percent(whole.mean)} of {split} ({record.metric}); the difference to that, "
        f"mean over {len(found.study.seeds)} seeds: {', '.join(said)}."
    ]


def _scored_split(found: Published) -> str:
    """Test, or dev where a set has no labelled one."""
    return SPLIT if SPLIT in next(iter(found.records.values())).metrics else "dev"


def gradient_tables(found: Published) -> Iterator[str]:
    metric = next(iter(found.records.values())).metric.replace(" ", "-")
    yield from found.tables(f"{_scored_split(found)}-{metric}")


Section = tuple[str, str, Callable[[Published], list[str]], Callable[[Published], Iterator[str]]]
"""Title, command, sentences, tables."""


def tables_named(*names: str) -> Callable[[Published], Iterator[str]]:
    return lambda found: found.tables(*names)


def trail_tables(found: Published) -> Iterator[str]:
    yield as_markdown(trail_table(found))
    yield from found.tables("by-depth-deep", f"staircase-{MINE}-deep")


def _quick(study: str) -> str:
    return f"meq study run {study} scenes --quick"


SECTIONS: dict[str, Section] = {
    "duels": (
        "Trails deeper than in training",
        "meq study run duels",
        lambda found: [*say_duels(found), *say_staircase(found)],
        trail_tables,
    ),
    "relay": (
        "The easier trails, which only pass a colour on",
        "meq study run relay",
        lambda found: [*say_trail(found), *say_staircase(found)],
        trail_tables,
    ),
    "anytime-duels": (
        "Reading as deep as needed",
        "meq study run anytime duels",
        say_anytime,
        tables_named("stopping-test", "stopping-deep", "steps-by-depth-test", "steps-by-depth-deep"),
    ),
    "anytime-scenes-quick": (
        "Reading no deeper than needed, on `scenes`",
        "meq study run anytime scenes --quick --set train.epochs=6 --set measure.most=6",
        say_anytime,
        tables_named("stopping-test"),
    ),
    **{
        name: (f"Which training keeps, on {words}", f"meq study run depth {command}", say_depth, recipe_tables)
        for name, words, command in (
            ("depth-scenes-quick", "`scenes`", "scenes --quick"),
            ("depth-snli-ve-quick", "photographs and sentences", "snli-ve FOLDER --quick --set train.epochs=2"),
            ("depth-duels-quick", "`duels`", "duels --quick --set train=14400"),
            ("depth-relay-quick", "`relay`", "relay --quick --set train=7680"),
        )
    },
    **{
        name: (f"Cheaper gradients, on {words}", f"meq study run gradients {command}", say_gradients, gradient_tables)
        for name, words, command in (
            ("gradients-scenes-quick", "`scenes`", "scenes --quick --set train.epochs=6"),
            ("gradients-snli-ve-quick", "photographs and sentences", "snli-ve FOLDER --quick --set train.epochs=2"),
            ("gradients-relay-quick", "`relay`", "relay --quick --set train=7680"),
        )
    },
    "main-scenes-quick": (
        "Against single-pass fusion",
        _quick("main"),
        say_main,
        tables_named(TABLE, INTERVALS, "coupling"),
    ),
    "ablation-scenes-quick": (
        "What each part contributes",
        _quick("ablation"),
        say_ablation,
        tables_named(TABLE, INTERVALS, "coupling"),
    ),
    "modality-scenes-quick": (
        "Both modalities are needed",
        _quick("modality"),
        say_modality,
        tables_named(TABLE, INTERVALS),
    ),
    "steps-scenes-quick": ("Along the iteration", _quick("steps"), say_steps, tables_named("steps-meq")),
    "fixed-point-scenes-quick": (
        "Is what is read a fixed point?",
        _quick("fixed-point"),
        say_fixed_point,
        tables_named("fixed-point"),
    ),
    "hops-scenes-quick": (
        "When iteration helps",
        _quick("hops"),
        say_hops,
        tables_named("answers-by-kind", "steps-meq"),
    ),
}


PAPER = "paper-quick"


def paper_section() -> str:
    """The paper's tables on the sets that need no download."""
    folder = RESULTS / PAPER
    found, tables = read_paper(folder), paper_tables(folder)
    sets = dict.fromkeys(part.data for part in found.parts)
    places = [folder / part.folder for part in found.parts]
    made = [place for study in places for place in study.glob("runs/*/*") if not (place / BORROWED).exists()]
    said = (
        f"All {len(places)} studies of the paper that make sense on {' and '.join(f'`{name}`' for name in sets)}, "
        f"{len(made)} runs, by one command, with the tables assembled as the paper prints them. The models are small, "
        "and trained for half the epochs of each study's own quick form above: these tables show that every row is "
        "made, and what comes out on these sets. They are no reproduction of the paper's numbers, which are of other "
        "data; [reproduce.md](reproduce.md) says what that takes."
    )
    shown = [as_markdown(table) for name, table in tables.items() if name not in DESCRIPTIVE]
    return "\n".join(["## The whole paper, in its quick form\n", f"`meq study run paper --quick`\n\n{said}\n", *shown])


DESCRIPTIVE = ("datasets", "hyperparameters", "encoders")


def page() -> str:
    """docs/results.md."""
    parts = [INTRODUCTION]
    for name, (title, command, say, tables) in SECTIONS.items():
        found = Published.named(name)
        parts.append(f"## {title}\n\n`{command}` ({found.study.question})\n")
        parts.append("\n\n".join(say(found)) + "\n")
        parts += tables(found)
    return "\n".join([*parts, paper_section()])


SHORT = ("meq", "iterated-cross", "cross-attention-deep", "cross-attention", "self-attention", "concat")
"""The arms of `duels` that the README shows: its own, the nearest relative that iterates, and single passes."""


def short_table(found: Published) -> Table:
    """For the README: the share of right answers, and what is called."""
    arms = trail_arms(found)

    def answers(name: str, split: str) -> str:
        _, verdict = arms[name].against(arms[MINE], split)
        return percent(arms[name].mean(split, TOKENS)) + ("" if name == MINE else f" ({verdict})")

    rows: list[dict[str, Cell]] = [
        {"arm": name, "parameters": arms[name].parameters} | {split: answers(name, split) for split in ("test", "deep")}
        for name in SHORT
    ]
    return Table.of(
        "Right answers on trails as deep as in training, and deeper",
        rows,
        titles={"test": "as deep as in training", "deep": "up to three times as deep"},
        notes=(
            "Called: the difference to meq exceeds twice its spread over seeds. Guessing gives "
            f"{percent(1 / 3 + 2 / 3 * CHANCE)}.",
        ),
    )


def readme_part() -> str:
    """A short form of the main results, for README.md; the whole is docs/results.md."""
    trails, main = Published.named("duels"), Published.named("main-scenes-quick")
    assert all(arm.deepest("deep") == 3 * arm.deepest("test") for arm in trail_arms(trails).values())
    keeping = say_keeping(Published.named("depth-scenes-quick"))
    said = [
        say_trail(trails)[0],
        as_markdown(short_table(trails)).strip(),
        f"On `scenes`: {say_main(main)[0]}",
        keeping,
    ]
    return "\n\n".join([BEGIN, *said, END])


def with_results(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + readme_part() + after


if __name__ == "__main__":
    DOCS.write_text(page())
    README.write_text(with_results(README.read_text()))
    print(DOCS, README)
