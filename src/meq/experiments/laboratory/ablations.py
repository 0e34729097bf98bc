"""Parts of the model and of its objective taken away, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meq.experiments.arms import EQUILIBRIUM, baseline, equilibrium, graph, only, with_penalty
from meq.experiments.settings import Setting
from meq.experiments.study import ArmConfig, Study

RESIDUAL, RANGE = "residual-correction", "jacobian-range"
LAMBDA_F = 0.3
GATE_FLOOR = 0.1
LEARNED, DAMPING = "learned", 0.5


def ablation(setting: Setting) -> Study:
    """What does each part contribute? No gate, no cross-modal path, no path of its own, a single step.

    Command: meq study run ablation scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: without the cross-modal path the states cannot tell each other anything, and answers fall to chance
    where both are needed.
    """
    arms: tuple[ArmConfig, ...] = (
        graph(setting),
        graph(setting, "no-gate", gate=False),
        graph(setting, "no-cross", cross=False),
        graph(setting, "no-self", own=False),
        graph(setting, "one-step", steps=1),
    )
    if setting.shape.get("mixer") == "mlp":  # one function of all states: there is no path of its own to remove
        arms = tuple(arm for arm in arms if arm.name != "no-self")
    return Study(
        name="ablation",
        question="What does each part of the model contribute?",
        data=setting.data,
        arms=arms,
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
        paper="ablation/vqa-v2" if setting.data.name == "vqa-v2" else None,
        measures={"coupling": {}},
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
    known = ("snli-ve", "hateful-memes", "mosei")
    return Study(
        name="modality",
        question="Does the benchmark need all of its modalities?",
        data=setting.data,
        arms=tuple(arms),
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
        paper=f"modality/{setting.data.name}" if setting.data.name in known else None,
    )


def residual_penalty(setting: Setting) -> Study:
    """What does the residual penalty buy, and what does it cost?

    Command: meq study run residual-penalty scenes --quick
    Duration: about half an hour on two cores in quick form.
    Expect: a smaller residual with the penalty; the paper finds the score hardly moved, but on VQA v2.
    """
    known = ("snli-ve", "vcr", "mosei", "hateful-memes")
    return Study(
        name="residual-penalty",
        question="What does the residual penalty buy?",
        data=setting.data,
        arms=(_penalised(setting), equilibrium(setting, "no-residual", without=(RESIDUAL,))),
        seeds=setting.seeds,
        reference="no-residual",
        train=setting.train,
        paper=f"residual/{setting.data.name}" if setting.data.name in known else None,
        measures={"coupling": {}, "fixed-point": {}},
    )


def safeguards(setting: Setting) -> Study:
    """Can the collapse to the identity be prevented? A floor under the gate, and floors under the cross-modal blocks.

    The floors of the cross-modal blocks are what the run without residual penalty reaches on dev, seed by seed.

    Command: meq study run safeguards scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: a collapse is needed before a safeguard can prevent it: look at the gate and the cross/self ratio first.
    """
    penalised = _penalised(setting)
    floors = with_penalty(replace(penalised, name="cross-floor", floor_from="no-residual"), "cross-floor", {})
    gate = replace(penalised, name="gate-floor", options={**penalised.options, "gate_floor": GATE_FLOOR})
    return Study(
        name="safeguards",
        question="Can the collapse to the identity be prevented?",
        data=setting.data,
        arms=(penalised, equilibrium(setting, "no-residual", without=(RESIDUAL,)), gate, floors),
        seeds=setting.seeds,
        reference="residual",
        train=setting.train,
        paper="collapse/vqa-v2" if setting.data.name == "vqa-v2" else None,
        measures={"coupling": {}},
    )


def jacobian_range(setting: Setting) -> Study:
    """Does a lower bound on the Jacobian make the computation deeper? The range, no lower bound, no penalty at all.

    Command: meq study run jacobian-range scenes --quick
    Duration: about forty minutes on two cores in quick form.
    Expect: the answer to the question in the column "there at k".
    """
    meq = equilibrium(setting)
    unbounded = {**meq.penalties[RANGE], "low": None}
    arms = (
        meq,
        with_penalty(replace(meq, name="no-lower-bound"), RANGE, unbounded),
        equilibrium(setting, "no-range", without=(RANGE,)),
    )
    return Study(
        name="jacobian-range",
        question="Does the lower bound make the computation deeper?",
        data=setting.data,
        arms=arms,
        seeds=setting.seeds,
        reference=EQUILIBRIUM,
        train=setting.train,
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
    constant: dict[str, Any] = {"damping": DAMPING} if setting.shape.get("damping") == LEARNED else {}
    arms: list[ArmConfig] = [
        replace(equilibrium(setting, f"{solver}-{backward}", **constant), solver=solver, backward=backward)
        for solver in ("damped", "anderson", "broyden")
        for backward in ("unrolled", "implicit", "phantom")
    ]
    return Study(
        name="solvers",
        question="Which solver, and which gradient?",
        data=setting.data,
        arms=tuple(arms),
        seeds=setting.seeds,
        reference="damped-unrolled",
        train=setting.train,
        measures={"coupling": {}},
    )


def _penalised(setting: Setting) -> ArmConfig:
    """With the paper's residual penalty, also on the benchmark where the paper leaves it out."""
    return with_penalty(equilibrium(setting, "residual"), RESIDUAL, {"weight": setting.lambda_f or LAMBDA_F})
