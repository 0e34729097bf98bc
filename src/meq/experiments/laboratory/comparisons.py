"""Mutual equilibrium against other ways to fuse, at matched size."""

from __future__ import annotations

from dataclasses import replace

from meq.experiments.arms import EQUILIBRIUM, baseline, equilibrium, graph, without_options
from meq.experiments.settings import Setting
from meq.experiments.study import ArmConfig, Matched, Study, StudyError

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
    compute = baseline(setting, "self-attention", "self-attention-compute-matched", match=_compute())
    arms = (
        baseline(setting, "concat"),
        *(baseline(setting, name) for name in ATTENTION),
        compute,
        equilibrium(setting),
    )
    return Study(
        name="main",
        question="Does mutual equilibrium beat single-pass fusion?",
        data=setting.data,
        arms=arms,
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
        groups={BEST: ATTENTION},
        paper=f"main/{setting.data.name}" if setting.data.name in PAPER_MAIN else None,
        measures={"coupling": {}},
    )


PAPER_MAIN = ("hateful-memes", "vcr", "vqa-v2", "snli-ve", "mosei", "cod10k")


def demo(setting: Setting) -> Study:
    """What `make demo` runs: the equilibrium, concatenation and one attention arm of the same size, one seed.

    One seed makes no comparison; `main` is the study for that.

    Command: meq study run demo scenes --quick
    Duration: about five minutes on two cores.
    Expect: a table of one seed, from which nothing follows about who is better.
    """
    arms = (baseline(setting, "concat"), baseline(setting, "self-attention"), equilibrium(setting))
    return Study(
        name="demo",
        question="What does each arm answer, and what happens along the iteration?",
        data=setting.data,
        arms=arms,
        seeds=setting.seeds[:1],
        reference=EQUILIBRIUM,
        train=setting.train,
        measures={"steps": {"by": "kind"} if setting.kinds else {}},
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
    if setting.data.name == "cod10k" and not setting.quick:
        slow = (EQUILIBRIUM, "concat")
        arms = [replace(arm, train={"learning_rate": SLOW if arm.name in slow else FAST}) for arm in arms]
    return Study(
        name="cod10k",
        question="Which arm sees what hides, trained on it directly?",
        data=setting.data,
        arms=tuple(arms),
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
        paper="main/cod10k" if setting.data.name == "cod10k" else None,
    )


def mixer(setting: Setting) -> Study:
    """Is attention the point? The cross-modal function as attention, and as gMLP of about the same size.

    Command: meq study run mixer scenes --quick
    Duration: about half an hour on two cores in quick form.
    Expect: in the paper the two cannot be told apart.
    """
    gmlp = without_options(equilibrium(setting, "meq-gmlp"), "mixer")
    return Study(
        name="mixer",
        question="Does the choice of the cross-modal mixer matter?",
        data=setting.data,
        arms=(equilibrium(setting), replace(gmlp, model="meq-gmlp", match=Matched(to=EQUILIBRIUM))),
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
        paper="mixer/snli-ve" if setting.data.name == "snli-ve" else None,
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
    return Study(
        name="readout",
        question="Does mixing again after the iteration help?",
        data=setting.data,
        arms=arms,
        seeds=setting.seeds,
        reference="control",
        train=setting.train,
    )


def state_design(setting: Setting) -> Study:
    """Is it the two states? One joint state of tokens, matched in block and in whole model; and a feature sum.

    Command: meq study run state-design scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: the feature sum, which has no tokens left, behind the others.
    """
    block = Matched(to=EQUILIBRIUM, part="block")
    arms: tuple[ArmConfig, ...] = (
        equilibrium(setting),
        baseline(setting, "single-state", match=block),
        baseline(setting, "single-state", "single-state-model-matched"),
        baseline(setting, "feature-sum", match=block),
    )
    known = ("vqa-v2", "hateful-memes", "mosei")
    return Study(
        name="state-design",
        question="Is a state per modality worth anything?",
        data=setting.data,
        arms=arms,
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
        paper=f"state/{setting.data.name}" if setting.data.name in known else None,
        measures={"coupling": {}},
    )


def tree_order(setting: Setting) -> Study:
    """Does the order of merging matter? All orders of three modalities, an order drawn by the seed, and the graph.

    Command: meq study run tree-order clips.parquet --vector face --vector voice --vector words --label y
    Duration: minutes for vectors.
    Expect: differences of the size of the spread.
    """
    if len(setting.modalities) != 3:
        raise StudyError(
            f"tree-order compares the merge orders of three modalities, and there are {len(setting.modalities)}: "
            f"{', '.join(setting.modalities)}"
        )
    first, second, third = setting.modalities
    orders = {third: [[first, second], third], second: [[first, third], second], first: [[second, third], first]}
    trees = [
        equilibrium(replace(setting, order=order), f"tree-{last.lower().replace('_', '-')}-last")
        for last, order in orders.items()
    ]
    drawn = equilibrium(replace(setting, order=RANDOM), "tree-random-order")
    return Study(
        name="tree-order",
        question="Does the order of a merge tree matter, and does it beat the graph?",
        data=setting.data,
        arms=(graph(setting, "graph"), *trees, drawn),
        seeds=setting.seeds,
        reference="graph",
        train=setting.train,
    )


RANDOM = "random"


def _compute() -> Matched:
    return Matched(to=EQUILIBRIUM, size="depth", part="flops")
