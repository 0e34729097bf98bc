"""The paper's studies, each a function from a setting to a study; `meq.studies.recipes` knows them by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meq.studies.settings import (
    EQUILIBRIUM,
    RANGE,
    RESIDUAL,
    TRAIL,
    Setting,
    baseline,
    by_kind,
    equilibrium,
    graph,
    in_a_name,
    only,
    study_of,
    with_penalty,
)
from meq.studies.study import ArmConfig, DataConfig, MatchedSize, Study, StudyError
from meq.training.config import TrainConfig
from meq.training.depth import FAST as FAST_DEPTH

# -- mutual equilibrium against other ways to fuse, at matched size ----------------------------------------------------


BEST = "best attention"
ATTENTION = ("self-attention", "cross-attention")
SLOW, FAST = 3e-5, 1e-4
"""The paper's learning rates on COD10K; at the second the equilibrium and concatenation collapse."""


def main(setting: Setting) -> Study:
    """Does mutual equilibrium answer better than single-pass fusion with as many parameters?

    Arms: concatenation, self-attention and cross-attention of the equilibrium's parameter count, self-attention of its
    FLOPs (deeper, so larger), and the equilibrium. "Best attention" is the better of the two matched attention arms,
    chosen on dev.

    Command: meq study run main scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: attention arms near the equilibrium, concatenation of pooled features far behind where binding matters.
    """
    as_much = MatchedSize(to=EQUILIBRIUM, size="depth", part="flops")
    compute = baseline(setting, "self-attention", "self-attention-compute-matched", match=as_much)
    arms = (
        baseline(setting, "concat"),
        *(baseline(setting, name) for name in ATTENTION),
        compute,
        equilibrium(setting),
    )
    return study_of(
        setting,
        "Does mutual equilibrium beat single-pass fusion?",
        _at_the_papers_rates(setting, arms),
        groups={BEST: ATTENTION},
        paper="main",
        measures={"coupling": {}},
    )


def cod10k(setting: Setting) -> Study:
    """All baselines, low-rank fusion among them, trained on the camouflage benchmark itself with the paper's rates.

    On other sets the learning rate is the setting's own for every arm.

    Command: meq study run cod10k cod10k DATA_FOLDER
    Duration: hours on a GPU in full form.
    Expect: small differences between all arms but concatenation, as the paper has them.
    """
    names = ("concat", "cross-attention", "self-attention", "low-rank")
    arms = [*(baseline(setting, name) for name in names), equilibrium(setting)]
    return study_of(
        setting,
        "Which arm sees what hides, trained on it directly?",
        _at_the_papers_rates(setting, arms),
        paper="main" if setting.data.name == "cod10k" else None,
    )


def _at_the_papers_rates(setting: Setting, arms: Sequence[ArmConfig]) -> Sequence[ArmConfig]:
    """On COD10K the paper chooses a learning rate for each architecture; elsewhere all have the setting's."""
    if setting.data.name != "cod10k" or setting.quick:
        return arms
    slow = (EQUILIBRIUM, "concat")
    return [replace(arm, train={**arm.train, "learning_rate": SLOW if arm.name in slow else FAST}) for arm in arms]


def mixer(setting: Setting) -> Study:
    """Is attention the point? The cross-modal function as attention, and as gMLP of about the same size.

    Command: meq study run mixer scenes --quick
    Duration: about half an hour on two cores in quick form.
    Expect: in the paper the two cannot be told apart.
    """
    gmlp = equilibrium(
        replace(setting, shape={key: x for key, x in setting.shape.items() if key != "mixer"}), "meq-gmlp"
    )
    return study_of(
        setting,
        "Does the choice of the cross-modal mixer matter?",
        (equilibrium(setting), replace(gmlp, model="meq-gmlp", match=MatchedSize(to=EQUILIBRIUM))),
        paper="mixer",
    )


def readout(setting: Setting) -> Study:
    """Does mixing once more after the iteration help? A cross-attention merge against its control of the same size.

    Command: meq study run readout scenes --quick
    Duration: about forty minutes on two cores in quick form.
    Expect: in the paper nothing is gained.
    """
    arms = (
        equilibrium(setting),
        equilibrium(setting, "merge", readout="merge"),
        equilibrium(setting, "control", readout="control"),
    )
    return study_of(setting, "Does mixing again after the iteration help?", arms, reference="control")


def state_design(setting: Setting) -> Study:
    """Is it the two states? One joint state of tokens, matched in block and in whole model; and a feature sum.

    What is matched is the width of the joint state, which widens what feeds and reads it, too: with the block of the
    equilibrium's size, the whole model is larger. Where every modality is one vector, the joint state has those
    vectors side by side, mixed by one MLP of the equilibrium's size; nothing else changes, so that a block and a whole
    model of that size are the same arm.

    Command: meq study run state-design scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: the feature sum, which has no tokens left, behind the others.
    """
    block = MatchedSize(to=EQUILIBRIUM, size="dim", part="block")
    notes = []
    if setting.shape.get("mixer") == "mlp":
        single = [baseline(setting, "single-vector", "single-state", match=replace(block, size="hidden"))]
        notes.append("A single state matched in its block and one matched in the whole model are the same arm here.")
    else:
        whole = replace(block, part="model")
        single = [
            baseline(setting, "single-state", match=block),
            baseline(setting, "single-state", "single-state-model-matched", match=whole),
        ]
    arms = (equilibrium(setting), *single, baseline(setting, "feature-sum", match=block))
    return study_of(
        setting,
        "Is a state per modality worth anything?",
        arms,
        paper="state",
        measures={"coupling": {}},
        notes=notes,
    )


def tree_order(setting: Setting) -> Study:
    """Does the order of merging matter? Every modality merged last, an order drawn by the seed, and the graph.

    All modalities but the last are merged in the order in which they are named. Of two there is one order, and its tree
    is the graph: one arm is trained.

    Command: meq study run tree-order clips.parquet --vector face --vector voice --vector words --label y
    Duration: minutes for vectors.
    Expect: differences of the size of the spread.
    """
    question = "Does the order of a merge tree matter, and does it beat the graph?"
    names = setting.modalities
    if len(names) == 2:
        same = "Of two modalities a merge tree is the graph, weight by weight: one arm is trained."
        return study_of(setting, question, [graph(setting, "graph")], reference="graph", notes=(same,))
    orders = {last: [*(name for name in names if name != last), last] for last in names}
    trees = [
        equilibrium(replace(setting, order=_merged_in(order)), f"tree-{in_a_name(last)}-last")
        for last, order in orders.items()
    ]
    drawn = equilibrium(replace(setting, order="random"), "tree-random-order")
    return study_of(setting, question, (graph(setting, "graph"), *trees, drawn), reference="graph")


def _merged_in(names: Sequence[str]) -> Any:
    """Two first, then the others one by one: [[a, b], c]."""
    order: Any = names[0]
    for name in names[1:]:
        order = [order, name]
    return order


def statements_tiny() -> Study:
    """Does the machinery of studies work? Two arms, three seeds, a few updates each; the scores are at chance."""
    penalties = {"jacobian-range": {"weight": 0.5}, "residual-correction": {"weight": 0.3}}
    small = {"dim": 16, "heads": 2, "head_width": 16}
    return Study(
        name="statements-tiny",
        question="Does the machinery work?",
        data=DataConfig(name="statements", options={"train": 64, "dev": 24, "test": 16}),
        arms=(
            ArmConfig(name="concat", model="concat", options={"dim": 16, "head_width": 16}),
            ArmConfig(name="meq", model="meq", options={**small, "steps": 3}, penalties=penalties),
        ),
        seeds=(0, 1, 2),
        reference="concat",
        train=TrainConfig(epochs=2, batch_size=16, learning_rate=3e-3, checkpoint_every=2, monitor_samples=4),
    )


# -- problems that need iteration --------------------------------------------------------------------------------------


WIDE = {"dim": 112}
"""A joint state nearly twice as wide as the equilibrium's two."""
LONGER = 3
"""Times the updates of all others."""


def trail(setting: Setting) -> Study:
    """Who follows a trail between the modalities, and who follows one deeper than in training?

    Every card and rule says its colour, up to four exchanges away in training and up to twelve on the split `deep`,
    where arms that iterate are read at three times their K. At matched parameters: concatenation, shallow and wide
    attention, deep and thin self-attention, the same trained three times as long; a deep cross-attention of the
    equilibrium's FLOPs at K, which is larger; and controls that tell "mutual" from "iterated", trained by the same
    recipe: one joint state, narrow and wide, iterated cross-attention (the equilibrium without a path of its own), and
    the equilibrium with the paper's gate.

    Command: meq study run duels --on local
    Duration: about half an hour on two cores; --rates 2 tries two learning rates for every arm in twice the time.
    Expect: single-pass arms that stop where their layers end, and equilibria that answer nearly all at any depth.
    """
    as_much = MatchedSize(to=EQUILIBRIUM, size="depth", part="flops")
    matched = MatchedSize(to=EQUILIBRIUM)
    thin = baseline(setting, "self-attention", "self-attention-thin", options={"depth": 6})
    arms = (
        equilibrium(setting),
        baseline(setting, "concat"),
        *(baseline(setting, name) for name in ATTENTION),
        thin,
        replace(thin, name="self-attention-thin-long", train={"epochs": LONGER * setting.train.epochs}),
        baseline(setting, "cross-attention", "cross-attention-deep", match=as_much),
        baseline(setting, "single-state"),
        baseline(setting, "single-state", "single-state-wide", options=WIDE),
        replace(equilibrium(setting, "iterated-cross", own=False), match=matched),
        replace(equilibrium(setting, "gated", gate=True), match=matched),
    )
    single = ("concat", *ATTENTION, "self-attention-thin", "self-attention-thin-long", "cross-attention-deep")
    return study_of(
        setting,
        "Who follows a trail that is deeper than in training?",
        arms,
        groups={"best single pass": single},
        measures={"staircase": {}, "fixed-point": {"limit": 90, "radii": 8}},
    )


def depth(setting: Setting) -> Study:
    """Which training makes an equilibrium keep? Ways of drawing the depth of updates, and what may go with them.

    The answer is read at K, as in training, and at k = 300. Arms: always K, as in the paper (`fixed`), with and without
    the gate; late starts (`settle`) for half of the updates, with and without the gate, and for a quarter of them,
    without. In full form also: a uniform and a Poisson depth; late starts drawn for each sample, with random start
    states and noise along the path, with averaged weights, with all steps supervised, without damping (or with one),
    with a learned one, and with a carry that decays by construction in place of the gate.

    Command: meq study run depth scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: fixed depth worst at k = 300; late starts flat to k = 300.
    """
    steps = int(setting.shape.get("steps", 10))
    low = max(2, steps // 3)
    span = f"{low}, {steps}"
    late = f"settle({span}, free=40, tracked=4)"
    gated = _has_gate(setting)
    other_gate: dict[str, Any] = {"gate": not gated}
    suffix = "no-gate" if gated else "gate"
    undamped = setting.shape.get("damping") == 1.0
    # by name: how it is trained, and what is different in the model
    recipes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "fixed": ({}, {}),
        f"fixed-{suffix}": ({}, other_gate),
        "settle": ({"depth": late}, {}),
        f"settle-{suffix}": ({"depth": late}, other_gate),
        "settle-quarter-no-gate" if gated else "settle-quarter": (
            {"depth": f"{late[:-1]}, late=0.25)"},
            {"gate": False},
        ),
    }
    if not setting.quick:
        recipes |= {
            "uniform": ({"depth": f"uniform({span})"}, {}),
            "poisson": ({"depth": f"poisson({steps}, tracked=4)"}, {}),
            "settle-each": ({"depth": f"{late[:-1]}, per_sample=True)"}, {}),
            "settle-disturbed": ({"depth": late, "random_start": 0.5, "path_noise": 0.01}, {}),
            "settle-averaged": ({"depth": late, "average": 0.999}, {}),
            "settle-supervised": ({"depth": late, "supervise": 0, "supervise_decay": 0.8}, {}),
            "settle-half" if undamped else "settle-undamped": ({"depth": late}, {"damping": 0.5 if undamped else 1.0}),
            "settle-learned": ({"depth": late}, {"damping": LEARNED}),
            "settle-decay": ({"depth": late}, {"gate": "decay"}),
        }
    plain = replace(setting, depth="fixed")
    arms = [replace(equilibrium(plain, name, **model), train=train) for name, (train, model) in recipes.items()]
    arms = [arm for arm in arms if arm.name != "settle-learned" or setting.shape.get("damping") != LEARNED]
    measures: dict[str, dict[str, Any]] = {"fixed-point": {"limit": 450}}
    if setting.data.name in TRAILS:
        measures["staircase"] = {}
    return study_of(setting, "Which training makes an equilibrium keep?", arms, reference="fixed", measures=measures)


def relay(setting: Setting) -> Study:
    """Who follows a trail on which every card and rule asks one other? The arms of the study `duels`, on an easier set.

    Trails that only pass a colour on can be shortened: a reader that follows two steps at a time needs half of them.

    Command: meq study run relay --on local
    Duration: about half an hour on two cores.
    Expect: deep single-pass attention nearer to the equilibrium than on `duels`.
    """
    return trail(setting)


def anytime(setting: Setting) -> Study:
    """Does a model know when it is done? Every stopping rule, calibrated on dev, against reading all at full depth.

    On `duels` and `relay` also on problems deeper than those of training, where a rule is worth most and may fail.

    Command: meq study run anytime duels
    Duration: about five minutes on two cores, of which little is reading.
    Expect: the change of the answer near the accuracy of full depth in a third of the steps; confidence behind on
    deep problems.
    """
    measures: dict[str, dict[str, Any]] = {"stopping": {}}
    if setting.data.name in TRAILS:
        far = {"limit": 90, "radii": 8}
        strict = {"splits": ["test", "deep"], "risk": STRICT}
        measures = {"stopping": strict, "staircase": {}, "fixed-point": far}
    return study_of(setting, "Does the model know when it is done?", [equilibrium(setting)], measures=measures)


def demo(setting: Setting) -> Study:
    """What `make demo` runs: the equilibrium and a cross-attention of its size follow trails, one seed.

    One seed makes no comparison; `duels` is the study for that.

    Command: meq study run demo duels
    Duration: about five minutes on two cores.
    Expect: nearly all answers right at any depth for the equilibrium, and fewer the deeper they lie for the other.
    """
    arms = (baseline(setting, "cross-attention"), equilibrium(setting))
    measures: dict[str, dict[str, Any]] = {"staircase": {}, "stopping": {"splits": ["test", "deep"], "risk": STRICT}}
    question = "Who follows a trail that is deeper than in training?"
    return study_of(setting, question, arms, seeds=setting.seeds[:1], measures=measures)


def small_demo() -> Study:
    """What `meq demo --quick` runs: the demonstration on `relay`, where each asks one other, with short trails.

    Cards and rules come as symbols instead of pixels, so that nothing is drawn or encoded.

    Command: meq demo --quick
    Duration: about a minute on two cores.
    Expect: the same as of the demonstration, on trails three times as long as in training.
    """
    sizes = {"train": 4800, "dev": 90, "test": 90, "deep_test": 90}
    data = DataConfig(name="relay", options={**sizes, "form": "symbols", "depth": 2, "deep": 6})
    shape = {**TRAIL.shape, "steps": 4}
    setting = replace(TRAIL, data=data, shape=shape, depth="settle(2, 4, free=12, tracked=3)", quick=True)
    whole = demo(setting)
    return replace(whole, name="demo-quick", measures={"staircase": whole.measures["staircase"]})


STRICT = 0.001
"""The loss of accuracy that a stopping rule may cost on dev, where it is used on deeper problems too: with a looser
promise it stops too early there (docs/log.md)."""
TRAILS = ("duels", "relay")
"""Sets with an answer per token and a depth for each."""


# -- parts of the model and of its objective taken away, one at a time -------------------------------------------------


LAMBDA_J, LAMBDA_F = 0.5, 0.3
GATE_FLOOR = 0.1
LEARNED, DAMPING = "learned", 0.5


def ablation(setting: Setting) -> Study:
    """What does each part contribute? No gate, no cross-modal path, no path of its own, a single step.

    On sets whose models have no gate, an arm has one.

    Command: meq study run ablation scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: without the cross-modal path the states cannot tell each other anything, and answers fall to chance
    where both are needed.
    """
    gated = _has_gate(setting)
    arms: tuple[ArmConfig, ...] = (
        graph(setting),
        graph(setting, "no-gate" if gated else "gate", gate=not gated),
        graph(setting, "no-cross", cross=False),
        graph(setting, "no-self", own=False),
        graph(setting, "one-step", steps=1),
    )
    notes = []
    if setting.shape.get("mixer") == "mlp":
        arms = tuple(arm for arm in arms if arm.name != "no-self")
        notes.append("One MLP reads all states here: there is no self-attention to remove.")
    return study_of(
        setting,
        "What does each part of the model contribute?",
        arms,
        paper="ablation",
        measures={"coupling": {}},
        notes=notes,
    )


def modality(setting: Setting) -> Study:
    """Does the benchmark need all of its modalities? Each arm trained anew with all but one of them zeroed.

    Command: meq study run modality scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: chance for a modality alone on `scenes`, whose labels are balanced for each picture and each statement.
    """
    meq, concat = equilibrium(setting), baseline(setting, "concat")
    kept = setting.modalities if len(setting.modalities) == 2 else setting.modalities[-1:]
    arms = [each for arm in (meq, concat) for each in (arm, *(only(arm, name, setting.modalities) for name in kept))]
    return study_of(setting, "Does the benchmark need all of its modalities?", arms, paper="modality")


def residual_penalty(setting: Setting) -> Study:
    """What does the residual penalty buy, and what does it cost?

    Command: meq study run residual-penalty scenes --quick
    Duration: about half an hour on two cores in quick form.
    Expect: a smaller residual with the penalty; the paper finds the score hardly moved, but on VQA v2.
    """
    return study_of(
        setting,
        "What does the residual penalty buy?",
        (_penalised(setting), equilibrium(setting, "no-residual", without=(RESIDUAL,))),
        reference="no-residual",
        paper="residual",
        measures={"coupling": {}, "fixed-point": {}},
    )


def safeguards(setting: Setting) -> Study:
    """Can the collapse to the identity be prevented? A floor under the gate, and floors under the cross-modal blocks.

    The floors of the cross-modal blocks are what the run without residual penalty reaches on dev, seed by seed. A
    setting without a gate has none to put a floor under.

    Command: meq study run safeguards scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: a collapse is needed before a safeguard can prevent it: look at the gate and the cross/self ratio first.
    """
    penalised = _penalised(setting)
    floors = with_penalty(replace(penalised, name="cross-floor", floor_from="no-residual"), "cross-floor", {})
    gate = replace(penalised, name="gate-floor", options={**penalised.options, "gate_floor": GATE_FLOOR})
    gates = (gate,) if _has_gate(setting) else ()
    notes = () if gates else ("Models have no gate here, so that there is none to put a floor under.",)
    return study_of(
        setting,
        "Can the collapse to the identity be prevented?",
        (penalised, equilibrium(setting, "no-residual", without=(RESIDUAL,)), *gates, floors),
        reference="residual",
        paper="collapse",
        measures={"coupling": {}},
        notes=notes,
    )


def jacobian_range(setting: Setting) -> Study:
    """Does a lower bound on the Jacobian make the computation deeper? The range, no lower bound, no penalty at all.

    Command: meq study run jacobian-range scenes --quick
    Duration: about forty minutes on two cores in quick form.
    Expect: the answer to the question in the column "there at k".
    """
    setting = replace(setting, lambda_j=setting.lambda_j or LAMBDA_J)  # also where training goes without it
    meq = equilibrium(setting)
    unbounded = {**meq.penalties[RANGE], "low": None}
    arms = (
        meq,
        with_penalty(replace(meq, name="no-lower-bound"), RANGE, unbounded),
        equilibrium(setting, "no-range", without=(RANGE,)),
    )
    return study_of(
        setting,
        "Does the lower bound make the computation deeper?",
        arms,
        measures={"coupling": {}, "steps": {}, "fixed-point": {}},
    )


def solvers(setting: Setting) -> Study:
    """Why damping, why unrolling? Three solvers with three ways of taking gradients, trained and read alike.

    Where the paper learns the damping, every arm here has a constant one: the equilibrium does not depend on it, so an
    implicit gradient could not learn it.

    Command: meq study run solvers scenes --quick
    Duration: two hours on two cores in quick form.
    Expect: the paper warns of solvers that fail numerically; a run that fails is shown as failed.
    """
    constant, notes = _constant_damping(setting)
    arms: list[ArmConfig] = [
        replace(equilibrium(setting, f"{solver}-{backward}", **constant), solver=solver, backward=backward)
        for solver in ("damped", "anderson", "broyden")
        for backward in ("unrolled", "implicit", "phantom")
    ]
    return study_of(
        setting,
        "Which solver, and which gradient?",
        arms,
        reference="damped-unrolled",
        measures={"coupling": {}},
        notes=notes,
    )


def gradients(setting: Setting) -> Study:
    """What do cheaper gradients cost? Through all steps, through the last three or the last one, and the implicit one.

    All arms are trained at the model's K, and, as an implicit gradient could not learn it, with a constant damping.

    Command: meq study run gradients scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: three steps enough, one too few; the implicit gradient as good as its equilibrium is settled.
    """
    constant, notes = _constant_damping(setting)
    plain = equilibrium(replace(setting, depth="fixed"), "all-steps", **constant)
    arms = (
        plain,
        replace(plain, name="last-three", train={**plain.train, "depth": FAST_DEPTH}),
        replace(plain, name="last-one", train={**plain.train, "depth": "fixed(tracked=1)"}),
        replace(plain, name="implicit", backward="implicit"),
    )
    question = "What do cheaper gradients cost?"
    return study_of(setting, question, arms, reference="all-steps", measures={"coupling": {}}, notes=notes)


def _constant_damping(setting: Setting) -> tuple[dict[str, Any], tuple[str, ...]]:
    """An option of every arm where the setting learns the damping, and a note that says so."""
    if setting.shape.get("damping") != LEARNED:
        return {}, ()
    why = "the equilibrium does not depend on it, so that an implicit gradient could not learn it"
    return {"damping": DAMPING}, (f"The damping is {DAMPING} in every arm, not learned: {why}.",)


def _has_gate(setting: Setting) -> bool:
    return bool(setting.shape.get("gate", True))


def _penalised(setting: Setting) -> ArmConfig:
    """With the paper's residual penalty, also on the benchmark where the paper leaves it out."""
    return with_penalty(equilibrium(setting, "residual"), RESIDUAL, {"weight": setting.lambda_f or LAMBDA_F})


# -- what a trained equilibrium does: along its iteration, under corruption, and where it looks ------------------------


DEEP = ("existence", "binding", "relation")
DEEP_SIZES = {"train": 10800, "dev": 1350, "test": 1350}
"""As many statements of each kind as the set has otherwise, and by fewer epochs as many updates."""


def steps(setting: Setting) -> Study:
    """Where does the answer come from? The trained equilibrium read at every step, up to twice its read depth.

    Command: meq study run steps scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: a steep rise over the first exchanges, then a plateau.
    """
    question = "At which step is the answer there?"
    return study_of(setting, question, [equilibrium(setting)], measures={"steps": by_kind(setting)})


def fixed_point(setting: Setting) -> Study:
    """Is what is read a fixed point? Spectral radius, drift, residual and score at K, and after 300 steps.

    Command: meq study run fixed-point scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: a radius near one, and scores that hold or fall when the iteration goes on.
    """
    return study_of(setting, "Is what is read a fixed point?", [equilibrium(setting)], measures={"fixed-point": {}})


def hops(setting: Setting) -> Study:
    """When does iteration help? Statements of growing depth, read at every step; and the same model of one step only.

    On `scenes`: existence is one hop, binding two, a relation three.

    Command: meq study run hops scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: more steps until the answer is there for deeper statements.
    """
    options = {**DEEP_SIZES, **setting.data.options, "kinds": list(DEEP)}
    data, train = replace(setting.data, options=options), replace(setting.train, epochs=2 * setting.train.epochs // 3)
    deep = replace(setting, data=data, train=train, kinds=DEEP)
    one_step = equilibrium(deep, "one-step", steps=1)
    arms = (equilibrium(deep), one_step, baseline(deep, "self-attention"))
    return study_of(deep, "Does a deeper statement need more steps?", arms, measures={"steps": {"by": "kind"}})


def robustness(setting: Setting) -> Study:
    """How far do noise, blur and typos bring the answers down? Five draws, the same for every checkpoint.

    Command: meq study run robustness scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: scores that fall with the strength of the corruption, for both arms.
    """
    arms = (baseline(setting, "concat"), equilibrium(setting))
    measures = {"robustness": {"draws": 2 if setting.quick else 5}}
    return study_of(setting, "Who stands corruption better?", arms, reference="concat", measures=measures)


def grounding(setting: Setting) -> Study:
    """Does the model find what hides? Trained on entailment, read where masks show what the statement speaks of.

    After SNLI-VE it is COD10K that is read, with its folder given beside; `scenes` has masks of its own.

    Command: meq study run grounding scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: maps that depend on the method more than on the step: see the log.
    """
    read = None if setting.data.name == "scenes" else "cod10k"
    if read is not None and setting.data.name != "snli-ve":
        raise StudyError(f"grounding is trained on an entailment set, and {setting.data.name!r} is none")
    options: dict[str, Any] = {**({} if read is None else {"read": read}), **({"limit": 100} if setting.quick else {})}
    question = "Does the iteration find what hides?"
    return study_of(setting, question, [equilibrium(setting)], measures={"grounding": options})
